"""Sizes and types of the results of operators of devices: norms, attention, scaled and grouped products.

Sizes and types are those of the kernels for CUDA and ROCm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distprof.shape_formulas.traced_inputs import NUMBERED, TracedTensor
from distprof.shape_formulas.traced_results import Inputs, Result, Results

EFFICIENT_ALIGNMENT = 32
"""The memory-efficient kernels of torch round the length of the logsumexp up to a multiple of this."""


def _statistics(dtype: str) -> str:
    """Returns the type in which kernels compute sums."""
    return "double" if dtype == "double" else "float"


def _dtype_at(inputs: Inputs, place: int, default: str) -> str:
    given = inputs[place] if place < len(inputs) else None
    return default if given is None else NUMBERED[str(given)]


def scaled_product(inputs: Inputs) -> Sequence[Result]:
    """Returns [m, k] times [k, n] with scales, in the requested type."""
    left, right = inputs[:2]
    return [Result((left.shape[0], right.shape[1]), _dtype_at(inputs, 6, left.dtype))]


def grouped_product(offsets: int, out_dtype: int, default: str | None) -> Results:
    """Returns the rule for products of groups of rows, columns or inner elements, whose ends are at `offsets`."""
    def results(inputs: Inputs) -> Sequence[Result]:
        left, right = inputs[:2]
        if left.dim() == right.dim() == 2:  # groups of inner elements
            groups: tuple[int, ...] = tuple(inputs[offsets].shape)
        else:
            groups = left.shape[:1] if left.dim() == right.dim() == 3 else ()
        return [Result((*groups, left.shape[-2], right.shape[-1]), _dtype_at(inputs, out_dtype, default or left.dtype))]

    return results


def rms_norm(inputs: Inputs) -> Sequence[Result]:
    source, normalized = inputs[0], len(inputs[1])
    rows = source.shape[:source.dim() - normalized]
    return [Result(source.shape, source.dtype), Result(rows, _statistics(source.dtype))]


def rms_norm_backward(inputs: Inputs) -> Sequence[Result]:
    return _wanted(inputs[5], (inputs[1], inputs[4]))


def batch_norm(inputs: Inputs) -> Sequence[Result]:
    """Returns the result, and mean and 1 / deviation of each channel.

    Raises:
        ValueError: Statistics are not computed, which some kernels nevertheless return and some do not.
    """
    source, is_training = inputs[0], inputs[5]
    if is_training is not True:
        raise ValueError
    each = Result(source.shape[1:2], _statistics(source.dtype))
    return [Result(source.shape, source.dtype), each, each]


def batch_norm_backward(inputs: Inputs) -> Sequence[Result]:
    bias = inputs[2]  # of the same size and type
    return _wanted(inputs[9], (inputs[1], inputs[2], bias))


def library_batch_norm_backward(inputs: Inputs) -> Sequence[Result]:
    source, weight = inputs[0], inputs[2]
    return [Result(one.shape, one.dtype) for one in (source, weight, weight)]


def group_norm(inputs: Inputs) -> Sequence[Result]:
    """Returns the result, and mean and 1 / deviation of each group, in the type of the weight."""
    source, weight = inputs[0], inputs[1]
    each = Result((inputs[3], inputs[6]), source.dtype if weight is None else weight.dtype)
    return [Result(source.shape, source.dtype), each, each]


def group_norm_backward(inputs: Inputs) -> Sequence[Result]:
    return _wanted(inputs[9], (inputs[1], inputs[4], inputs[4]))


def attention(keeps: int | None = None, alignment: int = 1) -> Results:
    """Returns the rule for fused attention.

    Args:
        keeps: Place of the input that says whether the logsumexp is returned; None: it always is.
        alignment: The length of the logsumexp is a multiple of this.
    """
    def results(inputs: Inputs) -> Sequence[Result]:
        query, value = inputs[0], inputs[2]
        batch, heads, length, _ = query.shape
        found = [Result((batch, heads, length, value.shape[-1]), query.dtype)]
        if keeps is None or inputs[keeps] is True:
            found.append(Result((batch, heads, -(-length // alignment) * alignment), "float"))
        return found

    return results


def attention_backward(mask: int | None = None) -> Results:
    """Returns the rule for the gradients of query, key and value; at `mask`, the inputs say which are wanted."""
    def results(inputs: Inputs) -> Sequence[Result]:
        bias = inputs[4] if mask is not None else None
        return _wanted([True] * 3 if mask is None else inputs[mask], (*inputs[1:4], *([bias] if bias else [])))

    return results


def _wanted(mask: Any, tensors: Sequence[TracedTensor | None]) -> Sequence[Result]:
    """Returns gradients of these tensors where the mask says so."""
    return [Result(one.shape, one.dtype) for is_wanted, one in zip(mask, tensors, strict=False)
            if is_wanted is True and one is not None]
