"""Multiply-accumulates that ptflops reports with its `aten` backend for a counted call."""

from __future__ import annotations

import json
from collections import defaultdict

from distprof.counting.count import Counts
from distprof.counting.counted_call import OpCount
from distprof.counting.torch_functions import TensorSpec
from distprof.peers.traced_ops import OUTSIDE, PeerLine, fused_paths
from distprof.shape_formulas.operator_call import OF_COMPLEX, PART_OF_COMPLEX

COUNTED = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution"})
"""Contractions for which it has a rule; it has none for attention kernels, baddbmm and recurrent kernels."""
BIAS = "adds the bias, once per output element"
FUSED = "fused multi-head attention (eval without gradients) has no rule, so its projections are lost too"
CONVOLUTION = "torch.nn.functional.conv"


def peer_lines(counts: Counts, *, exact: bool = True) -> list[PeerLine]:
    """Returns a line for each function and module, in forward, 1 per multiply-accumulate.

    Args:
        counts: A counted call.
        exact: True for the numbers of the real package; False for every contraction as it ran, plus additions of
            biases.
    """
    sums: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0, 0])
    for op in counts.ops:
        if op.phase == "forward" and (op.macs if not exact else op.op in COUNTED and not op.kernel):
            entry = sums[op.function or OUTSIDE, op.module_path]
            entry[0] += op.macs if not exact else _as_shaped(op)
            entry[1] += _matrix_bias(op)
    for call, calls in counts.functions.items():
        path = call.path.site.path if call.path.site is not None else None
        biased = call.argument(2, "bias") is not None and isinstance(call.output, TensorSpec)
        if biased and call.name.startswith(CONVOLUTION) and (call.name, path) in sums:
            sums[call.name, path][1] += calls * call.output.numel()
    lost = {path.site.path for path in fused_paths(counts.functions) if path.site is not None} if exact else set()
    return [PeerLine(function=function, module_path=path, flops=0, macs=0, reason=FUSED) if path in lost else
            PeerLine(function=function, module_path=path, flops=macs + bias, macs=macs, reason=BIAS if bias else "")
            for (function, path), (macs, bias) in sums.items()]


def _as_shaped(op: OpCount) -> int:
    """Returns the MACs with complex numbers counted like real ones, as ptflops does."""
    return op.macs // 4 if op.note == OF_COMPLEX else op.macs * 2 // 3 if op.note == PART_OF_COMPLEX else op.macs


def _matrix_bias(op: OpCount) -> int:
    if op.op != "aten::addmm":
        return 0
    _, left, right = json.loads(op.shapes)
    return op.calls * int(left[0] * right[1])
