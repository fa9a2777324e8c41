"""Work of recurrent layers: torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu and their cells."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.counting.torch_functions import FunctionCall, TensorSpec

LAYERS = {"lstm": 10, "gru": 7, "rnn_tanh": 1, "rnn_relu": 1}
"""Function -> elementwise FLOPs per hidden unit that DeepSpeed adds for the gates."""
CELLS = {f"{name}_cell": work for name, work in LAYERS.items()}
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """One call of a recurrent function."""

    kind: str
    rows: int
    """Time steps of all sequences, without padding."""
    weights: tuple[TensorSpec, ...]
    """Matrices and biases of every layer and direction."""
    packed: bool
    """True for a packed sequence."""

    @classmethod
    def of(cls, call: FunctionCall) -> Recurrence:
        """From a call like torch.lstm(input, hx, weights, ...) or torch.lstm_cell(input, hx, *weights)."""
        name = call.name.rpartition(".")[2]
        kind, data = name.removesuffix("_cell"), call.args[0]
        sizes = call.args[1]
        packed = isinstance(sizes, TensorSpec) and sizes.dtype == "int64"  # batch sizes, where else the state is
        weights = call.args[2:] if name in CELLS else call.args[3 if packed else 2]
        return cls(kind=kind, rows=data.numel() // data.shape[-1], packed=packed,
                   weights=tuple(spec for spec in weights if isinstance(spec, TensorSpec)))

    @property
    def matrices(self) -> list[TensorSpec]:
        """All weights that are no biases."""
        return [spec for spec in self.weights if len(spec.shape) == 2]

    @property
    def gates(self) -> list[TensorSpec]:
        """Input and hidden weights of the gates, of every layer and direction."""
        return [spec for spec in self.matrices if spec.shape[0] == self.weights[0].shape[0]]

    @property
    def has_projections(self) -> bool:
        """True for an LSTM with proj_size: its projections have fewer rows than the gates."""
        return len(self.gates) < len(self.matrices)

    def macs(self) -> int:
        """Multiply-accumulates with every weight matrix for every row."""
        return self.rows * sum(spec.numel() for spec in self.matrices)

    def flops(self, *, projections: bool = True) -> int:
        """By DeepSpeed's convention: a product of n numbers is 2n - 1 FLOPs, the gates some per hidden unit."""
        products = sum(2 * spec.numel() - spec.shape[0] for spec in (self.matrices if projections else self.gates))
        biases = sum(spec.numel() for spec in self.weights if len(spec.shape) == 1)
        units = self.weights[0].shape[0] // GATES[self.kind] * len(self.gates) // 2
        return self.rows * (products + biases + LAYERS[self.kind] * units)
