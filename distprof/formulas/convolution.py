"""MACs of convolutions, groups included: the second size of a weight is already divided by them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from distprof.formulas.call import Call

Formula = Callable[[Call], int]


def forward(weight: str = "weight") -> Formula:
    """Each output element sums a kernel's worth of products; padding counts like data."""
    return lambda call: int(call.first_output.numel()) * prod(call[weight].shape[1:])


def transposed(image: str, weight: str = "weight") -> Formula:
    """Each input element is spread over a kernel's worth of outputs: weight [in, out / groups, *kernel]."""
    return lambda call: int(call[image].numel()) * prod(call[weight].shape[1:])


def either(call: Call) -> int:
    """Operators with a flag that says which."""
    return transposed("input")(call) if call["transposed"] else forward()(call)


def backward(call: Call) -> int:
    """The gradients of image and weight cost a forward call each; torch's own table forgets the groups here."""
    transposes = call.arguments.get("transposed", False)
    return _gradients(call, call["input"] if transposes else call["grad_output"])


def only_backward(positions: str) -> Formula:
    """Operators that are for one of the two directions."""
    return lambda call: _gradients(call, call[positions])


def _gradients(call: Call, positions: Any) -> int:
    wanted = sum(map(bool, call.arguments.get("output_mask", (True, True))[:2]))
    per_position: int = prod(call["weight"].shape[1:])
    return int(positions.numel()) * per_position * wanted


def time_batch_channel(call: Call) -> int:
    """conv_tbc: weight [kernel, in, out], output [time, batch, out]."""
    macs: int = call.first_output.numel() * prod(call["weight"].shape[:2])
    return macs


def time_batch_channel_backward(call: Call) -> int:
    """Both gradients."""
    macs: int = 2 * call["self"].numel() * prod(call["weight"].shape[:2])
    return macs


_FORWARD = (
    "cudnn_convolution", "cudnn_convolution_relu", "cudnn_convolution_add_relu", "miopen_convolution",
    "miopen_convolution_relu", "miopen_convolution_add_relu", "miopen_depthwise_convolution", "mkldnn_convolution",
    "_mps_convolution", "_nnpack_spatial_convolution", "_slow_conv2d_forward", "slow_conv3d_forward",
    "slow_conv_dilated2d", "slow_conv_dilated3d", "thnn_conv2d", "slow_conv3d", "conv_depthwise3d",
    "_conv_depthwise2d",
)
_TRANSPOSED = (
    "cudnn_convolution_transpose", "miopen_convolution_transpose", "_mps_convolution_transpose",
    "slow_conv_transpose2d", "slow_conv_transpose3d",
)
_ONEDNN = ("qconv_pointwise", "qconv1d_pointwise", "qconv2d_pointwise", "qconv3d_pointwise")

CONVOLUTION: dict[str, Formula] = {
    "aten::convolution": either,
    "aten::_convolution": either,
    "aten::convolution_overrideable": either,
    **{f"aten::{name}": forward() for name in _FORWARD},
    **{f"aten::{name}": transposed("self") for name in _TRANSPOSED},
    "mkldnn::_convolution_pointwise": forward("W"),
    "mkldnn::_convolution_pointwise_": forward("W"),
    "mkldnn::_convolution_transpose_pointwise": transposed("X", "W"),
    **{f"onednn::{name}": forward("qw") for name in _ONEDNN},
    "aten::convolution_backward": backward,
    "aten::convolution_backward_overrideable": backward,
    "aten::_slow_conv2d_backward": only_backward("grad_output"),
    "aten::mps_convolution_backward": only_backward("grad_output"),
    "aten::mps_convolution_transpose_backward": only_backward("self"),
    "aten::conv_tbc": time_batch_channel,
    "aten::conv_tbc_backward": time_batch_channel_backward,
}
