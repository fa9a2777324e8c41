"""Operators whose multiply-accumulates (MACs) are counted exactly: torch's own, quantized ones and third-party ones.

Integer multiply-accumulates of quantized operators count like others. A packed convolution weight is unpacked to get
its shape; that of a linear layer follows from the output.

flash_attn 2 and 3, xformers (ROCm), torchvision and bitsandbytes need not be installed. Names and schemas are those of
Dao-AILab/flash-attention (flash_attn_interface.py, hopper/), xformers (csrc/attention), torchvision
(csrc/ops/deform_conv2d.cpp) and bitsandbytes (bitsandbytes/_ops.py). Other kernels of xformers register formulas with
torch, which count too.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from distprof.formulas.attention import FLEX, PACKED_ATTENTION, mask_type_window, packed_pairs
from distprof.shape_formulas.attention import ATTENTION, attention_backward, attention_forward, bottom_right_window
from distprof.shape_formulas.convolution import CONVOLUTION, convolution, one_way_backward
from distprof.shape_formulas.matmul import MATMUL, NESTED_MATMUL, RECURRENT, into_output, out_of
from distprof.shape_formulas.operator_call import Formula, Macs, MacsFormula, OperatorCall


def _per_position(call: OperatorCall) -> int:
    packed: Any = call.arguments.get("packed_weight")
    weight = (call["weight"] if packed is None else packed).unpack()[0]
    return prod(map(int, weight.shape[1:]))


def packed_convolution(call: OperatorCall) -> int:
    """Returns the MACs of a packed convolution: each output element is a sum over the kernel."""
    return int(call.first_output.numel()) * _per_position(call)


def packed_transposed_convolution(call: OperatorCall) -> int:
    """Returns the MACs of a packed transposed convolution: each input element is multiplied with the whole kernel."""
    return int(call["qx"].numel()) * _per_position(call)


def recurrent_cell(gates: int) -> Formula:
    """Returns the formula for one step: input and hidden state times a matrix with one row per gate and hidden unit."""

    def macs(call: OperatorCall) -> int:
        state = call["hx"][0] if isinstance(call["hx"], (list, tuple)) else call["hx"]
        return gates * int(state.shape[-1]) * int(call["input"].numel() + state.numel())

    return macs


def recurrent_layers(gates: int) -> Formula:
    """Returns the formula for all steps: input and state times the two matrices of each layer, a row per gate and
    unit."""

    def macs(call: OperatorCall) -> int:
        source = call.arguments.get("input")
        source = call["data"] if source is None else source
        state = call["hx"][0] if isinstance(call["hx"], (list, tuple)) else call["hx"]
        hidden, width, both = int(state.shape[-1]), int(source.shape[-1]), 1 + bool(call["bidirectional"])
        first = width + hidden
        further = (int(call["num_layers"]) - 1) * (both * hidden + hidden)
        steps = int(source.numel()) // max(width, 1)
        return steps * both * gates * hidden * (first + further)

    return macs


QUANTIZED: dict[str, Formula] = {
    **{f"{space}::linear{kind}": into_output("X") for space, kinds in (
        ("quantized", ("", "_relu", "_leaky_relu", "_tanh", "_dynamic", "_relu_dynamic", "_dynamic_fp16",
                       "_relu_dynamic_fp16", "_with_input_q_dq_qweight_dq_output_fp32",
                       "_with_input_q_dq_qweight_dq_relu_output_fp32", "_dynamic_fp16_unpacked_weight")),
        ("_quantized", ("", "_dynamic"))) for kind in kinds},
    **{f"{space}::conv{dims}d{kind}": packed_convolution for space, kinds in (
        ("quantized", ("", "_relu", "_dynamic")), ("_quantized", ("", "_relu"))) for dims in (1, 2, 3)
        for kind in kinds if (space, dims) != ("_quantized", 1)},
    "quantized::conv2d_add": packed_convolution,
    "quantized::conv2d_add_relu": packed_convolution,
    **{f"quantized::conv_transpose{dims}d{kind}": packed_transposed_convolution for dims in (1, 2, 3)
       for kind in ("", "_dynamic")},
    "_quantized::conv_transpose1d": packed_transposed_convolution,
    "_quantized::conv_transpose2d": packed_transposed_convolution,
    "quantized::int4mm_packed_weight_cpu": into_output("self"),
    "quantized::matmul": out_of("qa", "qb"),
    "_quantized::wrapped_fbgemm_linear_fp16_weight": into_output("X"),
    "_quantized::wrapped_quantized_linear": into_output("X"),
    "quantized::quantized_lstm_cell_dynamic": recurrent_cell(4),
    "quantized::quantized_gru_cell_dynamic": recurrent_cell(3),
    "quantized::quantized_rnn_relu_cell_dynamic": recurrent_cell(1),
    "quantized::quantized_rnn_tanh_cell_dynamic": recurrent_cell(1),
    "aten::quantized_lstm": recurrent_layers(4),
    "aten::quantized_gru": recurrent_layers(3),
    "sparse::qlinear": into_output("X"),
    "sparse::qlinear_relu": into_output("X"),
    "sparse::qlinear_dynamic": into_output("X"),
    "sparse::qlinear_relu_dynamic": into_output("X"),
    "onednn::qlinear_pointwise": into_output("qx"),
    "onednn::linear_dynamic_fp16": into_output("x"),
    "onednn::linear_relu_dynamic_fp16": into_output("x"),
}


SHORT = {"query": "q", "key": "k", "value": "v"}


def renamed(formula: MacsFormula, names: dict[str, str]) -> MacsFormula:
    """Adapts a formula to a schema with other argument names: `names` maps the formula's names to those of the
    schema."""

    def macs(call: OperatorCall) -> int | Macs:
        given = {ours: call.arguments[theirs] for ours, theirs in names.items() if theirs in call.arguments}
        return formula(OperatorCall(call.arguments | given, call.output))

    return macs


def _flash(formula: Callable[..., MacsFormula], **names: str) -> MacsFormula:
    pairs = packed_pairs("cu_seqlens_q", "cu_seqlens_k", window=bottom_right_window,
                         longest=("max_seqlen_q", "max_seqlen_k"), used="seqused_k")
    return renamed(formula(pairs), SHORT | names)


def four_bits(call: OperatorCall) -> int:
    """Returns the MACs of [..., k] times a transposed 4-bit weight; only `shapeB` shows its shape [n, k]."""
    return int(call["A"].numel() * call["shapeB"][0])


def eight_bits(call: OperatorCall) -> int:
    """Returns the MACs of [..., k] times the transposed [n, k]."""
    return int(call["A"].numel() * call["B"].shape[0])


def eight_bits_with_outliers(call: OperatorCall) -> int:
    """Returns the MACs of the same, plus those of the columns with outliers, which are multiplied again in higher
    precision."""
    columns, rows = call["CB"].shape[0], call["A"].numel() // max(call["A"].shape[-1], 1)
    outliers = call["outlier_cols"].numel() if call.arguments.get("outlier_cols") is not None else 0
    return int(columns * (call["A"].numel() + rows * outliers))


_CK = packed_pairs("seqstart_q", "seqstart_k", window=mask_type_window, longest=("max_seqlen_q", "max_seqlen_k"),
                   used="seqlen_k")

THIRD_PARTY: dict[str, MacsFormula] = {
    "flash_attn::_flash_attn_forward": _flash(attention_forward, is_causal="causal"),
    "flash_attn::_flash_attn_backward": _flash(attention_backward, is_causal="causal"),
    "flash_attn::_flash_attn_varlen_forward": _flash(attention_forward, is_causal="causal"),
    "flash_attn::_flash_attn_varlen_backward": _flash(attention_backward, is_causal="causal"),
    "flash_attn_3::_flash_attn_forward": _flash(attention_forward, is_causal="causal"),
    "flash_attn_3::_flash_attn_backward": _flash(attention_backward, seqused_k="sequed_k"),
    "flash_attn_3::fwd": _flash(attention_forward),
    "flash_attn_3::bwd": _flash(attention_backward),
    "xformers::efficient_attention_forward_ck": attention_forward(_CK),
    "xformers::efficient_attention_backward_ck": attention_backward(_CK),
    "bitsandbytes::gemm_4bit": four_bits,
    "bitsandbytes::gemv_4bit": four_bits,
    "bitsandbytes::int8_linear_matmul": eight_bits,
    "bitsandbytes::int8_scaled_mm": eight_bits,
    "bitsandbytes::int8_mixed_scaled_mm": eight_bits_with_outliers,
    # convolutions over sampled positions; the sampling is not a contraction
    "torchvision::deform_conv2d": convolution(),
    "torchvision::_deform_conv2d_backward": one_way_backward("grad"),
}
"""Operators that exist only if their package is loaded."""


MACS: dict[str, MacsFormula] = {
    **MATMUL, **CONVOLUTION, **ATTENTION, **PACKED_ATTENTION, **FLEX, **RECURRENT, **QUANTIZED, **THIRD_PARTY,
}
"""Qualified name of an operator (all overloads) -> MACs of one call."""

LOOK_AT_VALUES = frozenset((*PACKED_ATTENTION, *FLEX, *THIRD_PARTY, *NESTED_MATMUL))
"""Operators whose formulas may read tensor values, such as lengths of sequences."""
