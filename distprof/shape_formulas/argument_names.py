"""Names of the first arguments of contractions, in their order: those that formulas ask for.

Left out are operators of which the trace shows too little: packed, sparse and quantized weights.
"""

from __future__ import annotations

_QUERY = ("query", "key", "value")
_GRADIENT = ("grad_out", *_QUERY)
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
    **{f"aten::_scaled_dot_product_{name}": _QUERY for name in (
        "flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable",
        "flash_attention_for_cpu")},
    **{f"aten::_scaled_dot_product_{name}_backward": _GRADIENT for name in (
        "flash_attention", "cudnn_attention", "fused_attention_overrideable", "flash_attention_for_cpu")},
    "aten::_scaled_dot_product_efficient_attention_backward": ("grad_out_", *_QUERY),
    "aten::_flash_attention_forward": (*_QUERY, "cum_seq_q", "cum_seq_k"),
    "aten::_flash_attention_backward": (*_GRADIENT, "out", "logsumexp", "cum_seq_q", "cum_seq_k"),
    "aten::_efficient_attention_forward": (*_QUERY, "bias", "cu_seqlens_q", "cu_seqlens_k"),
    "flash_attn::_flash_attn_forward": _QUERY,
    "flash_attn::_flash_attn_backward": _GRADIENT,
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
"""Operator -> names, for all its overloads."""
