"""The operators that torch.jit.trace would record for the torch functions of a counted call, and lines of counters.

Nothing is traced. There are three differences from a trace: arithmetic on sizes is missing (a trace converts them to
tensors), attributes like `x.T` are missing, and operators with unused results are included: callers subtract
`Counts.unused`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from distprof.counting.torch_functions import FunctionCall, TensorSpec
from distprof.model.call_paths import CallPath
from distprof.peers.jit_values import JitValue, arguments_of, schemas

ATTENTION = "torch.nn.functional.multi_head_attention_forward"
FUSED_ATTENTION = "aten::_native_multi_head_attention"
Recorded = tuple[str, Iterable[Any], Any]
"""Kind, arguments and output of one operator."""
OUTSIDE = "(no torch function)"
"""Function of operators that no torch function called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLine:
    """All calls of one function in one module, as another counter counts them."""

    function: str
    """Name in torch, like torch.nn.functional.linear."""
    module_path: str | None
    """Innermost module; None outside all modules."""
    flops: int
    """The other counter's number, in its unit."""
    macs: int
    """Multiply-accumulates that the other counter sees."""
    reason: str = ""
    """Why this differs from what ran; empty if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOp:
    """An operator of a trace, and how often it ran."""

    kind: str
    """aten::linear, aten::_convolution, ..."""
    function: str
    """The torch function that called it."""
    path: CallPath
    calls: int
    inputs: list[JitValue]
    """Arguments in the order of the operator's schema, including defaults."""
    outputs: list[JitValue]


def traced_ops(functions: Mapping[FunctionCall, int], known: Callable[[str], bool]) -> Iterator[TracedOp]:
    """Yields the operators of function calls.

    Args:
        functions: `Counts.functions`.
        known: Returns True for kinds whose arguments are needed; others get none, which is faster.
    """
    for calls in _by_path(functions).values():
        fused = _fused_attention(calls)
        for call, number in fused or _leaves(calls):
            recorded = [(FUSED_ATTENTION, call.args, call.output)] if fused else _recorded(call, known)
            for kind, arguments, output in recorded:
                outputs = output if isinstance(output, tuple) and not isinstance(output, TensorSpec) else (output,)
                yield TracedOp(kind=kind, function=call.name, path=call.path, calls=number,
                               inputs=[JitValue(value) for value in arguments],
                               outputs=[JitValue(value) for value in outputs])


def fused_paths(functions: Mapping[FunctionCall, int]) -> frozenset[CallPath]:
    """Returns the modules whose attention torch runs as one kernel when it is not observed."""
    return frozenset(path for path, calls in _by_path(functions).items() if _fused_attention(calls))


def _by_path(functions: Mapping[FunctionCall, int]) -> dict[CallPath, list[tuple[FunctionCall, int]]]:
    by_path: dict[CallPath, list[tuple[FunctionCall, int]]] = defaultdict(list)
    for call, number in functions.items():
        by_path[call.path].append((call, number))
    return by_path


def _leaves(calls: list[tuple[FunctionCall, int]]) -> list[tuple[FunctionCall, int]]:
    """Returns the calls that do not themselves call other recorded functions in the same module."""
    wrappers = {call.outer for call, _ in calls}
    return [(call, number) for call, number in calls if call.name not in wrappers or call.outer == call.name]


def _fused_attention(calls: list[tuple[FunctionCall, int]]) -> list[tuple[FunctionCall, int]]:
    """Returns the calls of multi-head attention that torch fuses when it is not observed.

    `nn.MultiheadAttention` uses one kernel for all its work in eval mode without gradients, if query, key and value are
    one batch-first tensor. A function mode prevents that; the module then transposes its input and its output.
    """
    found = [(call, number) for call, number in calls if call.name == ATTENTION]
    number = sum(times for _, times in found)
    turned = sum(times for call, times in calls if call.name == "torch.Tensor.transpose" and call.outer is None)
    fits = number and turned == 2 * number and all(_may_fuse(call) for call, _ in found)
    return found if fits else []


def _may_fuse(call: FunctionCall) -> bool:
    heads = call.argument(4, "num_heads")
    plain = not any(call.argument(position, name) for position, name in (
        (7, "bias_k"), (8, "bias_v"), (9, "add_zero_attn"), (13, "training"), (17, "use_separate_proj_weight")))
    return plain and not call.has_gradient and heads % 2 == 0 and len(call.args[0].shape) == 3


def _recorded(call: FunctionCall, known: Callable[[str], bool]) -> Iterator[Recorded]:
    name = operator_name(call.name)
    if not _has_tensor(call.output) and name != "__setitem__":
        return
    special = SPECIAL.get(name)
    if special is not None:
        yield from special(call)
    elif schemas(kind := f"aten::{name}"):
        yield kind, arguments_of(kind, call) if known(kind) else [], call.output


@cache
def operator_name(function: str) -> str:
    """Returns an operator's name: torch.nn.functional.linear -> linear, torch.fft.rfft -> fft_rfft, torch.Tensor.float
    -> to."""
    home, _, last = function.rpartition(".")
    name = {"torch.linalg": "linalg_", "torch.fft": "fft_", "torch.special": "special_"}.get(home, "") + last
    return ALIASES.get(name, name)


_CASTS = "float half double bfloat16 long int short char byte bool type cpu cuda tensor as_tensor"
ALIASES = {
    **dict.fromkeys(_CASTS.split(), "to"),
    "spmm": "mm", "linalg_matmul": "matmul", "norm": "linalg_vector_norm", "__getitem__": "slice",
    "absolute": "abs", "negative": "neg", "multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub",
    "multiply_": "mul_", "divide_": "div_", "subtract_": "sub_", "clip": "clamp", "clip_": "clamp_",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "concat": "cat", "concatenate": "cat", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "__rsub__": "rsub", "__floordiv__": "floor_divide", "__rfloordiv__": "floor_divide", "__pow__": "pow",
    "__rpow__": "pow", "__ipow__": "pow_", "__rmod__": "remainder", "__eq__": "eq", "__ne__": "ne",
}
"""Functions that a trace records as an operator with another name."""


def _has_tensor(tree: object) -> bool:
    return isinstance(tree, TensorSpec) or (isinstance(tree, tuple) and any(_has_tensor(part) for part in tree))


def _convolution(call: FunctionCall) -> Iterator[Recorded]:
    """Yields a convolution: all convolutions are one operator with thirteen arguments."""
    name = operator_name(call.name)
    bound = arguments_of(f"aten::{name}", call)
    if name == "convolution":
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = bound
    elif name.startswith("conv_transpose"):
        x, weight, bias, stride, padding, output_padding, groups, dilation = bound
        transposed = True
    else:
        x, weight, bias, stride, padding, dilation, groups = bound
        transposed, output_padding = False, 0
    if isinstance(padding, str):
        yield "aten::_convolution_mode", bound, call.output
        return
    spatial = len(weight.shape) - 2
    wide = [value if isinstance(value, tuple) else (value,) * spatial
            for value in (stride, padding, dilation, output_padding)]
    alone = len(x.shape) == spatial + 1
    image, output = (TensorSpec((1, *spec.shape), spec.dtype) if alone else spec for spec in (x, call.output))
    yield "aten::_convolution", [image, weight, bias, *wide[:3], transposed, wide[3], groups, False, False, True,
                                 True], output


def _assignment(call: FunctionCall) -> Iterator[Recorded]:
    target, index, value = call.args
    if _has_tensor(index):
        yield "aten::index_put_", [target, index, value, False], target
    else:
        yield "aten::copy_" if isinstance(value, TensorSpec) else "aten::fill_", [target, value], target


def _reciprocal(call: FunctionCall) -> Iterator[Recorded]:
    yield "aten::reciprocal", [call.args[0]], call.output
    yield "aten::mul", [call.output, call.args[1]], call.output


def _cell(*elementwise: tuple[str, int]) -> Callable[[FunctionCall], Iterator[Recorded]]:
    """Returns the rule for a recurrent cell, recorded in parts: two linear layers, then (operator, width / hidden
    size)."""

    def parts(call: FunctionCall) -> Iterator[Recorded]:
        x, state, weight_ih, weight_hh = call.args[:4]
        bias_ih, bias_hh = call.argument(4, "b_ih"), call.argument(5, "b_hh")
        hidden = state if isinstance(state, TensorSpec) else state[0]

        def wide(rows: int) -> TensorSpec:
            return TensorSpec((*hidden.shape[:-1], rows), hidden.dtype)

        yield "aten::linear", [x, weight_ih, bias_ih], wide(weight_ih.shape[0])
        yield "aten::linear", [hidden, weight_hh, bias_hh], wide(weight_hh.shape[0])
        for name, width in elementwise:
            part = wide(width * hidden.shape[-1])
            yield f"aten::{name}", [part, part], part

    return parts


SPECIAL: dict[str, Callable[[FunctionCall], Iterator[Recorded]]] = {
    **dict.fromkeys(("convolution", *(f"conv{part}{n}d" for part in ("", "_transpose") for n in (1, 2, 3))),
                    _convolution),
    "__setitem__": _assignment,
    "__rtruediv__": _reciprocal,
    "lstm_cell": _cell(("add_", 4), ("unsafe_chunk", 4), *[("sigmoid_", 1)] * 3, ("tanh_", 1), *[("mul", 1)] * 3,
                       ("add_", 1), ("tanh", 1)),
    "gru_cell": _cell(*[("unsafe_chunk", 3)] * 2, *[("add_", 1)] * 3, *[("sigmoid_", 1)] * 2, *[("mul_", 1)] * 2,
                      ("tanh_", 1), ("sub", 1), ("add", 1)),
    "rnn_tanh_cell": _cell(("add_", 1), ("tanh", 1)),
    "rnn_relu_cell": _cell(("add_", 1), ("relu", 1)),
}
"""Functions that are recorded as an operator with other arguments, or as several operators."""
