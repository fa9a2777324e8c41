"""Bytes that a call reads and writes if it moves every tensor once, as far as its inputs tell its results.

A tensor that is given twice counts twice: a trace does not tell that it is the same. One without dimensions beside
others counts nothing: most are numbers, which torch makes tensors of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distprof.shape_formulas import traced_results as results
from distprof.shape_formulas.traced_inputs import UNKNOWN, TracedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """What an operator reads and writes."""

    most: int
    """Tensors among its inputs, which are the first ones: one further back is `out=`."""
    results: results.Results | None = None
    """None: in place."""
    reads_result: bool = True
    """In place: False where it only overwrites."""
    places: tuple[int, ...] | None = None
    """Of the tensors, where they are not the first inputs."""
    length: int | None = None
    """Number of inputs, where an overload with more of them returns another type."""


_UNARY = """neg exp expm1 log log1p log2 sqrt rsqrt sin cos tan tanh erf reciprocal floor ceil round sigmoid
    relu gelu silu hardswish hardsigmoid mish leaky_relu elu sign trunc clamp_min clamp_max clamp tril triu"""
_BINARY = """add sub mul div fmod remainder threshold_backward gelu_backward silu_backward
    sigmoid_backward tanh_backward hardswish_backward leaky_relu_backward pow atan2"""
_TERNARY = "addcmul addcdiv lerp"
_COMPARED = "eq ne lt le gt ge"
_BACKWARD = "_backward"


def _named(names: str, most: int, **more: Any) -> dict[str, _Traffic]:
    return {f"aten::{name}": _Traffic(most=most, **more) for name in names.split()}


def _with_in_place(names: str, most: int) -> dict[str, _Traffic]:
    return {**_named(names, most, results=results.elementwise),
            **_named(" ".join(f"{name}_" for name in names.split() if not name.endswith(_BACKWARD)), most)}


TRAFFIC: dict[str, _Traffic] = {
    **_with_in_place(_UNARY, 1), **_with_in_place(_BINARY, 2), **_with_in_place(_TERNARY, 3),
    **_named(_COMPARED, 2, results=results.compared),
    **_named("isnan isinf", 1, results=results.compared),
    **_named("maximum minimum", 2, results=results.elementwise),
    "aten::where": _Traffic(most=3, results=results.masked(0)),
    "aten::masked_fill": _Traffic(most=2, results=results.masked(1)),
    **_named("copy_", 2, reads_result=False), **_named("zero_ fill_ normal_ uniform_ random_ bernoulli_ exponential_",
                                                       1, reads_result=False),
    **_named("mm bmm", 2, results=results.product(0, 1), length=2),
    **_named("addmm baddbmm", 3, results=results.product(1, 2), length=5),
    **_named("addmm_ baddbmm_", 3),
    "aten::mv": _Traffic(most=2, results=results.with_vector),
    **_named("convolution convolution_overrideable", 3, results=results.either_convolution),
    "aten::convolution_backward": _Traffic(most=3, results=results.convolution_backward),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Traffic(
        most=4, results=results.attention_on_cpu, places=(0, 1, 2, 5)),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Traffic(
        most=7, results=results.attention_backward_on_cpu, places=(0, 1, 2, 3, 4, 5, 8)),
    **_named("_softmax _log_softmax", 1, results=results.softmax),
    **_named("_softmax_backward_data _log_softmax_backward_data", 2, results=results.softmax_backward),
    **_named("sum mean", 1, results=results.reduced),
    "aten::native_layer_norm": _Traffic(most=3, results=results.layer_norm, places=(0, 2, 3)),
    "aten::native_layer_norm_backward": _Traffic(most=6, results=results.layer_norm_backward,
                                                 places=(0, 1, 3, 4, 5, 6)),
    "aten::native_dropout": _Traffic(most=1, results=results.dropout),
    "aten::clone": _Traffic(most=1, results=results.copied),
    "aten::_to_copy": _Traffic(most=1, results=results.converted),
    "aten::embedding_dense_backward": _Traffic(most=2, results=results.embedding_backward),
    "aten::embedding": _Traffic(most=2),
}
"""Operators that torch dispatches as a whole."""


def traced_bytes(op: str, inputs: Sequence[Any]) -> int:
    """Bytes of one call.

    Raises:
        ValueError: The inputs do not tell them; also KeyError, IndexError, TypeError or AttributeError.
    """
    traffic = TRAFFIC[op]
    places = traffic.places or tuple(range(traffic.most))
    tensors = [one for one in inputs if isinstance(one, TracedTensor)]
    if any(one is UNKNOWN or (isinstance(one, list) and any(isinstance(inner, TracedTensor) for inner in one))
           for one in inputs) or any(isinstance(one, TracedTensor) and place not in places
                                     for place, one in enumerate(inputs)):
        raise ValueError
    if not tensors or inputs[places[0]] is not tensors[0] or len(inputs) != (traffic.length or len(inputs)):
        raise ValueError
    sized = [one for one in tensors if one.shape] or tensors
    if len(sized) > 1 and not sized[0].shape:
        raise ValueError
    read = sum(one.size_bytes() for one in sized)
    if op == "aten::embedding":  # reads as many elements of the table as it returns
        table, indices = tensors
        return indices.size_bytes() + 2 * results.Result((*indices.shape, table.shape[1]), table.dtype).size_bytes()
    if traffic.results is not None:
        return read + sum(one.size_bytes() for one in traffic.results(inputs))
    return read + (tensors[0].size_bytes() if traffic.reads_result else 0)
