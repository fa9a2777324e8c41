"""Sizes and types of the results of calls whose inputs are known.

Only for operators that torch dispatches as a whole; of others, the parts count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from distprof.shape_formulas.traced_inputs import FLOATS, ITEM_BYTES, NUMBERED, TracedTensor

Inputs = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Result:
    """A new tensor."""

    shape: tuple[int, ...]
    dtype: str

    def numel(self) -> int:
        return prod(self.shape)

    def size_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * prod(self.shape)


Results = Callable[[Inputs], Sequence[Result]]


def is_same(inputs: Inputs) -> str:
    """Returns the common type of all tensors, ignoring tensors without dimensions if others have some.

    Raises:
        ValueError: Types differ or are not real floats, so results may have another type.
    """
    tensors = [one for one in inputs if isinstance(one, TracedTensor)]
    kinds = {one.dtype for one in tensors if one.shape} or {one.dtype for one in tensors}
    kind = next(iter(kinds), "")
    if len(kinds) != 1 or kind not in FLOATS or any(one.dtype.startswith("c10::complex") for one in tensors):
        raise ValueError
    return kind


def broadcast(inputs: Inputs) -> tuple[int, ...]:
    """Returns the shape of the result of an elementwise operator.

    Raises:
        ValueError: The sizes do not match.
    """
    shapes = [one.shape for one in inputs if isinstance(one, TracedTensor)]
    found = list[int]()
    for place in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-place] for shape in shapes if len(shape) >= place} - {1}
        if len(sizes) > 1:
            raise ValueError
        found.insert(0, sizes.pop() if sizes else 1)
    return tuple(found)


def elementwise(inputs: Inputs) -> Sequence[Result]:
    """Returns the result of an elementwise operator: the broadcast shape, and the type of the inputs."""
    return [Result(broadcast(inputs), is_same(inputs))]


def compared(inputs: Inputs) -> Sequence[Result]:
    return [Result(broadcast(inputs), "bool")]


def masked(place: int) -> Results:
    """Returns the rule for elementwise operators in which the input at `place` is a mask."""
    return lambda inputs: [Result(broadcast(inputs), is_same([*inputs[:place], *inputs[place + 1:]]))]


def product(left: int, right: int) -> Results:
    """Returns the rule for [..., m, k] times [..., k, n]."""
    return lambda inputs: [Result((*inputs[left].shape[:-1], *inputs[right].shape[-1:]), is_same(inputs))]


def with_vector(inputs: Inputs) -> Sequence[Result]:
    return [Result(inputs[0].shape[:-1], is_same(inputs))]


def like_first(inputs: Inputs) -> Sequence[Result]:
    return [Result(inputs[0].shape, is_same(inputs))]


def softmax(inputs: Inputs) -> Sequence[Result]:
    if inputs[2] is not False:  # half_to_float
        raise ValueError
    return like_first(inputs)


def softmax_backward(inputs: Inputs) -> Sequence[Result]:
    if NUMBERED.get(str(inputs[3])) != is_same(inputs):
        raise ValueError
    return like_first(inputs)


def reduced(inputs: Inputs) -> Sequence[Result]:
    """Returns the result of sum or mean over all or some dimensions."""
    if inputs[-1] is not None:  # a type
        raise ValueError
    if len(inputs) == 2:
        return [Result((), is_same(inputs))]
    source, (dims, keep) = inputs[0], inputs[1:3]
    gone = {dim % source.dim() for dim in dims} if dims else set(range(source.dim()))
    kept = ((1 if dim in gone else size) for dim, size in enumerate(source.shape) if keep is True or dim not in gone)
    return [Result(tuple(kept), is_same(inputs))]


def layer_norm(inputs: Inputs) -> Sequence[Result]:
    """Returns the result, mean and 1 / deviation; on devices, the latter are of float32 for half precision."""
    source, normalized = inputs[0], len(inputs[1])
    each = Result((*source.shape[:source.dim() - normalized], *(1 for _ in range(normalized))),
                  "double" if source.dtype == "double" else "float")
    return [Result(source.shape, source.dtype), each, each]


def layer_norm_backward(inputs: Inputs) -> Sequence[Result]:
    wanted = zip(inputs[7], (inputs[1], inputs[5], inputs[6]), strict=True)
    return [Result(one.shape, one.dtype) for is_wanted, one in wanted if is_wanted is True]


def dropout(inputs: Inputs) -> Sequence[Result]:
    if inputs[2] is False:
        raise ValueError
    return [*like_first(inputs), Result(inputs[0].shape, "bool")]


def copied(inputs: Inputs) -> Sequence[Result]:
    return [Result(inputs[0].shape, inputs[0].dtype)]


def converted(inputs: Inputs) -> Sequence[Result]:
    return [Result(inputs[0].shape, inputs[0].dtype if inputs[1] is None else NUMBERED[str(inputs[1])])]


def embedding_backward(inputs: Inputs) -> Sequence[Result]:
    return [Result((inputs[2], inputs[0].shape[-1]), inputs[0].dtype)]


def attention_on_cpu(inputs: Inputs) -> Sequence[Result]:
    """Returns the result, and the logsumexp of the scores."""
    kind, query = is_same(inputs), inputs[0].shape
    return [Result((*query[:-1], inputs[2].shape[-1]), kind), Result(query[:-1], "double" if kind == "double" else
                                                                     "float")]


def attention_backward_on_cpu(inputs: Inputs) -> Sequence[Result]:
    return [Result(one.shape, one.dtype) for one in inputs[1:4]]


def convolved(source: int, weight: int, stride: int, padding: int, dilation: int) -> Results:
    """Returns the rule for a convolution that is not transposed; parameters are positions of its inputs."""
    def results(inputs: Inputs) -> Sequence[Result]:
        image, kernel = inputs[source].shape, inputs[weight].shape
        dims = len(kernel) - 2
        steps = zip(image[2:], kernel[2:], *(_each(inputs[place], dims) for place in (stride, padding, dilation)),
                    strict=True)
        sizes = tuple((size + 2 * pad - apart * (width - 1) - 1) // step + 1 for size, width, step, pad, apart in steps)
        if min(sizes, default=0) < 0 or len(image) != len(kernel):
            raise ValueError
        return [Result((image[0], kernel[0], *sizes), inputs[source].dtype)]

    return results


def either_convolution(inputs: Inputs) -> Sequence[Result]:
    """Returns the result of an operator with inputs stride, padding, dilation, `transposed`, output_padding and groups
    from position 3."""
    if inputs[6] is False:
        return convolved(0, 1, 3, 4, 5)(inputs)
    image, kernel = inputs[0].shape, inputs[1].shape
    if inputs[6] is not True or len(image) != len(kernel):
        raise ValueError
    steps = zip(image[2:], kernel[2:], *(_each(inputs[place], len(kernel) - 2) for place in (3, 4, 5, 7)), strict=True)
    sizes = ((size - 1) * step - 2 * pad + apart * (width - 1) + more + 1
             for size, width, step, pad, apart, more in steps)
    return [Result((image[0], kernel[1] * inputs[8], *sizes), inputs[0].dtype)]


def convolution_backward(inputs: Inputs) -> Sequence[Result]:
    kind, (source, weight, bias) = is_same(inputs), inputs[1:4]
    shapes = (source.shape, weight.shape, tuple(bias or ()))
    return [Result(shape, kind) for is_wanted, shape in zip(inputs[10], shapes, strict=True) if is_wanted is True]


def _each(values: object, dims: int) -> Sequence[int]:
    """Returns one number per dimension; a single number applies to all.

    Raises:
        ValueError: They are not integers.
    """
    if not isinstance(values, list) or not all(type(one) is int for one in values):
        raise ValueError
    return values * dims if len(values) == 1 else values
