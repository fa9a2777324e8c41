"""What torch knows about operators, for reading traces without torch: which ones it splits, argument names and kinds.

With torch, `formulas/composite_operators.py` and `formulas/dispatched_call.py` query it instead. `SPLIT` has operators,
without namespace, that torch splits into others before dispatch; if overloads differ, the most common one decides.
`TAGGED` has operators whose kind follows from torch's tags and schemas, as in `kind_names.py`. `ARGUMENTS` has the
arguments of contractions that formulas need, without operators about which a trace shows too little: those with packed,
sparse and quantized weights.
"""

from __future__ import annotations

import re
from functools import lru_cache

from distprof.shape_formulas.kind_names import KIND_OF, bare_names
from distprof.shape_formulas.operator_call import OperatorKind

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
    """Returns whether torch splits an operator before dispatch."""
    return op.partition("::")[2] in SPLIT


_FUSED = re.compile(r"triton_(?:poi|red|per)_fused_\w+")
_MULTIPLIES = re.compile(r"_(?:\w*mm|mv|addmv|dot|matmul|einsum|linear|convolution|attention)(?:_|$)")


@lru_cache(maxsize=1 << 12)
def is_fused(op: str) -> bool:
    """Returns whether torch.compile made this kernel, from operators none of which is named like a contraction."""
    return _FUSED.fullmatch(op) is not None and _MULTIPLIES.search(op) is None


_QUERY = ("query", "key", "value")
_GRADIENT = ("grad_out", *_QUERY)
_PACKED = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal")
_WINDOW = ("window_size_left", "window_size_right")
_CONVOLVED = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
_RNN = ("input", "weight", "weight_stride0")
_CUDNN_RNN = ("mode", "hidden_size", "proj_size", "num_layers", "batch_first", "dropout", "train", "bidirectional",
              "batch_sizes", "dropout_state")

ARGUMENTS: dict[str, tuple[str, ...]] = {
    **{f"aten::{name}": ("self", "mat2") for name in ("mm", "bmm", "_int_mm", "_scaled_mm", "_scaled_mm_v2",
                                                      "_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2",
                                                      "_foreach_mm")},
    **{f"aten::{name}": ("self", "mat1", "mat2") for name in ("addmm", "addmm_", "_addmm_activation")},
    **{f"aten::{name}": ("self", "batch1", "batch2") for name in ("baddbmm", "baddbmm_", "addbmm", "addbmm_")},
    "aten::mv": ("self", "vec"),
    **{f"aten::{name}": ("self", "mat", "vec") for name in ("addmv", "addmv_")},
    "aten::dot": ("self", "tensor"),
    "aten::vdot": ("self", "other"),
    **{f"aten::{name}": ("self", "vec1", "vec2") for name in ("addr", "addr_")},
    **{f"aten::{name}": ("input", "weight", "bias", *_CONVOLVED) for name in ("convolution", "_convolution",
                                                                              "convolution_overrideable")},
    "aten::cudnn_convolution": ("self", "weight", "padding", "stride", "dilation"),
    **{f"aten::{name}": ("self", "weight", "bias", "padding", "stride", "dilation") for name in (
        "mkldnn_convolution", "miopen_convolution", "miopen_depthwise_convolution")},
    "aten::cudnn_convolution_relu": ("self", "weight", "bias", "stride", "padding", "dilation"),
    "aten::cudnn_convolution_add_relu": ("self", "weight", "z", "alpha", "bias", "stride", "padding", "dilation"),
    "aten::cudnn_convolution_transpose": ("self", "weight"),
    "aten::miopen_convolution_transpose": ("self", "weight"),
    "aten::convolution_backward": ("grad_output", "input", "weight", "bias_sizes", *_CONVOLVED, "output_mask"),
    "aten::convolution_backward_overrideable": ("grad_output", "input", "weight", *_CONVOLVED, "output_mask"),
    **{f"aten::_scaled_dot_product_{name}": (*_QUERY, "dropout_p", "is_causal") for name in (
        "flash_attention", "flash_attention_for_cpu")},
    **{f"aten::_scaled_dot_product_{name}": (*_QUERY, "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal")
       for name in ("efficient_attention", "cudnn_attention")},
    "aten::_scaled_dot_product_fused_attention_overrideable": (*_QUERY, "attn_bias", "dropout_p", "is_causal"),
    "aten::_scaled_dot_product_flash_attention_backward": (*_GRADIENT, "out", "logsumexp", *_PACKED),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (
        *_GRADIENT, "out", "logsumexp", "dropout_p", "is_causal"),
    "aten::_scaled_dot_product_cudnn_attention_backward": (
        *_GRADIENT, "out", "logsumexp", "philox_seed", "philox_offset", "attn_bias", *_PACKED),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": (
        *_GRADIENT, "attn_bias", "grad_input_mask", "out", "logsumexp", *_PACKED),
    "aten::_scaled_dot_product_efficient_attention_backward": (
        "grad_out_", *_QUERY, "attn_bias", "out", "logsumexp", "philox_seed", "philox_offset", "dropout_p",
        "grad_input_mask", "is_causal"),
    "aten::_flash_attention_forward": (*_QUERY, *_PACKED, "return_debug_mask", "scale", *_WINDOW),
    "aten::_flash_attention_backward": (*_GRADIENT, "out", "logsumexp", *_PACKED, "rng_state", "unused", "scale",
                                        *_WINDOW),
    "aten::_efficient_attention_forward": (*_QUERY, "bias", "cu_seqlens_q", "cu_seqlens_k"),
    "flash_attn::_flash_attn_forward": (*_QUERY, "dropout_p", "scale", "is_causal", *_WINDOW),
    "flash_attn::_flash_attn_backward": (*_GRADIENT, "out", "logsumexp", "dq", "dk", "dv", "dropout_p", "scale",
                                         "is_causal", *_WINDOW),
    "aten::mkldnn_rnn_layer": ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_", "reverse",
                               "batch_sizes"),
    "aten::mkldnn_rnn_layer_backward": (
        "input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp", "output", "hy_", "cy_", "grad_output",
        "grad_hy", "grad_cy", "reverse", "mode", "hidden_size", "num_layers", "has_biases", "train", "bidirectional",
        "batch_sizes"),
    "aten::_cudnn_rnn": (*_RNN, "weight_buf", "hx", "cx", *_CUDNN_RNN),
    "aten::_cudnn_rnn_backward": (*_RNN, "weight_buf", "hx", "cx", "output", "grad_output", "grad_hy", "grad_cy",
                                  *_CUDNN_RNN, "reserve", "output_mask"),
    "aten::_native_multi_head_attention": (*_QUERY, "embed_dim"),
    "aten::_transformer_encoder_layer_fwd": (
        "src", "embed_dim", "num_heads", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "use_gelu", "norm_first",
        "eps", "norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2", "ffn_weight_1"),
}
"""Operator -> names of its first arguments, for all its overloads."""


_TAGGED_NAMES: dict[OperatorKind, str] = {
    "elementwise": """__ixor_ __xor_ abs acos acosh addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and
        bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp_max clamp_min
        clip conj_physical copysign cos cosh deg2rad digamma eq erf erfc erfinv exp exp2 expm1 float_power
        floor fmax fmin fmod frac frexp gcd ge gt heaviside hypot i0 igamma igammac isfinite isneginf
        isposinf lcm ldexp le lerp lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not
        logical_or logical_xor lt maximum minimum mvlgamma nan_to_num ne neg nextafter polygamma rad2deg
        reciprocal remainder round sgn sign signbit sin sinc sinh special_airy_ai special_bessel_j0
        special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
        special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
        special_entr special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e
        special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr
        special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
        special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta sqrt
        square tan true_divide trunc xlogy""",
    "copy": """_conj_copy _fw_primal_copy _indices_copy _make_dual_copy _neg_view_copy _nested_get_values_copy
        _nested_view_from_buffer_copy _nested_view_from_jagged_copy _reshape_alias_copy
        _sparse_broadcast_to_copy _values_copy _wrapped_linear_prepack alias_copy as_strided_copy
        ccol_indices_copy col_indices_copy crow_indices_copy detach_copy diagonal_copy indices_copy
        lift_fresh_copy permute_copy row_indices_copy select_copy slice_copy squeeze_copy t_copy
        transpose_copy unfold_copy unsqueeze_copy values_copy view_as_complex_copy view_as_real_copy""",
    "view": """_autocast_to_full_precision _autocast_to_reduced_precision _conj _neg_view _nested_get_values
        _nested_view_from_jagged _sparse_broadcast_to adjoint as_strided broadcast_to chunk conj dsplit
        expand expand_as flatten hsplit imag linalg_diagonal mH mT matrix_H moveaxis movedim narrow numpy_T
        permute positive ravel real reshape reshape_as slice_inverse split split_with_sizes squeeze swapaxes
        swapdims t tensor_split transpose unflatten unsqueeze view view_as view_as_complex view_as_real
        vsplit""",
}
TAGGED: dict[str, OperatorKind] = {name: kind for kind, names in _TAGGED_NAMES.items() for name in names.split()}
"""Bare operator name -> kind."""
NO_WORK = ("prim::", "profiler::", "c10d::", "_c10d_functional::", "torch::autograd::AccumulateGrad",
           "record_param_comms")
"""Prefixes of the names of queries, labels, communication, and gradient accumulation."""


OF_VLLM = ("_C::rms_norm", "_C::fused_add_rms_norm")
"""Norms of vLLM."""


def kind_by_name(op: str) -> OperatorKind | None:
    """Returns the kind of an operator that is known not to be a contraction; None for others."""
    if op == "detach" or op.startswith(NO_WORK):
        return "view"
    if op in OF_VLLM:
        return "norm"
    if not op.startswith("aten::"):
        return None
    names = bare_names(op)
    if names[0].startswith("_foreach_") and names[0] != "_foreach_mm":
        return "optimizer"
    return next((known[name] for known in (KIND_OF, TAGGED) for name in names[:2] if name in known), KIND_OF.get(
        names[2]))
