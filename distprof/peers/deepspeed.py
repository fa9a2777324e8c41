"""FLOPs and MACs that DeepSpeed's flops profiler reports for a counted call, by function and module.

Reproduces calls for which DeepSpeed 0.19.8 counts something other than intended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from distprof.counting.count import Counts
from distprof.counting.torch_functions import OPERATOR, FunctionCall, TensorSpec
from distprof.model.modules import Site
from distprof.peers.deepspeed_formulas import CELLS, LAYERS, RULES, Amount, Recurrence, added_bias, doubled, operand
from distprof.peers.einsum import printed_flops
from distprof.peers.traced_ops import ATTENTION, PeerLine, fused_paths

BUGS = {
    "matmul_second_operand": "matmul multiplies the size of the first operand by the last dimension of the second: a "
                             "batch of the second is lost, and a vector counts as a matrix",
    "conv_same_padding": "padding='same' with an even reach: the output is assumed one shorter per dimension",
    "conv_without_batch": "the first dimension is taken for the batch even if there is none",
    "interpolate_size": "size= counts as the product of its own numbers, ignoring batch, channels and repetition",
    "upsample_twice": "F.upsample calls F.interpolate, and both are counted",
    "interpolate_scale": "scale factors multiply the size of the input; the output is rounded down per dimension",
    "einsum": "einsum has no MACs, and its FLOPs are numpy's printed estimate, with four digits",
    "einops_twice": "einops.einsum calls torch.einsum, and both are counted",
    "fused_attention": "multi-head attention in eval mode without gradients is a single kernel, which it does not see",
    "rnn_macs": "recurrent layers have no MACs",
    "rnn_projection": "the projections of an LSTM with proj_size are not counted",
    "rnn_packed": "a packed sequence as input",
    "rnn_subclass": "recurrent layers are found by their exact type: subclasses and direct calls count nothing",
    "attention_by_name": "query, key or value passed by name",
    "held_function": "functions are patched by name, so one stored in an attribute, like the activation of "
                     "nn.TransformerEncoderLayer, is not counted",
    "outside_modules": "calls outside all profiled modules are not counted",
}
"""Bugs that exact counting reproduces: name -> what DeepSpeed does."""

NOT_REPRODUCED = {
    "imported_name": "a function imported by its own name (from torch.nn.functional import linear) is not counted",
    "conv_alias": "torch.conv2d and similar are F.conv2d under another name and are not counted",
    "fast_path": "nn.MultiheadAttention and nn.TransformerEncoder in eval mode without gradients run as one fused "
                 "operator and count nothing; while distprof records, they run as Python",
    "list_arguments": "stride, padding or dilation given as a list raises TypeError",
    "pool_by_name": "F.adaptive_avg_pool2d(x, output_size=1) and similar raise TypeError; interpolate(input=x) raises "
                    "IndexError",
    "rnn_without_batch": "an unbatched sequence counts its features as time steps; an unbatched cell raises",
    "einops_names": "einops.einsum with axis names of several letters raises or is misread",
}
"""Bugs for calls that our records cannot distinguish from others; these are counted by the convention."""

RECURRENT_TYPES = frozenset({torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM, torch.nn.RNNCell, torch.nn.GRUCell,
                             torch.nn.LSTMCell})


@dataclass(frozen=True, slots=True)
class Quirk:
    """How DeepSpeed miscounts a call."""
    bug: str
    """Key of `BUGS`."""
    amount: Amount | None
    """FLOPs and MACs that DeepSpeed counts; None if it raises."""


def quirk(call: FunctionCall) -> Quirk | None:
    """Returns how DeepSpeed miscounts a call; None if it counts as intended."""
    if call.path.site is None:
        return Quirk("outside_modules", (0, 0))
    if _is_held(call, call.path.site):
        return Quirk("held_function", (0, 0))
    find = _QUIRKS.get(call.name)
    found = find(call) if find is not None else None
    right = RULES[call.name].amount(call)
    return found if found is not None and found.amount != right else None


def is_ignored(call: FunctionCall) -> bool:
    """Returns whether the convention does not count a call: operators like +, and a function called by itself, which is
    counted once."""
    return call.spelling == OPERATOR or call.outer == call.name


def _is_held(call: FunctionCall, site: Site) -> bool:
    module, function = site.module(), _function(call.name)
    return module is not None and function is not None and any(
        value is function or (isinstance(value, functools.partial) and value.func is function)
        for value in vars(module).values())


@functools.cache
def _function(name: str) -> Any:
    home, _, simple = name.rpartition(".")
    where = {"torch.nn.functional": torch.nn.functional, "torch": torch, "torch.functional": torch}.get(home)
    return getattr(where, simple, None)


def _matmul(call: FunctionCall) -> Quirk:
    first, second = operand(call, 0, "input"), operand(call, 1, "other")
    return Quirk("matmul_second_operand", doubled(first.numel() * second.shape[-1]))


def _convolution(call: FunctionCall) -> Quirk:
    image, weight = operand(call, 0, "input"), operand(call, 1, "weight")
    bug = "conv_same_padding" if len(image.shape) == len(weight.shape) else "conv_without_batch"
    if weight.shape[1] * call.argument(6, "groups", 1) != image.shape[1]:
        return Quirk(bug, None)
    sizes, kernel = image.shape[2:], weight.shape[2:]
    stride, dilation = (_each(call.argument(at, name, 1), len(sizes)) for at, name in ((3, "stride"), (5, "dilation")))
    padding = _padding(call.argument(4, "padding", 0), kernel, dilation)
    output = [(size + 2 * pad - (step * (width - 1) + 1)) // jump + 1
              for size, pad, step, width, jump in zip(sizes, padding, dilation, kernel, stride, strict=False)]
    places = image.shape[0] * prod(output) * weight.shape[0]
    return Quirk(bug, doubled(places * prod(weight.shape[1:]), added_bias(call, places)))


def _padding(padding: object, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    if padding == "same":
        return tuple(step * (width - 1) // 2 for step, width in zip(dilation, kernel, strict=False))
    return _each(0 if padding == "valid" else padding, len(kernel))


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * dimensions


def _transposed_convolution(call: FunctionCall) -> Quirk:
    image, weight = operand(call, 0, "input"), operand(call, 1, "weight")
    names = ((3, "stride", 1), (4, "padding", 0), (5, "output_padding", 0), (7, "dilation", 1))
    sizes, kernel = image.shape[2:], weight.shape[2:]
    settings = [_each(call.argument(at, name, default), len(sizes)) for at, name, default in names]
    output = [(size - 1) * stride - 2 * padding + dilation * (width - 1) + extra + 1
              for size, width, stride, padding, extra, dilation in zip(sizes, kernel, *settings, strict=False)]
    filters = weight.shape[1] * call.argument(6, "groups", 1)
    bias = added_bias(call, filters * image.shape[0] * prod(output))
    return Quirk("conv_without_batch", doubled(image.numel() * prod(weight.shape[1:]), bias))


def _interpolation(call: FunctionCall) -> Quirk:
    image, size, scale = operand(call, 0, "input"), call.argument(1, "size"), call.argument(2, "scale_factor")
    times = 2 if call.spelling == "torch.nn.functional.upsample" else 1
    if size is not None:
        flops, bug = int(prod(size) if isinstance(size, tuple) else size), "interpolate_size"
    else:
        factor = prod(scale) if isinstance(scale, tuple) else scale ** (len(image.shape) - 2)
        flops, bug = int(image.numel() * factor), "interpolate_scale"
    return Quirk("upsample_twice" if times > 1 else bug, (times * flops, 0))


def _einsum(call: FunctionCall) -> Quirk:
    times = 2 if call.spelling == "einops.einops.einsum" else 1
    operands = call.args[1:]
    if not all(isinstance(spec, TensorSpec) for spec in operands):
        return Quirk("einsum", None)
    flops = int(printed_flops(call.argument(0, "equation").replace(" ", ""), [spec.shape for spec in operands]))
    return Quirk("einops_twice" if times > 1 else "einsum", (times * flops, 0))


def _recurrence(call: FunctionCall) -> Quirk:
    recurrence = Recurrence.of(call)
    module = call.path.site.module() if call.path.site is not None else None
    if module is not None and type(module) not in RECURRENT_TYPES:
        return Quirk("rnn_subclass", (0, 0))
    if recurrence.packed:
        return Quirk("rnn_packed", None)
    bug = "rnn_projection" if recurrence.has_projections else "rnn_macs"
    return Quirk(bug, (recurrence.flops(projections=False), 0))


_QUIRKS: dict[str, Callable[[FunctionCall], Quirk | None]] = {
    **{f"torch.nn.functional.conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"torch.nn.functional.conv_transpose{n}d": _transposed_convolution for n in (1, 2, 3)},
    **{f"{home}.{name}": _matmul for home in ("torch", "torch.Tensor") for name in ("matmul", "mm", "bmm")},
    **{f"torch.{name}": _recurrence for name in (*LAYERS, *CELLS)},
    "torch.nn.functional.interpolate": _interpolation,
    "torch.nn.functional.scaled_dot_product_attention":
        lambda call: Quirk("attention_by_name", None) if len(call.args) < 3 else None,
    "torch.functional.einsum": _einsum,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedLine(PeerLine):
    """Equal calls of one function in one module; `reason` is the convention in a few words, or the bug."""

    calls: int
    bug: str | None = None
    """Key of `BUGS` if DeepSpeed counts something other than intended."""
    raises: bool = False
    """True if DeepSpeed raises; the numbers are then those of the convention."""


def peer_lines(counts: Counts, *, exact: bool = True) -> list[DeepSpeedLine]:
    """Returns one line for all equal calls of a function in a module.

    Args:
        counts: A counted call.
        exact: True for the numbers of DeepSpeed 0.19.8, including bugs; False for those of its convention.
    """
    found = ((call, deepspeed_line(call, calls, exact=exact)) for call, calls in counts.functions.items())
    fused = fused_paths(counts.functions) if exact else frozenset()
    return [replace(line, flops=0, macs=0, reason=BUGS["fused_attention"], bug="fused_attention")
            if call.path in fused and call.outer == ATTENTION else line for call, line in found if line is not None]


def deepspeed_line(call: FunctionCall, calls: int, *, exact: bool) -> DeepSpeedLine | None:
    """Returns the line of a number of equal calls; None for a function without a rule."""
    rule = RULES.get(call.name)
    if rule is None or is_ignored(call):
        return None
    amount, reason, bug, raises = rule.amount(call), rule.sentence, None, False
    found = quirk(call) if exact else None
    if found is not None:
        raises = found.amount is None
        amount, bug = found.amount or amount, found.bug
        reason = f"{BUGS[bug]}{': the package raises' if raises else ''}"
    return DeepSpeedLine(
        function=call.name, module_path=call.path.site.path if call.path.site is not None else None, calls=calls,
        flops=calls * amount[0], macs=calls * amount[1], reason=reason, bug=bug, raises=raises)
