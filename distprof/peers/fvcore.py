"""fvcore's flop and activation counts as views of our record: counts of a call come in, its numbers go out.

Its convention (0.1.5): forward only, 1 multiply-accumulate is 1 flop; batch norm 2 per element in eval and 5 in
training, other norms 5 (each one less without weights), adaptive average pooling 1 per input, upsampling 1 (nearest)
or 4 (bilinear) and grid sampling 4 per output. Attention, recurrent layers, activations and arithmetic have no rule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from distprof.counting.counts import Counts
from distprof.peers.jit import FUSED_ATTENTION, Node, nodes
from distprof.peers.line import OUTSIDE, PeerLine
from distprof.peers.values import Value, shape_of

Rule = Callable[[list[Value], list[Value]], Any]
"""Arguments and results of an operator -> its count, or a Counter with names."""


def _shape(value: Value) -> list[int]:
    return shape_of(value) or []


def _linear(inputs: list[Value], _outputs: list[Value]) -> int:
    return prod(_shape(inputs[0])) * prod(_shape(inputs[1])[:-1])


def _addmm(inputs: list[Value], _outputs: list[Value]) -> int:
    return prod(_shape(inputs[1])) * _shape(inputs[2])[1]


def _matmul(inputs: list[Value], _outputs: list[Value]) -> int:
    second = _shape(inputs[1])
    # fvcore stops at a vector; everything else is its count, which forgets batches that only the second operand has
    return prod(_shape(inputs[0])) * (second[-1] if len(second) > 1 else 1)


def _convolution(inputs: list[Value], outputs: list[Value]) -> Counter[str]:
    image = _shape(inputs[0] if inputs[6].toIValue() else outputs[0])
    weight = _shape(inputs[1])
    return Counter(conv=_shape(inputs[0])[0] * prod(weight) * prod(image[-(len(weight) - 2):]))


def _einsum(inputs: list[Value], _outputs: list[Value]) -> int:
    equation = inputs[0].toIValue().replace(" ", "")
    shapes = [_shape(value) for value in inputs[1].node().inputs()]
    order = list(dict.fromkeys(letter for letter in equation if letter.isalpha()))
    renamed = "".join(chr(97 + order.index(letter)) if letter in order else letter for letter in equation)
    if renamed == "abc,abd->acd":
        return prod(shapes[0]) * shapes[1][2]
    if renamed == "abc,adc->adb":
        return prod(shapes[0]) * shapes[1][1]
    # numpy tells the flops of the best order, two per multiply-add, in four digits
    report = np.einsum_path(renamed, *(np.broadcast_to(0.0, shape) for shape in shapes), optimize="optimal")[1]
    told = next(line for line in report.splitlines() if "optimized flop" in line.lower())
    return int(float(told.rpartition(":")[2]) // 2)


def _norm(weight: int) -> Rule:
    def rule(inputs: list[Value], _outputs: list[Value]) -> int:
        return prod(_shape(inputs[0])) * (5 if inputs[weight].isCompleteTensor() else 4)

    return rule


def _batch_norm(inputs: list[Value], _outputs: list[Value]) -> int:
    per_element = 4 if inputs[5].toIValue() else 1
    return prod(_shape(inputs[0])) * (per_element + inputs[1].isCompleteTensor())


def _per_output(factor: int) -> Rule:
    return lambda _inputs, outputs: factor * prod(_shape(outputs[0]))


def _per_input(inputs: list[Value], _outputs: list[Value]) -> int:
    return prod(_shape(inputs[0]))


CONTRACTIONS: Mapping[str, Rule] = {
    "aten::_convolution": _convolution, "aten::addmm": _addmm, "aten::bmm": _matmul, "aten::einsum": _einsum,
    "aten::linear": _linear, "aten::matmul": _matmul, "aten::mm": _matmul,
}
ELEMENTWISE: Mapping[str, Rule] = {
    "aten::adaptive_avg_pool2d": _per_input, "aten::batch_norm": _batch_norm, "aten::grid_sampler": _per_output(4),
    "aten::group_norm": _norm(2), "aten::instance_norm": _norm(1), "aten::layer_norm": _norm(2),
    "aten::upsample_bilinear2d": _per_output(4), "aten::upsample_nearest2d": _per_output(1),
}
FLOPS: Mapping[str, Rule] = {**CONTRACTIONS, **ELEMENTWISE}

ACTIVATIONS: Mapping[str, Rule] = {
    **dict.fromkeys(sorted(CONTRACTIONS.keys() - {"aten::mm"}), _per_output(1)),
    "aten::_convolution": lambda _inputs, outputs: Counter(conv=prod(_shape(outputs[0]))),
}

_FREE = """
    chunk contiguous copy_ detach expand flatten narrow permute reshape roll select size slice split split_with_sizes
    squeeze t to transpose type_as unbind unsqueeze unsqueeze_ view cat stack constant_pad_nd dropout gather index
    index_put_ masked_fill
    arange empty full full_like new_empty new_full new_zeros ones zeros zeros_like
    __and__ bitwise_not clamp clamp_ eq floor floor_divide ge gt max nonzero relu relu_ remainder Int ScalarImplicit
"""
IGNORED = frozenset(f"aten::{name}" for name in _FREE.split())
"""Operators that fvcore takes for free, and so does not list as unsupported."""

BUGS: Mapping[str, str] = {
    "aten::matmul": "batch dimensions that only the second operand has are forgotten",
    "aten::bmm": "batch dimensions that only the second operand has are forgotten",
    "aten::mm": "counted like matmul",
    "aten::einsum": "flops of numpy's best order in four digits, halved; not the order that runs",
    "aten::_convolution_mode": "padding given by name is another operator, which has no rule: 0",
    "aten::grid_sampler": "4 per output element in every mode, nearest and bicubic too",
    FUSED_ATTENTION: "fused multi-head attention (eval without gradients) has no rule: its projections are lost too",
}
"""Where fvcore departs from its own convention: operator -> how."""
NO_RULE = "no rule: 0"


def flop_nodes(counts: Counts) -> list[Node]:
    """The operators fvcore would see; arguments only for those it counts."""
    return list(nodes(counts.functions, FLOPS.__contains__))


def by_operator(counts: Counts) -> Counter[str]:
    """fvcore's flops by operator name (conv, linear, matmul, batch_norm, ...), as its `by_operator()` gives them."""
    sums: Counter[str] = Counter()
    for node in flop_nodes(counts):
        if node.kind in FLOPS:
            for name, flops in named(node, FLOPS[node.kind](node.inputs, node.outputs)).items():
                sums[name] += flops * node.calls
    return sums


def unsupported_ops(counts: Counts) -> Counter[str]:
    """Operators fvcore has no rule for, with the number of their calls, as its `unsupported_ops()` gives them."""
    sums: Counter[str] = Counter()
    for node in flop_nodes(counts):
        if node.kind not in FLOPS and node.kind not in IGNORED:
            sums[node.kind] += node.calls
    return sums


def named(node: Node, result: Any) -> Counter[str]:
    """What a rule returned as numbers by operator name."""
    return result if isinstance(result, Counter) else Counter({node.kind.rpartition("::")[2]: result})


def view(counts: Counts, *, exact: bool = True) -> list[PeerLine]:
    """What fvcore would count, line by line.

    Args:
        counts: A counted call; only its forward part is looked at.
        exact: The numbers of the real package. False: its convention, with every contraction counted as it ran.

    Returns:
        A line for each function of each module that fvcore counts, and one of 0 flops for each that has contractions
        it does not see; `reason` says where it departs from what ran.
    """
    ran: dict[Place, int] = defaultdict(int)
    for op in counts.ops:
        if op.macs and op.phase == "forward":
            ran[op.functions[-1] if op.functions else OUTSIDE, op.module_path] += op.macs
    counted: dict[tuple[str, str | None, str], int] = defaultdict(int)
    for node in flop_nodes(counts):
        path = node.path.site.path if node.path.site is not None else None
        if node.kind in (FLOPS.keys() | BUGS.keys() if exact else ELEMENTWISE):
            counted[node.function, path, node.kind] += _flops(node)
    return (_exact if exact else _right)(counted, ran)


Place = tuple[str, str | None]
"""A torch function and the module that called it."""


def _flops(node: Node) -> int:
    rule = FLOPS.get(node.kind)
    return node.calls * sum(named(node, rule(node.inputs, node.outputs)).values()) if rule is not None else 0


def _right(counted: Mapping[tuple[str, str | None, str], int], ran: Mapping[Place, int]) -> list[PeerLine]:
    elementwise = [PeerLine(function=function, module_path=path, flops=flops, macs=0)
                   for (function, path, _), flops in counted.items()]
    return elementwise + [PeerLine(function=function, module_path=path, flops=macs, macs=macs)
                          for (function, path), macs in ran.items()]


def _exact(counted: Mapping[tuple[str, str | None, str], int], ran: Mapping[Place, int]) -> list[PeerLine]:
    lines = []
    for (function, path, kind), flops in counted.items():
        is_right = kind in CONTRACTIONS and flops == ran.get((function, path), 0)
        lines.append(PeerLine(function=function, module_path=path, flops=flops,
                              macs=flops if kind in CONTRACTIONS else 0,
                              reason="" if is_right else BUGS.get(kind, "")))
    seen = {(line.function, line.module_path) for line in lines}
    fused = {path for _, path, kind in counted if kind == FUSED_ATTENTION}
    return lines + [PeerLine(function=function, module_path=path, flops=0, macs=0,
                             reason=BUGS[FUSED_ATTENTION] if path in fused else NO_RULE)
                    for function, path in ran if (function, path) not in seen]
