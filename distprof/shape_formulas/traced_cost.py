"""FLOPs and bytes of a call in a trace, from the shapes of its inputs.

Bytes are those that a call reads and writes if it moves every tensor once; they are known if the inputs determine the
results. A tensor that is passed twice counts twice, because a trace does not show that it is the same. A tensor without
dimensions next to others does not count: most of them are numbers that torch converted to tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from distprof.shape_formulas import traced_results as results
from distprof.shape_formulas.attention import (
    ATTENTION,
    attention_backward,
    attention_forward,
    bottom_right_window,
    dense_pairs,
)
from distprof.shape_formulas.convolution import CONVOLUTION
from distprof.shape_formulas.estimates import ESTIMATES
from distprof.shape_formulas.matmul import MATMUL, RECURRENT
from distprof.shape_formulas.operator_call import Macs, MacsFormula, OperatorCall, real_share
from distprof.shape_formulas.traced_inputs import UNKNOWN, TracedTensor, inputs_of
from distprof.shape_formulas.traced_names import ARGUMENTS, is_split, kind_by_name
from distprof.shape_formulas.traced_results import Results, convolved, either_convolution

MOST = 1 << 53
"""Larger results are taken for errors; up to this limit, floats represent integers exactly."""
_BATCHES = dense_pairs(heads_first=False, window=bottom_right_window)
_FORMULAS: dict[str, MacsFormula] = {
    **MATMUL, **CONVOLUTION, **ATTENTION, **RECURRENT,
    **dict.fromkeys(("aten::_flash_attention_forward", "aten::_efficient_attention_forward",
                     "flash_attn::_flash_attn_forward"), attention_forward(_BATCHES)),
    **dict.fromkeys(("aten::_flash_attention_backward", "flash_attn::_flash_attn_backward"),
                    attention_backward(_BATCHES)),
}
FORMULAS = {op: _FORMULAS[op] for op in ARGUMENTS}
"""Contractions whose cost follows from what the profiler records -> formula."""
_RESULTS: dict[str, Results] = {
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"), either_convolution),
    "aten::cudnn_convolution": convolved(0, 1, 3, 2, 4),
    **dict.fromkeys(("aten::mkldnn_convolution", "aten::miopen_convolution", "aten::miopen_depthwise_convolution"),
                    convolved(0, 1, 4, 3, 5)),
    "aten::cudnn_convolution_relu": convolved(0, 1, 3, 4, 5),
    "aten::cudnn_convolution_add_relu": convolved(0, 1, 5, 6, 7),
}
"""Operators whose formulas need the results -> function that returns these."""
_LENGTHS = ("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k")
"""Arguments with the bounds of packed sequences, whose values are not in traces."""
_FACTORS = (("mat1", "mat2"), ("batch1", "batch2"), ("self", "mat2"))
_FACTORS_OF = {op: pair for op, names in ARGUMENTS.items() if "grouped" not in op and "foreach" not in op
               for pair in reversed(_FACTORS) if {*pair} <= {*names}}
"""Operator -> names of its two factors: the first matching pair of `_FACTORS`, because `self` may be a summand."""
_CANNOT = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, ZeroDivisionError)


class TracedCost(NamedTuple):
    """Cost of a call; None if the inputs do not determine it."""

    flops: int | None
    """None also for unknown operators."""
    num_bytes: int | None


def is_whole(op: str) -> bool:
    """Returns whether torch dispatches an operator as a whole: slices nested in it are part of it."""
    return op in FORMULAS or (has_no_flops(op) and not is_split(op))


@lru_cache(maxsize=1 << 12)
def has_no_flops(op: str) -> bool:
    """Returns whether an operator is known not to be a contraction."""
    return op in ESTIMATES or kind_by_name(op) is not None


def traced_cost(op: str, dims: object, types: object, strides: object, values: object) -> TracedCost:
    """Returns the cost of one call of an operator.

    Args:
        op: Its name, like `aten::mm`; it must be dispatched as a whole.
        dims: "Input Dims" of the slice, decoded; these and the following are None if missing.
        types: "Input type".
        strides: "Input Strides".
        values: "Concrete Inputs".
    """
    flops = 0 if has_no_flops(op) else None
    if op not in FORMULAS and op not in TRAFFIC:
        return TracedCost(flops, None)
    try:
        inputs = inputs_of(dims, types, strides, values)
    except _CANNOT:
        return TracedCost(flops, None)
    return TracedCost(_flops(op, inputs), _bytes(op, inputs) if op in TRAFFIC else None)


def _bytes(op: str, inputs: Sequence[Any]) -> int | None:
    try:
        found = traced_bytes(op, inputs)
    except _CANNOT:
        return None
    return found if 0 <= found < MOST else None


def _flops(op: str, inputs: Sequence[Any]) -> int | None:
    if op not in FORMULAS:
        return 0 if has_no_flops(op) else None
    try:
        arguments = dict(zip(ARGUMENTS[op], inputs, strict=False))
        _check(op, arguments)
        results = _RESULTS[op](inputs) if op in _RESULTS else None
        macs = Macs.of(FORMULAS[op](OperatorCall({"is_causal": False} | arguments, results)))
        found = 2 * macs.times(*real_share(op, arguments)).full
    except _CANNOT:
        return None
    return found if 0 <= found < MOST else None


def _check(op: str, arguments: dict[str, Any]) -> None:
    """Raises a ValueError if sizes do not match or the formula would misinterpret an argument."""
    if "attention" in op and any(arguments.get(name) is not None for name in _LENGTHS):
        raise ValueError
    pair = _FACTORS_OF.get(op)
    if pair is not None:
        left, right = (arguments[name].shape for name in pair)
        if len(left) != len(right) or left[-1] != right[-2] or left[:-2] != right[:-2]:
            raise ValueError
    if op in RECURRENT and arguments["input"].dim() != 3 and not arguments["batch_sizes"]:
        raise ValueError
    if "output_mask" in ARGUMENTS[op] and not _is_mask(arguments["output_mask"]):
        raise ValueError
    if "transposed" in ARGUMENTS[op] and type(arguments["transposed"]) is not bool:
        raise ValueError
    if any(one is UNKNOWN for name, one in arguments.items() if name in ("batch_sizes", "weight")):
        raise ValueError


def _is_mask(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is bool for one in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """What an operator reads and writes."""

    most: int
    """Number of tensor inputs, which come first; a later tensor is `out=`."""
    results: results.Results | None = None
    """Returns the results; None if the operator works in place."""
    reads_result: bool = True
    """False for in-place operators that only overwrite."""
    places: tuple[int, ...] | None = None
    """Positions of the tensor inputs, if they are not the first inputs."""
    length: int | None = None
    """Required number of inputs, if an overload with more inputs returns another type."""


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
"""Operators whose bytes are known; torch dispatches them as a whole."""


def traced_bytes(op: str, inputs: Sequence[Any]) -> int:
    """Returns the bytes that one call reads and writes.

    Raises:
        ValueError: The inputs do not determine them; also KeyError, IndexError, TypeError or AttributeError.
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
