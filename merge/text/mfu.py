"""MFU in one line: the ratio and the peaks that it rests on, or why it is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from distprof.contract.summary import MfuBasis, PeakUsed
from distprof.units import percent, si

WORK = "forward and backward FLOPs of a step, recomputation left out, causal attention in full"
REMEDY = "pass one in FLOP/s with --peak (`distprof doctor --peak` measures it)"
UNKNOWN = {
    "no_step": "a step of the count pass and one of the time pass are needed",
    "no_device": f"rank {{rank}} did not record its device, so no peak can be looked up; {REMEDY}",
    "no_dtype": f"rank {{rank}} did not record the dtype of the products, so no peak can be looked up; {REMEDY}",
    "no_peak": f"no published peak of {{device}} in {{dtype}} is at hand; {REMEDY}",
}


def mfu_line(step: Mapping[str, Any]) -> str:
    """`MFU 31.2 % = forward and backward FLOPs ...`, from `step` of `summary.json`."""
    basis = msgspec.convert(step["mfu_basis"], MfuBasis)
    if step["mfu"] is None:
        return "MFU unknown: " + UNKNOWN[basis.code].format(rank=basis.rank, device=basis.device, dtype=basis.dtype)
    return f"MFU {percent(step['mfu'])} = {WORK} / (step time x {'; '.join(map(_peak, basis.peaks))})"


def _peak(one: PeakUsed) -> str:
    rate = si(one.flops_per_second, "FLOP/s")
    if one.source is None:
        return f"{rate}, as given"
    return f"{rate}, dense peak of {one.device} in {one.dtype}: {one.source}, {one.year}"
