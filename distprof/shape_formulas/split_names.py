"""Names of operators that torch takes apart before it dispatches them: of these the parts do the work, and count.

For those who have no torch; `formulas/composite_operators.py` asks torch. Only names with a kind are here, without
namespace. Of one that has overloads of both sorts the usual one decides.
"""

from __future__ import annotations

_NAMES = """
    __ixor__ __xor__ _autocast_to_full_precision _autocast_to_reduced_precision _backward
    _embedding_bag_sparse_backward _fused_rms_norm _has_compatible_shallow_copy_type _lu_with_info
    _pack_padded_sequence_backward _saturate_weight_to_fp16 _sobol_engine_draw _sparse_compressed_tensor_unsafe
    _sparse_coo_tensor_unsafe _thnn_differentiable_gru_cell_backward _thnn_differentiable_lstm_cell_backward
    _thnn_fused_lstm_cell_backward _unpack_dual _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_lanczos2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _use_cudnn_rnn_flatten_weight _validate_sparse_compressed_tensor_args _validate_sparse_coo_tensor_args
    _version _weight_norm _wrapped_linear_prepack adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adjoint alpha_dropout alpha_dropout_ argsort avg_pool1d batch_norm broadcast_to
    cartesian_prod chunk clip clip_ coalesce combinations concat conj conj_physical contiguous cosine_similarity
    cross cross_entropy_loss ctc_loss cumprod_backward diag dropout dropout_ dsplit embedding_backward
    embedding_sparse_backward expand_as fake_quantize_per_channel_affine_cachemask_backward
    fake_quantize_per_tensor_affine_cachemask_backward feature_dropout feature_dropout_ flatten float_power
    float_power_ gather_backward group_norm hsplit imag index_select_backward
    infinitely_differentiable_gelu_backward instance_norm isfinite item kl_div kron l1_loss layer_norm
    linalg_diagonal linalg_eigvals log_sigmoid log_softmax mH mT masked_select_backward matrix_H max_pool1d
    max_pool1d_with_indices max_pool2d max_pool3d meshgrid moveaxis movedim msort multilabel_margin_loss narrow
    nested_to_padded_tensor nll_loss nll_loss2d nll_loss_nd numel numpy_T pad pin_memory poisson_nll_loss
    positive prelu ravel real relu6 relu6_ repeat_interleave reshape reshape_as resolve_conj resolve_neg
    rms_norm rrelu rrelu_ selu selu_ size softmax square square_ stride swapaxes swapaxes_ swapdims swapdims_
    sym_numel sym_size sym_storage_offset sym_stride tensor_split tile to to_dense to_dense_backward
    to_mkldnn_backward to_sparse trace_backward true_divide true_divide_ unflatten unsafe_chunk
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d vander view_as vsplit"""
SPLIT = frozenset(_NAMES.split())


def is_split(op: str) -> bool:
    """True for an operator of torch that is taken apart."""
    return op.partition("::")[2] in SPLIT
