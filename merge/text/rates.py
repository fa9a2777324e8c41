"""Sentences on how fast a job is: step time and rates, MFU, exposed communication, pipeline bubble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from distprof.contract.merged import MfuBasis, PeakUsed
from distprof.contract.problems import RecordedLightly, Remark, from_json
from distprof.merge.text.phrases import step_time_words
from distprof.merge.totals.step_time import step_time_of
from distprof.units import counted, duration, percent, si

SEVERAL = ("pattern", "irregular")
"""Rules of jobs with several optimizers, which usually have several root modules as well."""
WORK = "forward and backward FLOPs of a step, recomputation left out, causal attention in full"
REMEDY = "pass one in FLOP/s with --peak (`distprof doctor --peak` measures it)"
NO_MFU = {
    "no_step": "it needs a counted step and a timed one",
    "no_device": f"rank {{rank}} did not record its device, so no peak can be looked up; {REMEDY}",
    "no_dtype": f"rank {{rank}} did not record the dtype of the products, so no peak can be looked up; {REMEDY}",
    "uncounted": "some timed modules were not counted",
    "no_peak": f"no published {{dtype}} peak for {{device}}; {REMEDY}",
}


def mesh(summary: Mapping[str, Any]) -> str:
    """Returns `4 ranks = dp 2 x tp 2`."""
    ranks = counted(summary["world_size"], "rank")
    if summary["topology"] is None:
        return ranks
    return f"{ranks} = {' x '.join(f'{axis} {size}' for axis, size in summary['topology'].items())}"


def lightly(summary: Mapping[str, Any]) -> RecordedLightly | None:
    """Returns which ranks were recorded fully; None if all were."""
    remarks = from_json(Remark, summary["remarks"])
    return next((one for one in remarks if isinstance(one, RecordedLightly)), None)


def rates(summary: Mapping[str, Any]) -> list[str]:
    """Returns what is known of `step 167 ms (160 to 181)`, `190.88 samples/s`, `72.63 GFLOP/s (18.16 GFLOP/s per GPU)`
    and says so if no step was timed."""
    step = summary["step"]
    usual = step_time_of(step)
    if usual is None:
        return ["step time unknown: no step was timed"]
    flops = step["flops_per_second"]
    found = [f"step {step_time_words(usual)}"]
    if step["samples_per_second"] is not None:
        several = " (of the root module that gets most)" if (step["found"] or {}).get("rule") in SEVERAL else ""
        found.append(f"{si(step['samples_per_second'])} samples/s{several}")
    if flops is not None:
        least = "at least " if summary["uncounted_ops"] else ""
        found.append(f"{least}{si(flops, 'FLOP/s')} ({si(flops / summary['world_size'], 'FLOP/s')} per GPU)")
    return found


def mfu(step: Mapping[str, Any], *, at_least: bool = False) -> str:
    """Returns `MFU 31.2 % = ...` from `step` of `summary.json`; `at_least` if FLOPs of some operators are unknown."""
    basis = msgspec.convert(step["mfu_basis"], MfuBasis)
    if step["mfu"] is None:
        return "MFU unknown: " + NO_MFU[basis.code].format(rank=basis.rank, device=basis.device, dtype=basis.dtype)
    least = "at least " if at_least else ""
    return f"MFU {least}{of_peak(step['mfu'])} = {WORK} / (step time x {'; '.join(map(peak_words, basis.peaks))})"


def of_peak(ratio: float) -> str:
    """Returns `41.3 %`, `0.027 %`: small models use so little of a large device."""
    return percent(ratio) if ratio >= 0.01 else f"{100 * ratio:.2g} %"


def peak_words(one: PeakUsed) -> str:
    """Returns `989 TFLOP/s, dense peak of ...`."""
    rate = si(one.flops_per_second, "FLOP/s")
    if one.source is None:
        return f"{rate}, as given"
    return f"{rate}, dense peak of {one.device} in {one.dtype}: {one.source}, {one.year}"


def exposed(found: Mapping[str, Any]) -> str | None:
    """Returns how much of a step is exposed communication, from `communication` of `summary.json`."""
    if found["waiting_ratio"] is not None:
        return (f"exposed communication: {percent(found['waiting_ratio'])} of {_step_of(found)} waiting for other "
                f"ranks, {percent(found['moving_ratio'])} moving data")
    if (both := found.get("exposed_ratio")) is None:  # or the merge was made by an earlier version
        return None
    why = "no collective is known from all of its ranks" if found["blind"] == "no collective" else "ranks are missing"
    return (f"exposed communication: {percent(both)} of {_step_of(found)}; how much of it is waiting for other ranks "
            f"is unknown, as {why}")


def _step_of(found: Mapping[str, Any]) -> str:
    return "a step of the device" if found.get("of_device") else "a step"


def bubble(found: Mapping[str, Any]) -> str:
    """Returns `pipeline of 4 stages: 27.3 % of a step waiting for messages of other stages (bubble); work ...`."""
    work = {one["stage"]: one["work_ns"] for one in found["stages"]}
    least, most = min(work, key=work.__getitem__), max(work, key=work.__getitem__)
    return (f"pipeline of {counted(len(work), 'stage')}: {percent(found['bubble_ratio'])} of a step waiting for "
            f"messages of other stages (bubble); work of a stage {duration(work[least])} (stage {least}) .. "
            f"{duration(work[most])} (stage {most}), the longest {found['imbalance_ratio']:.2f} x the mean")
