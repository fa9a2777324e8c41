"""FLOPs of one call as torch.profiler estimates them (`with_flops=True`), from what it writes of the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

Shapes = Sequence[Sequence[int]]


def torch_flops(op: str, shapes: str, inputs: str) -> int:
    """The estimate; 0 where torch has none.

    Args:
        op: Its name.
        shapes: `Input Dims`; '' where they were not written, as in `inputs`.
        inputs: `Concrete Inputs`.
    """
    estimate = _ESTIMATES.get(op)
    if estimate is None:
        return 0
    try:
        dims = msgspec.json.decode(shapes, type=list[list[int]])
        return estimate(dims, msgspec.json.decode(inputs or "[]", type=list[str]))
    except (msgspec.DecodeError, IndexError, TypeError, ValueError, ZeroDivisionError):
        return 0


def _product(left: Sequence[int], right: Sequence[int]) -> int:
    """Of two matrices, or of two batches of them."""
    if len(left) != len(right) or len(left) not in (2, 3) or not left[-1]:
        return 0
    batch = left[0] if len(left) == 3 else 1
    return 2 * math.prod(left) * math.prod(right) // (left[-1] * batch)


def _convolution(dims: Shapes, inputs: Sequence[str]) -> int:
    image, kernel = dims[:2]
    if len(image) != 4 or len(kernel) != 4:
        return 0
    stride, padding, dilation = (msgspec.json.decode(text, type=list[int]) for text in inputs[3:6])
    height, width = ((image[axis + 2] + 2 * padding[axis] - dilation[axis] * (kernel[axis + 2] - 1) - 1) // stride[axis]
                     + 1 for axis in range(2))
    per_output = 2 * kernel[2] * kernel[3] * image[1] * kernel[0]
    return image[0] * height * width * per_output // int(inputs[6])


_ESTIMATES: dict[str, Callable[[Shapes, Sequence[str]], int]] = {
    "aten::conv2d": _convolution,
    "aten::mm": lambda dims, _: _product(dims[0], dims[1]),
    "aten::addmm": lambda dims, _: _product(dims[1], dims[2]),
    "aten::bmm": lambda dims, _: _product(dims[0], dims[1]),
    "aten::baddbmm": lambda dims, _: _product(dims[1], dims[2]),
    "aten::mul": lambda dims, _: math.prod(dims[0]),
    "aten::add": lambda dims, _: math.prod(dims[0])}
"""Name -> from shapes and other inputs. Products of tensors that broadcast count the first one alone."""
