"""DeepSpeed's counting convention: FLOPs and MACs by torch function.

This is what its flops profiler (0.19.8) intends to count; `deepspeed` has the cases in which it counts something else.

`Recurrence` is the work of recurrent layers: torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu and their cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from distprof.counting.torch_functions import FunctionCall, TensorSpec
from distprof.peers.einsum import contraction_work

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
        """Reads a call like torch.lstm(input, hx, weights, ...) or torch.lstm_cell(input, hx, *weights)."""
        name = call.name.rpartition(".")[2]
        kind, data = name.removesuffix("_cell"), call.args[0]
        sizes = call.args[1]
        packed = isinstance(sizes, TensorSpec) and sizes.dtype == "int64"  # batch sizes instead of the state
        weights = call.args[2:] if name in CELLS else call.args[3 if packed else 2]
        return cls(kind=kind, rows=data.numel() // data.shape[-1], packed=packed,
                   weights=tuple(spec for spec in weights if isinstance(spec, TensorSpec)))

    @property
    def matrices(self) -> list[TensorSpec]:
        """All weights except biases."""
        return [spec for spec in self.weights if len(spec.shape) == 2]

    @property
    def gates(self) -> list[TensorSpec]:
        """Input and hidden weights of the gates, for all layers and directions."""
        return [spec for spec in self.matrices if spec.shape[0] == self.weights[0].shape[0]]

    @property
    def has_projections(self) -> bool:
        """True for an LSTM with proj_size: its projections have fewer rows than the gates."""
        return len(self.gates) < len(self.matrices)

    def macs(self) -> int:
        """Returns the multiply-accumulates: every row with every weight matrix."""
        return self.rows * sum(spec.numel() for spec in self.matrices)

    def flops(self, *, projections: bool = True) -> int:
        """Returns the FLOPs by DeepSpeed's convention: 2n - 1 per dot product of n numbers, plus `LAYERS` per hidden
        unit for gates."""
        products = sum(2 * spec.numel() - spec.shape[0] for spec in (self.matrices if projections else self.gates))
        biases = sum(spec.numel() for spec in self.weights if len(spec.shape) == 1)
        units = self.weights[0].shape[0] // GATES[self.kind] * len(self.gates) // 2
        return self.rows * (products + biases + LAYERS[self.kind] * units)


Amount = tuple[int, int]
"""FLOPs and MACs of one call."""


@dataclass(frozen=True, slots=True)
class FunctionRule:
    """How one call of a function is counted."""

    amount: Callable[[FunctionCall], Amount]
    sentence: str
    """The convention in a few words."""


def operand(call: FunctionCall, position: int, name: str) -> TensorSpec:
    """Returns a tensor argument; a TensorSpec without dimensions if it is not a tensor."""
    found = call.argument(position, name)
    return found if isinstance(found, TensorSpec) else TensorSpec((), "")


def output_of(call: FunctionCall) -> TensorSpec:
    """Returns the tensor that a call returned, or the first of several."""
    found = call.output
    while isinstance(found, tuple) and not isinstance(found, TensorSpec):
        found = found[0]
    return found if isinstance(found, TensorSpec) else TensorSpec((), "")


def doubled(macs: int, extra: int = 0) -> Amount:
    """Returns the amount of a contraction: two FLOPs per MAC, plus extra FLOPs."""
    return 2 * macs + extra, macs


def _per_input(call: FunctionCall) -> Amount:
    return operand(call, 0, "input").numel(), 0


def _linear(call: FunctionCall) -> Amount:
    return doubled(operand(call, 0, "input").numel() * operand(call, 1, "weight").shape[0])


def _convolution(call: FunctionCall) -> Amount:
    weight, output = operand(call, 1, "weight"), output_of(call)
    return doubled(output.numel() * prod(weight.shape[1:]), added_bias(call, output.numel()))


def _transposed_convolution(call: FunctionCall) -> Amount:
    weight, output = operand(call, 1, "weight"), output_of(call)
    return doubled(operand(call, 0, "input").numel() * prod(weight.shape[1:]), added_bias(call, output.numel()))


def added_bias(call: FunctionCall, additions: int) -> int:
    """Returns the additions if the call has a bias, otherwise 0."""
    return additions if isinstance(call.argument(2, "bias"), TensorSpec) else 0


def _matmul(call: FunctionCall) -> Amount:
    return doubled(output_of(call).numel() * operand(call, 0, "input").shape[-1])


def _addmm(call: FunctionCall) -> Amount:
    added, first, second = operand(call, 0, "input"), operand(call, 1, "mat1"), operand(call, 2, "mat2")
    if not first.shape:  # baddbmm has names of its own
        first, second = operand(call, 1, "batch1"), operand(call, 2, "batch2")
    return doubled(first.numel() * second.shape[-1], added.numel())


def _attention(call: FunctionCall) -> Amount:
    query, key, value = operand(call, 0, "query"), operand(call, 1, "key"), operand(call, 2, "value")
    pairs = prod(query.shape[:-1]) * key.shape[-2]
    return doubled(pairs * (query.shape[-1] + value.shape[-1]))


def _einsum(call: FunctionCall) -> Amount:
    operands = call.args[1:]
    if len(operands) == 1 and not isinstance(operands[0], TensorSpec):
        operands = operands[0]  # all in one list
    return contraction_work(call.argument(0, "equation"), [spec.shape for spec in operands])


def _recurrence(call: FunctionCall) -> Amount:
    recurrence = Recurrence.of(call)
    return recurrence.flops(), recurrence.macs()


def _batch_norm(call: FunctionCall) -> Amount:
    affine = isinstance(call.argument(3, "weight"), TensorSpec)
    factor = (4 if call.argument(5, "training", default=False) else 1) + affine
    return factor * operand(call, 0, "input").numel(), 0


def _norm(weight_at: int) -> Callable[[FunctionCall], Amount]:
    def amount(call: FunctionCall) -> Amount:
        affine = isinstance(call.argument(weight_at, "weight"), TensorSpec)
        return (5 if affine else 4) * operand(call, 0, "input").numel(), 0

    return amount


def _elementwise(call: FunctionCall) -> Amount:
    return output_of(call).numel(), 0


def _rules(names: Iterable[str], amount: Callable[[FunctionCall], Amount], sentence: str,
           homes: Iterable[str] = ("torch.nn.functional",)) -> Mapping[str, FunctionRule]:
    return {f"{home}.{name}": FunctionRule(amount, sentence) for home in homes for name in names}


def _with_dimensions(names: Iterable[str]) -> list[str]:
    return [f"{name}{dimension}d" for name in names for dimension in (1, 2, 3)]


_MAX_POOLS = _with_dimensions(("max_pool", "adaptive_max_pool"))

RULES: dict[str, FunctionRule] = {
    **_rules(["linear"], _linear, "2 FLOPs per MAC, no bias"),
    **_rules(_with_dimensions(["conv"]), _convolution, "adds the bias, once per output element"),
    **_rules(_with_dimensions(["conv_transpose"]), _transposed_convolution, "adds the bias, once per output element"),
    **_rules(["relu", "prelu", "elu", "leaky_relu", "relu6", "silu", "gelu"], _per_input,
             "activation: 1 FLOP per element"),
    **_rules(["batch_norm"], _batch_norm, "normalisation: 1 FLOP per element, 4 in training, 1 more if affine"),
    **_rules(["layer_norm", "group_norm"], _norm(2), "normalisation: 4 FLOPs per element, 5 if affine"),
    **_rules(["instance_norm"], _norm(3), "normalisation: 4 FLOPs per element, 5 if affine"),
    **_rules([*_with_dimensions(("avg_pool", "adaptive_avg_pool")), *_MAX_POOLS,
              *(f"{name}_with_indices" for name in _MAX_POOLS)], _per_input, "pool: 1 FLOP per input element"),
    **_rules(["interpolate"], _elementwise, "interpolation: 1 FLOP per output element"),
    **_rules(["softmax"], _per_input, "softmax: 1 FLOP per element"),
    **_rules(["scaled_dot_product_attention"], _attention, "2 FLOPs per MAC, masked pairs in full"),
    **_rules(["matmul", "mm", "bmm"], _matmul, "2 FLOPs per MAC", ["torch", "torch.Tensor"]),
    **_rules(["addmm"], _addmm, "adds the elements of the first operand", ["torch", "torch.Tensor"]),
    **_rules(["baddbmm"], _addmm, "adds the elements of the first operand", ["torch"]),
    **_rules(["add", "mul"], _elementwise, "as a function, not as an operator: 1 FLOP per element", ["torch"]),
    **_rules(["add", "mul"], _elementwise, "as a method, not as an operator: 1 FLOP per element", ["torch.Tensor"]),
    **_rules(["einsum"], _einsum, "2 FLOPs per MAC on the cheapest path", ["torch.functional"]),
    **_rules([*LAYERS, *CELLS], _recurrence, "recurrence: 1 less per product, biases, 1, 7 or 10 FLOPs per unit for "
             "the gates", ["torch"]),
}
"""Function -> how its calls are counted; other functions count 0."""
