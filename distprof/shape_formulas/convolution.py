"""MACs of convolutions. Groups need no factor: the second size of a weight is already divided by them."""

from __future__ import annotations

from math import prod
from typing import Any

from distprof.shape_formulas.operator_call import Formula, OperatorCall


def convolution(weight: str = "weight") -> Formula:
    """Returns the formula: each output element is a sum over the kernel; padding counts like data."""
    return lambda call: int(call.first_output.numel()) * prod(call[weight].shape[1:])


def transposed_convolution(image: str, weight: str = "weight") -> Formula:
    """Returns the formula: each input element is multiplied with the whole kernel; weight [in, out / groups,
    *kernel]."""
    return lambda call: int(call[image].numel()) * prod(call[weight].shape[1:])


def either_convolution(call: OperatorCall) -> int:
    """Returns the MACs of an operator with a flag `transposed`."""
    return transposed_convolution("input")(call) if call["transposed"] else convolution()(call)


def convolution_backward(call: OperatorCall) -> int:
    """Returns the MACs of backward: the gradients of image and weight cost as much as a forward call each."""
    transposes = call.arguments.get("transposed", False)
    return _gradients(call, call["input"] if transposes else call["grad_output"])


def one_way_backward(positions: str) -> Formula:
    """Returns the formula for backward without the flag: each element of the tensor `positions` meets the whole
    kernel."""
    return lambda call: _gradients(call, call[positions])


def _gradients(call: OperatorCall, positions: Any) -> int:
    wanted = sum(map(bool, call.arguments.get("output_mask", (True, True))[:2]))
    per_position: int = prod(call["weight"].shape[1:])
    return int(positions.numel()) * per_position * wanted


def time_batch_channel_convolution(call: OperatorCall) -> int:
    """Returns the MACs of conv_tbc: weight [kernel, in, out], output [time, batch, out]."""
    return int(call.first_output.numel() * prod(call["weight"].shape[:2]))


def time_batch_channel_backward(call: OperatorCall) -> int:
    """Returns the MACs of both gradients of conv_tbc."""
    return int(2 * call["self"].numel() * prod(call["weight"].shape[:2]))


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
    "aten::convolution": either_convolution,
    "aten::_convolution": either_convolution,
    "aten::convolution_overrideable": either_convolution,
    **{f"aten::{name}": convolution() for name in _FORWARD},
    **{f"aten::{name}": transposed_convolution("self") for name in _TRANSPOSED},
    "mkldnn::_convolution_pointwise": convolution("W"),
    "mkldnn::_convolution_pointwise_": convolution("W"),
    "mkldnn::_convolution_transpose_pointwise": transposed_convolution("X", "W"),
    **{f"onednn::{name}": convolution("qw") for name in _ONEDNN},
    "aten::convolution_backward": convolution_backward,
    "aten::convolution_backward_overrideable": convolution_backward,
    "aten::_slow_conv2d_backward": one_way_backward("grad_output"),
    "aten::mps_convolution_backward": one_way_backward("grad_output"),
    "aten::mps_convolution_transpose_backward": one_way_backward("self"),
    "aten::conv_tbc": time_batch_channel_convolution,
    "aten::conv_tbc_backward": time_batch_channel_backward,
}
