"""MACs of fused recurrent layers: every step of every sequence is multiplied with every weight matrix.

Layers that torch runs as single matrix products (cells, and the CPU without oneDNN) are counted as those.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distprof.formulas.operator_call import Formula, OperatorCall


def _steps(call: OperatorCall) -> int:
    """Steps of all sequences, without padding if they are packed (batch_sizes)."""
    sizes = call.arguments.get("batch_sizes")
    return int(sum(sizes) if sizes else call["input"].shape[0] * call["input"].shape[1])


def _matrices(weights: Iterable[Any]) -> int:
    return sum(int(weight.numel()) for weight in weights if weight is not None and weight.dim() == 2)


def onednn_layer(call: OperatorCall) -> int:
    """One layer in one direction: input and hidden weights."""
    return _steps(call) * _matrices((call["weight0"], call["weight1"]))


def onednn_layer_backward(call: OperatorCall) -> int:
    """Gradients of data and weights."""
    return 2 * _steps(call) * _matrices((call["weight1"], call["weight2"]))


def cudnn_layers(call: OperatorCall) -> int:
    """All layers and directions; biases in the list do not count."""
    return _steps(call) * _matrices(call["weight"])


def cudnn_layers_backward(call: OperatorCall) -> int:
    """Gradients of data and, if requested, weights."""
    return cudnn_layers(call) * (1 + bool(call["output_mask"][3]))


def mps_layers(call: OperatorCall) -> int:
    """All layers and directions."""
    return _steps(call) * _matrices(call["params"])


def mps_layers_backward(call: OperatorCall) -> int:
    """Gradients of data and weights."""
    return 2 * mps_layers(call)


RECURRENT: dict[str, Formula] = {
    "aten::mkldnn_rnn_layer": onednn_layer,
    "aten::mkldnn_rnn_layer_backward": onednn_layer_backward,
    "aten::_cudnn_rnn": cudnn_layers,
    "aten::_cudnn_rnn_backward": cudnn_layers_backward,
    "aten::miopen_rnn": cudnn_layers,
    "aten::miopen_rnn_backward": cudnn_layers_backward,
    "aten::_lstm_mps": mps_layers,
    "aten::lstm_mps_backward": mps_layers_backward,
}
