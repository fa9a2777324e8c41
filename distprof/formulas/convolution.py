"""MACs of convolutions, groups included: the second size of a weight is already divided by them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from distprof.formulas.call import Call


def _per_position(weight: Any) -> int:
    """MACs for one output element, or, transposed, for one input element: [out, in / groups, *kernel]."""
    return prod(weight.shape[1:])


def forward(call: Call) -> int:
    """Each output element sums a kernel's worth of products; padding counts like data."""
    return int(call.first_output.numel()) * _per_position(call["weight"])


def transposed(image: str) -> Callable[[Call], int]:
    """Each input element is spread over a kernel's worth of outputs."""
    return lambda call: int(call[image].numel()) * _per_position(call["weight"])


def either(call: Call) -> int:
    """Operators with a flag that says which."""
    return transposed("input")(call) if call["transposed"] else forward(call)


def backward(call: Call) -> int:
    """The gradients of image and weight cost a forward call each; torch's own table forgets the groups here."""
    positions = call["input"] if call["transposed"] else call["grad_output"]
    wanted = sum(map(bool, call["output_mask"][:2]))
    return int(positions.numel()) * _per_position(call["weight"]) * wanted


def time_batch_channel(call: Call) -> int:
    """conv_tbc: weight [kernel, in, out], output [time, batch, out]."""
    macs: int = call.first_output.numel() * prod(call["weight"].shape[:2])
    return macs


def time_batch_channel_backward(call: Call) -> int:
    """Both gradients."""
    macs: int = 2 * call["self"].numel() * prod(call["weight"].shape[:2])
    return macs


CONVOLUTION: dict[str, Callable[[Call], int]] = {
    "aten::convolution": either,
    "aten::_convolution": either,
    "aten::convolution_overrideable": either,
    "aten::cudnn_convolution": forward,
    "aten::miopen_convolution": forward,
    "aten::mkldnn_convolution": forward,
    "mkldnn::_convolution_pointwise": forward,
    "aten::_slow_conv2d_forward": forward,
    "aten::slow_conv3d_forward": forward,
    "aten::thnn_conv2d": forward,
    "aten::cudnn_convolution_transpose": transposed("self"),
    "aten::convolution_backward": backward,
    "aten::conv_tbc": time_batch_channel,
    "aten::conv_tbc_backward": time_batch_channel_backward,
}
