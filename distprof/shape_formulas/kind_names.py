"""Kinds of operators without a FLOP formula, by their names: norm, activation, pool, view, ...

The table has names without namespace, trailing `_` (in place) and `_backward`: gelu also covers gelu_ and
gelu_backward.
"""

from __future__ import annotations

from distprof.shape_formulas.operator_call import OperatorKind

_NAMES: dict[OperatorKind, str] = {
    "norm": """native_layer_norm layer_norm native_batch_norm batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_no_training _native_batch_norm_legit_functional cudnn_batch_norm miopen_batch_norm
        _batch_norm_with_update _batch_norm_no_update _batch_norm_with_update_functional batch_norm_stats
        batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_elemt batch_norm_update_stats
        batch_norm_backward_elemt batch_norm_backward_reduce native_group_norm group_norm instance_norm _fused_rms_norm
        rms_norm _weight_norm _weight_norm_interface quantized_batch_norm renorm batch_norm1d batch_norm2d batch_norm3d
        batch_norm1d_relu batch_norm2d_relu batch_norm3d_relu batch_norm_relu""",
    "activation": """relu relu6 gelu silu sigmoid log_sigmoid log_sigmoid_forward tanh hardtanh hardswish hardsigmoid
        hardshrink softshrink softplus elu celu selu leaky_relu prelu _prelu_kernel rrelu rrelu_with_noise
        rrelu_with_noise_functional threshold mish glu glu_jvp glu_backward_jvp infinitely_differentiable_gelu logit""",
    "pool": """avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices
        max_pool2d_with_indices max_pool3d_with_indices _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d
        adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d mkldnn_max_pool2d mkldnn_max_pool3d
        mkldnn_adaptive_avg_pool2d quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d roi_align roi_pool
        ps_roi_align ps_roi_pool""",
    "softmax": """_softmax _log_softmax softmax log_softmax _safe_softmax _masked_softmax _softmax_backward_data
        _log_softmax_backward_data _sparse_softmax _sparse_log_softmax _sparse_softmax_backward_data
        _sparse_log_softmax_backward_data _nested_tensor_softmax_with_shape""",
    "loss": """nll_loss nll_loss_forward nll_loss2d nll_loss2d_forward nll_loss_nd mse_loss l1_loss smooth_l1_loss
        huber_loss soft_margin_loss multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward
        binary_cross_entropy binary_cross_entropy_with_logits cross_entropy_loss kl_div _ctc_loss ctc_loss
        _cudnn_ctc_loss miopen_ctc_loss poisson_nll_loss""",
    "optimizer": """_fused_adam _fused_adamw _fused_sgd _fused_adagrad _amp_update_scale
        _amp_foreach_non_finite_check_and_unscale optimizer_update_32bit optimizer_update_8bit_blockwise""",
    "reduction": """sum mean prod max min amax amin aminmax any all argmax argmin norm linalg_vector_norm nansum
        linalg__powsum std var std_mean var_mean logsumexp cumsum cumprod cummax cummin logcumsumexp _logcumsumexp
        _cummax_helper _cummin_helper sort topk argsort msort kthvalue median nanmedian mode count_nonzero nonzero
        nonzero_static _unique _unique2 unique_dim unique_consecutive bincount histc histogram _histogramdd_bin_edges
        _histogramdd_from_bin_cts _histogramdd_from_bin_tensors searchsorted bucketize equal _is_all_true _is_any_true
        hash_tensor trace segment_reduce _segment_reduce _sparse_sum _sparse_csr_sum _sparse_csr_prod _foreach_norm
        _foreach_max _foreach_powsum dist cosine_similarity isin allclose _aminmax native_norm unique_dim_consecutive
        _nested_sum""",
    "upsample": """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
        upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa grid_sampler_2d
        grid_sampler_3d _grid_sampler_2d_cpu_fallback cudnn_grid_sampler cudnn_affine_grid_generator""",
    "embedding": """embedding embedding_dense embedding_renorm embedding_sparse _embedding_bag
        _embedding_bag_forward_only _embedding_bag_dense _embedding_bag_sparse _embedding_bag_per_sample_weights
        embedding_byte embedding_4bit embedding_bag_byte embedding_bag_4bit embedding_bag_byte_rowwise_offsets
        embedding_bag_4bit_rowwise_offsets embedding_bag_2bit_rowwise_offsets""",
    "random": """native_dropout dropout feature_dropout alpha_dropout _fused_dropout _cudnn_init_dropout_state
        bernoulli normal uniform random exponential geometric cauchy log_normal rand randn randint rand_like randn_like
        randint_like randperm multinomial poisson binomial _standard_gamma _sample_dirichlet normal_functional
        _philox_key_split _philox_normal _philox_uniform _dirichlet_grad _standard_gamma_grad _sobol_engine_draw""",
    "copy": """_to_copy to _to_dense to_dense copy clone contiguous cat concat stack fill zero zeros ones full
        zeros_like ones_like full_like new_zeros new_ones new_full arange linspace logspace eye range tril_indices
        triu_indices scalar_tensor constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d roll flip repeat repeat_interleave tile index
        index_select index_put _index_put_impl _unsafe_index _unsafe_index_put _unsafe_masked_index
        _unsafe_masked_index_put_accumulate index_add index_copy index_fill index_reduce gather scatter scatter_add
        scatter_reduce take put masked_select masked_scatter masked_fill slice select slice_scatter select_scatter
        diagonal_scatter as_strided_scatter diag diag_embed diagonal tril triu unfold im2col col2im pixel_shuffle
        pixel_unshuffle channel_shuffle native_channel_shuffle _pack_padded_sequence _copy_from _copy_from_and_resize
        _foreach_copy _foreach_zero _foreach_clone split_with_sizes_copy _to_sparse to_sparse _coalesce coalesce
        sparse_mask to_mkldnn mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight quantize_per_tensor
        quantize_per_tensor_dynamic quantize_per_channel dequantize block_diag _nested_from_padded
        _nested_tensor_from_mask nested_to_padded_tensor to_padded_tensor _nested_from_padded_and_nested_example
        _nested_tensor_from_tensor_list _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward _chunk_cat
        chunk_cat lift _local_scalar_dense pin_memory _pin_memory expand_copy view_copy _reshape_copy _mkldnn_transpose
        chunk_cat_mixed_dtype
        _mkldnn_reshape _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _dyn_quant_pack_4bit_weight
        _to_sparse_semi_structured _sparse_semi_structured_tile _sparse_semi_structured_apply
        _sparse_semi_structured_apply_dense _cslt_compress _conj_physical vander cartesian_prod combinations meshgrid
        rot90 _fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional lu_unpack narrow_copy
        split_copy unbind_copy _stack _nested_select _nested_from_padded_tensor _nested_tensor_from_mask_left_aligned
        _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc _spdiags _sparse_mask_projection
        copy_sparse_to_sparse _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo bartlett_window
        blackman_window hamming_window hann_window kaiser_window fft_fftfreq fft_rfftfreq cat_relu iota rev copy_to
        copy_strided device_put all_gather_copy_in quantize_4bit dequantize_4bit quantize_blockwise
        dequantize_blockwise int8_vectorwise_quant int8_vectorwise_dequant int8_double_quant int8_mm_dequant""",
    "view": """_unsafe_view _reshape_alias detach alias lift_fresh empty empty_like empty_strided new_empty
        new_empty_strided empty_permuted empty_quantized _empty_affine_quantized _empty_per_channel_affine_quantized
        resize resize_as set sym_size sym_stride sym_numel sym_storage_offset is_same_size size stride numel is_pinned
        _has_compatible_shallow_copy_type record_stream resolve_conj resolve_neg _assert_async _assert_scalar
        _assert_tensor_metadata _functional_assert_async _functional_assert_scalar _version unbind _indices _values
        indices values crow_indices col_indices ccol_indices row_indices _nnz sparse_dim dense_dim is_coalesced
        _coalesced _nested_tensor_size _nested_tensor_strides _nested_tensor_storage_offsets _nested_view_from_buffer
        _cudnn_rnn_flatten_weight _use_cudnn_rnn_flatten_weight _backward unsafe_split unsafe_split_with_sizes
        unsafe_chunk _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_unsafe
        _sparse_compressed_tensor_unsafe _validate_sparse_coo_tensor_args _validate_sparse_compressed_tensor_args
        sparse_coo_tensor sparse_compressed_tensor _make_per_tensor_quantized_tensor _make_per_channel_quantized_tensor
        q_scale q_zero_point q_per_channel_axis q_per_channel_scales q_per_channel_zero_points _fused_sdp_choice
        _efficientzerotensor _nested_get_offsets _nested_get_lengths _nested_get_ragged_idx _nested_get_min_seqlen
        _nested_get_max_seqlen _nested_get_jagged_dummy _nested_compute_contiguous_strides_offsets _linalg_check_errors
        sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range
        _functional_sym_constrain_range_for_size _make_dep_token _print _resize_output is_set_to
        _has_same_storage_numel _use_cudnn_ctc_loss _use_miopen_ctc_loss _sparse_coo_tensor_with_dims
        _sparse_compressed_tensor_with_dims resize_as_sparse sparse_resize sparse_resize_and_clear _dimI _dimV
        _new_zeros_with_same_feature_meta _validate_compressed_sparse_indices qscheme _fw_primal _make_dual
        _unpack_dual _lazy_clone item""",
    "elementwise": """add sub mul div rsub rsqrt pow where _transform_bias_rescale_qkv _thnn_fused_lstm_cell
        _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_differentiable_lstm_cell
        _thnn_differentiable_gru_cell cross linalg_cross _compute_linear_combination kron complex polar
        fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
        _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fake_quantize_learnable_per_tensor_affine
        _fake_quantize_learnable_per_channel_affine _saturate_weight_to_fp16 _fill_mem_eff_dropout_mask
        add_relu mul_relu add_scalar add_scalar_relu mul_scalar mul_scalar_relu _add_relu clamp _masked_scale
        floor_divide isinf isnan __lshift__ __rshift__ __ilshift__ __irshift__ int_repr""",
}

KIND_OF: dict[str, OperatorKind] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""Bare operator name -> kind."""


def bare_names(name: str) -> tuple[str, ...]:
    """Returns the name without namespace, then without `_` and `_out`, then without `_backward`."""
    bare = name.partition("::")[2] or name
    shorter = bare.removesuffix("_").removesuffix("_out")
    return bare, shorter, shorter.removesuffix("_backward")
