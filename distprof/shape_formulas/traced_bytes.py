"""Bytes that a call in a trace reads and writes if it moves every tensor once, from the shapes of its inputs.

They are known if the inputs determine the results. A tensor that is passed twice counts twice, because a trace does not
show that it is the same. A tensor without dimensions next to others does not count: most of them are numbers that torch
converted to tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from distprof.shape_formulas import device_results as devices
from distprof.shape_formulas import traced_results as results
from distprof.shape_formulas.traced_inputs import UNKNOWN, TracedTensor
from distprof.shape_formulas.traced_names import is_fused

MOST_LOOPS = 3
"""Maximum number of loops of a kernel of torch.compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
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
    ignored: tuple[int, ...] = ()
    """Positions of the seeds of random numbers, and of buffers whose use depends on the device's library."""
    writes: tuple[int, ...] = ()
    """Positions of inputs that are also written, in addition to the results."""


_UNARY = """neg exp expm1 log log1p log2 sqrt rsqrt sin cos tan tanh erf reciprocal floor ceil round sigmoid
    relu gelu silu hardswish hardsigmoid mish leaky_relu elu sign trunc clamp_min clamp_max clamp tril triu"""
_BINARY = """add sub mul div fmod remainder threshold_backward gelu_backward silu_backward
    sigmoid_backward tanh_backward hardswish_backward leaky_relu_backward pow atan2"""
_TERNARY = "addcmul addcdiv lerp"
_COMPARED = "eq ne lt le gt ge"
_BACKWARD = "_backward"


def _named(names: str, most: int, **more: Any) -> dict[str, Traffic]:
    return {f"aten::{name}": Traffic(most=most, **more) for name in names.split()}


def _with_in_place(names: str, most: int) -> dict[str, Traffic]:
    return {**_named(names, most, results=results.elementwise),
            **_named(" ".join(f"{name}_" for name in names.split() if not name.endswith(_BACKWARD)), most)}


TRAFFIC: dict[str, Traffic] = {
    **_with_in_place(_UNARY, 1), **_with_in_place(_BINARY, 2), **_with_in_place(_TERNARY, 3),
    **_named(_COMPARED, 2, results=results.compared),
    **_named("isnan isinf", 1, results=results.compared),
    **_named("maximum minimum", 2, results=results.elementwise),
    "aten::where": Traffic(most=3, results=results.masked(0)),
    "aten::masked_fill": Traffic(most=2, results=results.masked(1)),
    **_named("copy_", 2, reads_result=False), **_named("zero_ fill_ normal_ uniform_ random_ bernoulli_ exponential_",
                                                       1, reads_result=False),
    **_named("mm bmm", 2, results=results.product(0, 1), length=2),
    **_named("addmm baddbmm", 3, results=results.product(1, 2), length=5),
    **_named("addmm_ baddbmm_", 3),
    "aten::mv": Traffic(most=2, results=results.with_vector),
    **_named("convolution convolution_overrideable", 3, results=results.either_convolution),
    "aten::convolution_backward": Traffic(most=3, results=results.convolution_backward),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Traffic(
        most=4, results=results.attention_on_cpu, places=(0, 1, 2, 5)),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Traffic(
        most=7, results=results.attention_backward_on_cpu, places=(0, 1, 2, 3, 4, 5, 8)),
    **_named("_softmax _log_softmax", 1, results=results.softmax),
    **_named("_softmax_backward_data _log_softmax_backward_data", 2, results=results.softmax_backward),
    **_named("sum mean", 1, results=results.reduced),
    "aten::native_layer_norm": Traffic(most=3, results=results.layer_norm, places=(0, 2, 3)),
    "aten::native_layer_norm_backward": Traffic(most=6, results=results.layer_norm_backward,
                                                 places=(0, 1, 3, 4, 5, 6)),
    "aten::native_dropout": Traffic(most=1, results=results.dropout),
    "aten::clone": Traffic(most=1, results=results.copied),
    "aten::_to_copy": Traffic(most=1, results=results.converted),
    "aten::embedding_dense_backward": Traffic(most=2, results=results.embedding_backward),
    "aten::embedding": Traffic(most=2),
    "aten::_scaled_mm": Traffic(most=6, results=devices.scaled_product, length=8),
    "aten::_grouped_mm": Traffic(most=4, results=devices.grouped_product(2, 4, None)),
    "aten::_scaled_grouped_mm": Traffic(most=7, results=devices.grouped_product(4, 7, "c10::BFloat16")),
    "aten::_fused_rms_norm": Traffic(most=1, results=devices.rms_norm, places=(0, 2)),
    "aten::_fused_rms_norm_backward": Traffic(most=4, results=devices.rms_norm_backward, places=(0, 1, 3, 4)),
    **_named("native_batch_norm cudnn_batch_norm miopen_batch_norm", 5, results=devices.batch_norm),
    "aten::native_batch_norm_backward": Traffic(most=7, results=devices.batch_norm_backward),
    **_named("cudnn_batch_norm_backward miopen_batch_norm_backward", 7, results=devices.library_batch_norm_backward,
             ignored=(8,)),
    "aten::native_group_norm": Traffic(most=3, results=devices.group_norm),
    "aten::native_group_norm_backward": Traffic(most=5, results=devices.group_norm_backward),
    "aten::_scaled_dot_product_flash_attention": Traffic(most=3, results=devices.attention()),
    "aten::_scaled_dot_product_efficient_attention": Traffic(
        most=4, results=devices.attention(4, devices.EFFICIENT_ALIGNMENT)),
    "aten::_scaled_dot_product_cudnn_attention": Traffic(most=4, results=devices.attention(4)),
    "aten::_scaled_dot_product_flash_attention_backward": Traffic(
        most=6, results=devices.attention_backward(), ignored=(6, 7, 12, 13)),
    "aten::_scaled_dot_product_efficient_attention_backward": Traffic(
        most=7, results=devices.attention_backward(10), ignored=(7, 8)),
    "aten::_scaled_dot_product_cudnn_attention_backward": Traffic(
        most=6, results=devices.attention_backward(), places=(0, 1, 2, 3, 4, 5, 8), ignored=(6, 7, 9, 10)),
    "_C::rms_norm": Traffic(most=3, reads_result=False),
    "_C::fused_add_rms_norm": Traffic(most=3, writes=(1,)),
}
"""Operators whose bytes are known; torch dispatches them as a whole."""


def bytes_known(op: str) -> bool:
    """Returns whether the bytes of an operator may follow from its inputs."""
    return op in TRAFFIC or is_fused(op)


def traced_bytes(op: str, inputs: Sequence[Any]) -> int:
    """Returns the bytes that one call reads and writes.

    Raises:
        ValueError: The inputs do not determine them; also KeyError, IndexError, TypeError or AttributeError.
    """
    if is_fused(op):
        return _fused_bytes(inputs)
    traffic = TRAFFIC[op]
    inputs = [None if place in traffic.ignored else one for place, one in enumerate(inputs)]
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
    written: int = sum(inputs[place].size_bytes() for place in traffic.writes if inputs[place] is not None)
    if traffic.results is not None:
        return read + written + sum(one.size_bytes() for one in traffic.results(inputs))
    return read + written + (tensors[0].size_bytes() if traffic.reads_result else 0)


def _fused_bytes(inputs: Sequence[Any]) -> int:
    """Returns the bytes of a kernel that torch.compile made: its arguments, of which the trace does not say which are
    written.

    The last arguments are the sizes of its one to three loops. A tensor with more elements is only read in part: a
    table that it looks things up in, or a tensor of which it takes a slice.

    Raises:
        ValueError: A tensor is read in part, or it is unclear which numbers are sizes of loops.
    """
    tensors = [one for one in inputs if isinstance(one, TracedTensor)]
    numbers = [one for one in inputs if type(one) is int]
    loops = {prod(numbers[-count:]) for count in range(1, min(MOST_LOOPS, len(numbers)) + 1)}
    if not tensors or UNKNOWN in inputs or max(one.numel() for one in tensors) not in loops:
        raise ValueError
    return sum(one.size_bytes() for one in tensors)
