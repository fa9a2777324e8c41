"""MACs of fused recurrent layers: every step of every sequence meets every weight matrix once.

Layers that torch takes apart (CPU without oneDNN, cells) are counted as the products they become.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from distprof.formulas.call import Call


def _steps(call: Call) -> int:
    """Steps of all sequences; packed ones (batch_sizes) without padding."""
    sizes = call.arguments.get("batch_sizes")
    return int(sum(sizes) if sizes else call["input"].shape[0] * call["input"].shape[1])


def _matrices(weights: Iterable[Any]) -> int:
    return sum(int(weight.numel()) for weight in weights if weight is not None and weight.dim() == 2)


def onednn_layer(call: Call) -> int:
    """One layer in one direction: input and hidden weights."""
    return _steps(call) * _matrices((call["weight0"], call["weight1"]))


def onednn_layer_backward(call: Call) -> int:
    """Gradients of data and weights."""
    return 2 * _steps(call) * _matrices((call["weight1"], call["weight2"]))


def cudnn(call: Call) -> int:
    """All layers and directions: the list holds every matrix, and biases, which do not count."""
    return _steps(call) * _matrices(call["weight"])


def cudnn_backward(call: Call) -> int:
    """Gradients of data and, where wanted, weights."""
    return cudnn(call) * (1 + bool(call["output_mask"][3]))


def metal(call: Call) -> int:
    """All layers and directions; the list is called `params`."""
    return _steps(call) * _matrices(call["params"])


def metal_backward(call: Call) -> int:
    """Gradients of data and weights."""
    return 2 * metal(call)


RECURRENT: dict[str, Callable[[Call], int]] = {
    "aten::mkldnn_rnn_layer": onednn_layer,
    "aten::mkldnn_rnn_layer_backward": onednn_layer_backward,
    "aten::_cudnn_rnn": cudnn,
    "aten::_cudnn_rnn_backward": cudnn_backward,
    "aten::miopen_rnn": cudnn,
    "aten::miopen_rnn_backward": cudnn_backward,
    "aten::_lstm_mps": metal,
    "aten::lstm_mps_backward": metal_backward,
}
