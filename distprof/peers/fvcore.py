"""fvcore's flops for a counted call: one line per function and module, and the work that fvcore misses.

Also fvcore's rules for flops and activations of single operators. Its convention (0.1.5): forward only; 1
multiply-accumulate is 1 flop; batch norm 2 per element in eval and 5 in training, other norms 5 (each one less without
weights), adaptive average pooling 1 per input, upsampling 1 (nearest) or 4 (bilinear) and grid sampling 4 per output.
Attention, recurrent layers, activations and arithmetic have no rule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from math import prod
from typing import Any

from distprof.counting.count import Counts
from distprof.counting.torch_functions import FunctionCall
from distprof.peers.einsum import printed_flops
from distprof.peers.jit_values import JitValue, get_shape
from distprof.peers.traced_ops import FUSED_ATTENTION, OUTSIDE, PeerLine, TracedOp, traced_ops

OperatorRule = Callable[[list[JitValue], list[JitValue]], Any]
"""Arguments and results of an operator -> its count, or a Counter by name."""
BATCHED_PRODUCTS = frozenset({"abc,abd->acd", "abc,adc->adb"})
"""einsum equations that fvcore counts exactly, with labels renamed in order of appearance."""


def _shape(value: JitValue) -> list[int]:
    return get_shape(value) or []


def _size(value: JitValue) -> int:
    return prod(_shape(value))


def _matmul(inputs: list[JitValue], _outputs: list[JitValue]) -> int:
    second = _shape(inputs[1])
    # as fvcore, which ignores batches that only the second operand has; for a vector, fvcore raises
    return _size(inputs[0]) * (second[-1] if len(second) > 1 else 1)


def _convolution(inputs: list[JitValue], outputs: list[JitValue]) -> Counter[str]:
    is_transposed = inputs[6].toIValue()
    image, weight = inputs[0] if is_transposed else outputs[0], inputs[1]
    places = _shape(inputs[0])[0] * prod(_shape(image)[2:])
    return Counter(conv=places * _size(weight))


def _einsum(inputs: list[JitValue], _outputs: list[JitValue]) -> int:
    equation = inputs[0].toIValue().replace(" ", "")
    shapes = [tuple(_shape(value)) for value in inputs[1].node().inputs()]
    labels = dict.fromkeys(letter for letter in equation if letter.isalpha())
    renamed = equation.translate({ord(label): 97 + index for index, label in enumerate(labels)})
    if renamed in BATCHED_PRODUCTS:
        terms = equation.partition("->")[0].split(",")
        return prod({label: size for term, shape in zip(terms, shapes, strict=True)
                     for label, size in zip(term, shape, strict=True)}.values())
    return int(printed_flops(renamed, shapes) // 2)


def _norm(weight_at: int) -> OperatorRule:
    def rule(inputs: list[JitValue], _outputs: list[JitValue]) -> int:
        return _size(inputs[0]) * (5 if inputs[weight_at].isCompleteTensor() else 4)

    return rule


def _batch_norm(inputs: list[JitValue], _outputs: list[JitValue]) -> int:
    per_element = 4 if inputs[5].toIValue() else 1
    return _size(inputs[0]) * (per_element + inputs[1].isCompleteTensor())


def _per_output(factor: int) -> OperatorRule:
    return lambda _inputs, outputs: factor * _size(outputs[0])


CONTRACTIONS: Mapping[str, OperatorRule] = {
    "aten::_convolution": _convolution, "aten::bmm": _matmul, "aten::einsum": _einsum, "aten::matmul": _matmul,
    "aten::mm": _matmul,
    "aten::addmm": lambda inputs, _outputs: _size(inputs[1]) * _shape(inputs[2])[1],
    "aten::linear": lambda inputs, _outputs: _size(inputs[0]) * prod(_shape(inputs[1])[:-1]),
}
ELEMENTWISE: Mapping[str, OperatorRule] = {
    "aten::adaptive_avg_pool2d": lambda inputs, _outputs: _size(inputs[0]), "aten::batch_norm": _batch_norm,
    "aten::grid_sampler": _per_output(4), "aten::group_norm": _norm(2), "aten::instance_norm": _norm(1),
    "aten::layer_norm": _norm(2), "aten::upsample_bilinear2d": _per_output(4),
    "aten::upsample_nearest2d": _per_output(1),
}
FLOPS: Mapping[str, OperatorRule] = {**CONTRACTIONS, **ELEMENTWISE}

ACTIVATIONS: Mapping[str, OperatorRule] = {
    **dict.fromkeys(sorted(CONTRACTIONS.keys() - {"aten::mm"}), _per_output(1)),
    "aten::_convolution": lambda _inputs, outputs: Counter(conv=_size(outputs[0])),
}

_FREE = """
    chunk contiguous copy_ detach expand flatten narrow permute reshape roll select size slice split split_with_sizes
    squeeze t to transpose type_as unbind unsqueeze unsqueeze_ view cat stack constant_pad_nd dropout gather index
    index_put_ masked_fill
    arange empty full full_like new_empty new_full new_zeros ones zeros zeros_like
    __and__ bitwise_not clamp clamp_ eq floor floor_divide ge gt max nonzero relu relu_ remainder Int ScalarImplicit
"""
FREE = frozenset(f"aten::{name}" for name in _FREE.split())
"""Operators that fvcore ignores without listing them as unsupported."""

BUGS: Mapping[str, str] = {
    "aten::matmul": "ignores batch dimensions that only the second operand has",
    "aten::bmm": "ignores batch dimensions that only the second operand has",
    "aten::mm": "counts it like matmul",
    "aten::einsum": "takes numpy's FLOPs for the best order (four digits), halved; not the order that runs",
    "aten::_convolution_mode": "padding given by name is a different operator without a rule: 0",
    "aten::grid_sampler": "counts 4 per output element in every mode, including nearest and bicubic",
    FUSED_ATTENTION: "fused multi-head attention (eval without gradients) has no rule, so its projections are lost "
                     "too",
}
"""Operator -> how fvcore deviates from its own convention."""
NO_RULE = "no rule: 0"
UNUSED = "its result is unused: a trace drops such operators, although they ran"


CallSite = tuple[str, str | None]
"""A torch function and the path of the module that called it."""
Counted = tuple[str, str | None, str]
"""Torch function, module path, and kind of the operator in a trace."""


def by_name(op: TracedOp, result: object) -> Counter[str]:
    """Returns the result of a rule as a Counter; a plain number gets the name of the operator."""
    return result if isinstance(result, Counter) else Counter({op.kind.rpartition("::")[2]: result})


def peer_lines(counts: Counts, *, exact: bool = True) -> list[PeerLine]:
    """Returns a line for each function and module that fvcore counts, and one of 0 flops for each whose work it misses.

    Args:
        counts: A counted call.
        exact: True for the numbers of the real package; False for its convention, with every contraction counted as it
            ran.
    """
    ran: dict[CallSite, int] = defaultdict(int)
    for op in counts.ops:
        if op.macs and op.phase == "forward":
            ran[op.functions[-1] if op.functions else OUTSIDE, op.module_path] += op.macs
    if not exact:
        return _right(_counted(counts.functions, ELEMENTWISE.keys()), ran)
    kinds = FLOPS.keys() | BUGS.keys()
    dropped = _counted(counts.unused, kinds)
    counted = Counter(_counted(counts.functions, kinds))
    counted.subtract(dropped)
    return _exact(counted, dropped, ran)


def _counted(functions: Mapping[FunctionCall, int], kinds: Collection[str]) -> dict[Counted, int]:
    """Returns the flops of operators of these kinds."""
    sums: dict[Counted, int] = defaultdict(int)
    for traced in traced_ops(functions, FLOPS.__contains__):
        if traced.kind in kinds:
            path = traced.path.site.path if traced.path.site is not None else None
            result = FLOPS[traced.kind](traced.inputs, traced.outputs) if traced.kind in FLOPS else 0
            sums[traced.function, path, traced.kind] += traced.calls * sum(by_name(traced, result).values())
    return sums


def _right(counted: Mapping[Counted, int], ran: Mapping[CallSite, int]) -> list[PeerLine]:
    elementwise = [PeerLine(function=function, module_path=path, flops=flops, macs=0)
                   for (function, path, _), flops in counted.items()]
    return elementwise + [PeerLine(function=function, module_path=path, flops=macs, macs=macs)
                          for (function, path), macs in ran.items()]


def _exact(counted: Mapping[Counted, int], dropped: Mapping[Counted, int], ran: Mapping[CallSite, int],
           ) -> list[PeerLine]:
    lines = []
    for (function, path, kind), flops in counted.items():
        unused = dropped.get((function, path, kind), 0)
        is_right = kind in CONTRACTIONS and flops + unused == ran.get((function, path), 0)
        reasons = ["" if is_right else BUGS.get(kind, ""), UNUSED if unused and kind in CONTRACTIONS else ""]
        lines.append(PeerLine(function=function, module_path=path, flops=flops,
                              macs=flops if kind in CONTRACTIONS else 0, reason="; ".join(filter(None, reasons))))
    seen = {(line.function, line.module_path) for line in lines}
    fused = {path for _, path, kind in counted if kind == FUSED_ATTENTION}
    return lines + [PeerLine(function=function, module_path=path, flops=0, macs=0,
                             reason=BUGS[FUSED_ATTENTION] if path in fused else NO_RULE)
                    for function, path in ran if (function, path) not in seen]
