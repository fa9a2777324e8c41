"""MACs of fused recurrent layers: every step of every sequence is multiplied with every weight matrix.

Layers that torch runs as single matrix products (cells, and the CPU without oneDNN) are counted as those.
"""

from __future__ import annotations

from distprof.shape_formulas.operator_call import Formula, OperatorCall


def layers(*weights: str, products: int = 1) -> Formula:
    """`products` with each matrix in these arguments, all layers and directions; biases do not count."""

    def macs(call: OperatorCall) -> int:
        sizes = call.arguments.get("batch_sizes")  # where sequences are packed, without padding
        steps = int(sum(sizes) if sizes else call["input"].shape[0] * call["input"].shape[1])
        given = (call[name] for name in weights)
        matrices = (weight for one in given for weight in (one if isinstance(one, (list, tuple)) else [one])
                    if weight.dim() == 2)
        return products * steps * sum(int(weight.numel()) for weight in matrices)

    return macs


def cudnn_backward(call: OperatorCall) -> int:
    """Gradients of data and, if requested, weights."""
    return layers("weight")(call) * (1 + bool(call["output_mask"][3]))


RECURRENT: dict[str, Formula] = {
    "aten::mkldnn_rnn_layer": layers("weight0", "weight1"),
    "aten::mkldnn_rnn_layer_backward": layers("weight1", "weight2", products=2),
    "aten::_cudnn_rnn": layers("weight"),
    "aten::_cudnn_rnn_backward": cudnn_backward,
    "aten::miopen_rnn": layers("weight"),
    "aten::miopen_rnn_backward": cudnn_backward,
    "aten::_lstm_mps": layers("params"),
    "aten::lstm_mps_backward": layers("params", products=2),
}
