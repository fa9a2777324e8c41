"""MACs of quantized operators: a weight that is packed gives its shape on request, a linear one not even that.

Integer multiply-accumulates count like others.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from distprof.formulas.call import Call

Formula = Callable[[Call], int]


def linear(image: str = "X") -> Formula:
    """[..., k] times a packed weight: n is the last size of the output."""
    return lambda call: int(call[image].numel() * call.first_output.shape[-1])


def _per_position(call: Call) -> int:
    packed: Any = call.arguments.get("packed_weight")
    weight = (call["weight"] if packed is None else packed).unpack()[0]
    return prod(map(int, weight.shape[1:]))


def convolution(call: Call) -> int:
    """Each output element sums a kernel's worth of products."""
    return int(call.first_output.numel()) * _per_position(call)


def transposed(call: Call) -> int:
    """Each input element is spread over a kernel's worth of outputs."""
    return int(call["qx"].numel()) * _per_position(call)


def cell(gates: int) -> Formula:
    """One step: input and hidden state meet a matrix with a row for each gate of each hidden unit."""

    def macs(call: Call) -> int:
        state = call["hx"][0] if isinstance(call["hx"], (list, tuple)) else call["hx"]
        return gates * int(state.shape[-1]) * int(call["input"].numel() + state.numel())

    return macs


def layers(gates: int) -> Formula:
    """Every step of every sequence meets each layer's two matrices, with a row for each gate of each hidden unit."""

    def macs(call: Call) -> int:
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
    **{f"{space}::linear{kind}": linear() for space, kinds in (
        ("quantized", ("", "_relu", "_leaky_relu", "_tanh", "_dynamic", "_relu_dynamic", "_dynamic_fp16",
                       "_relu_dynamic_fp16", "_with_input_q_dq_qweight_dq_output_fp32",
                       "_with_input_q_dq_qweight_dq_relu_output_fp32", "_dynamic_fp16_unpacked_weight")),
        ("_quantized", ("", "_dynamic"))) for kind in kinds},
    **{f"{space}::conv{dims}d{kind}": convolution for space, kinds in (
        ("quantized", ("", "_relu", "_dynamic")), ("_quantized", ("", "_relu"))) for dims in (1, 2, 3)
        for kind in kinds if (space, dims) != ("_quantized", 1)},
    "quantized::conv2d_add": convolution,
    "quantized::conv2d_add_relu": convolution,
    **{f"quantized::conv_transpose{dims}d{kind}": transposed for dims in (1, 2, 3) for kind in ("", "_dynamic")},
    "_quantized::conv_transpose1d": transposed,
    "_quantized::conv_transpose2d": transposed,
    "quantized::int4mm_packed_weight_cpu": linear("self"),
    "quantized::matmul": lambda call: int(call["qa"].numel() * call["qb"].shape[-1]),
    "_quantized::wrapped_fbgemm_linear_fp16_weight": linear(),
    "_quantized::wrapped_quantized_linear": linear(),
    "quantized::quantized_lstm_cell_dynamic": cell(4),
    "quantized::quantized_gru_cell_dynamic": cell(3),
    "quantized::quantized_rnn_relu_cell_dynamic": cell(1),
    "quantized::quantized_rnn_tanh_cell_dynamic": cell(1),
    "aten::quantized_lstm": layers(4),
    "aten::quantized_gru": layers(3),
    "sparse::qlinear": linear(),
    "sparse::qlinear_relu": linear(),
    "sparse::qlinear_dynamic": linear(),
    "sparse::qlinear_relu_dynamic": linear(),
    "onednn::qlinear_pointwise": linear("qx"),
    "onednn::linear_dynamic_fp16": linear("x"),
    "onednn::linear_relu_dynamic_fp16": linear("x"),
}
