"""MACs of quantized operators; integer multiply-accumulates count like others.

A packed convolution weight is unpacked to get its shape; that of a linear layer follows from the output.
"""

from __future__ import annotations

from math import prod
from typing import Any

from distprof.shape_formulas.matmul import into_output, out_of
from distprof.shape_formulas.operator_call import Formula, OperatorCall


def _per_position(call: OperatorCall) -> int:
    packed: Any = call.arguments.get("packed_weight")
    weight = (call["weight"] if packed is None else packed).unpack()[0]
    return prod(map(int, weight.shape[1:]))


def packed_convolution(call: OperatorCall) -> int:
    """Each output element is a sum over the kernel."""
    return int(call.first_output.numel()) * _per_position(call)


def packed_transposed_convolution(call: OperatorCall) -> int:
    """Each input element is spread over the kernel."""
    return int(call["qx"].numel()) * _per_position(call)


def recurrent_cell(gates: int) -> Formula:
    """One step: input and hidden state times a matrix with one row per gate and hidden unit."""

    def macs(call: OperatorCall) -> int:
        state = call["hx"][0] if isinstance(call["hx"], (list, tuple)) else call["hx"]
        return gates * int(state.shape[-1]) * int(call["input"].numel() + state.numel())

    return macs


def recurrent_layers(gates: int) -> Formula:
    """Every step times the two matrices of each layer, with one row per gate and hidden unit."""

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
