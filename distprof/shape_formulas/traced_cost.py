"""FLOPs and bytes of a call in a trace, from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

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
from distprof.shape_formulas.traced_bytes import bytes_known, traced_bytes
from distprof.shape_formulas.traced_inputs import UNKNOWN, inputs_of
from distprof.shape_formulas.traced_names import ARGUMENTS, is_fused, is_split, kind_by_name
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
_MASKS = ("is_causal", "window_size_left", "window_size_right")
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
    causal_flops: int | None
    """Without (query, key) pairs that a causal mask or a window hides."""
    num_bytes: int | None


def is_whole(op: str) -> bool:
    """Returns whether torch dispatches an operator as a whole: slices nested in it are part of it."""
    return op in FORMULAS or (has_no_flops(op) and not is_split(op))


@lru_cache(maxsize=1 << 12)
def has_no_flops(op: str) -> bool:
    """Returns whether an operator is known not to be a contraction."""
    return op in ESTIMATES or kind_by_name(op) is not None or is_fused(op)


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
    if op not in FORMULAS and not bytes_known(op):
        return TracedCost(flops, flops, None)
    try:
        inputs = inputs_of(dims, types, strides, values)
    except _CANNOT:
        return TracedCost(flops, flops, None)
    return TracedCost(*_flops(op, inputs), _bytes(op, inputs) if bytes_known(op) else None)


def _bytes(op: str, inputs: Sequence[Any]) -> int | None:
    try:
        found = traced_bytes(op, inputs)
    except _CANNOT:
        return None
    return found if 0 <= found < MOST else None


def _flops(op: str, inputs: Sequence[Any]) -> tuple[int | None, int | None]:
    if op not in FORMULAS:
        return (0, 0) if has_no_flops(op) else (None, None)
    try:
        arguments = dict(zip(ARGUMENTS[op], inputs, strict=False))
        _check(op, arguments)
        results = _RESULTS[op](inputs) if op in _RESULTS else None
        masks_known = _masks_known(op, arguments)
        unmasked = {} if masks_known else dict.fromkeys(_MASKS)
        macs = Macs.of(FORMULAS[op](OperatorCall(arguments | unmasked, results)))
        macs = macs.times(*real_share(op, arguments))
    except _CANNOT:
        return None, None
    if not 0 <= 2 * macs.full < MOST:
        return None, None
    return 2 * macs.full, 2 * macs.causal if masks_known else None


def _masks_known(op: str, arguments: dict[str, Any]) -> bool:
    """Returns False for attention of which the trace does not show whether it is causal, and with which window."""
    if _MASKS[0] not in ARGUMENTS[op]:
        return op != "aten::_efficient_attention_forward"  # it has a number for the kind of its mask
    is_causal, *window = (arguments.get(name) for name in _MASKS)
    return type(is_causal) is bool and all(size is None or type(size) is int for size in window)


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
