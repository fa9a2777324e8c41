"""What a finding is, and those about hosts, networks, compilers, memory and FLOPs, from sections of a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from distprof.merge.report.section import rows_of
from distprof.merge.text.communication.device_steps import host_work
from distprof.merge.text.phrases import capitalized
from distprof.merge.text.rates import bubble
from distprof.merge.totals.step_time import step_time_of
from distprof.units import counted, duration, percent, size

MORE_LOADERS = "Load data in more worker processes, or ahead of the step."
Severity = Literal["bad", "warn", "note", "good"]
DATA = 0.2
"""Share of a step from which on loading data is named."""
BLOCKED = 0.02
"""Share of the steps from which on a line that waits is named."""
SLOWER = 2.0
"""How much slower collectives between hosts have to be to be named."""
MEASURED = 5
"""Collectives that a bandwidth has to rest on."""
IDLE = 0.2
"""Share of the step of a device in which it waits for its host, from which on that is a warning."""
BUBBLE = 0.1
UNCOUNTED = 0.01
"""Share of the bytes moved from which on operators of unknown FLOPs are named."""
NAMED = 4
UNEVEN = 1.2
"""Peak against the median rank, from which on a rank is named."""
WAITS_FOR = {"device": "the device", "communication": "other ranks", "data": "data"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence of the first screen."""

    severity: Severity
    text: str
    section: str
    """Key of the document."""
    detail: str | None = None
    """What else is known of it."""
    rank: int | None = None
    step: int | None = None
    module: str | None = None
    action: str | None = None
    """What usually helps."""
    next: str | None = None
    """The command that shows more."""
    view: str | None = None
    """The command that opens the trace there."""
    id: str | None = None
    """Of a finding of the watch."""


def data_loading(document: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Loading data in the thread of the steps, which no rank waits for where all are alike slow at it.

    Args:
        document: With `step_parts` of traces that have steps.
        where: The run as an argument of a command.
    """
    parts = document["step_parts"]
    if parts is None or parts["source"] != "trace":
        return
    share = parts["mean"]["data_ns"] / parts["mean"]["duration_ns"]
    if share >= DATA:
        yield Finding(severity="warn", section="step_parts", next=f"distprof comms {where}",
                      action=MORE_LOADERS,
                      text=f"{percent(share)} of a traced step is spent loading data (mean over all ranks).")


def device_idle(document: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Devices that wait for their hosts, and for what; not where they only do so because the profiler slows hosts.

    Args:
        document: With `step` and `step_parts`.
        where: The run as an argument of a command.
    """
    parts = document["step_parts"]
    if parts is None or parts["source"] != "device":
        return
    if parts["doubts"]:
        yield Finding(severity="warn", section="step_parts", next=f"distprof comms {where}",
                      text=f"{capitalized(parts['doubts'][0])}.")
        return
    mean, meanwhile = parts["mean"], parts["meanwhile"]
    late = (mean["host_idle_ns"] + mean["sync_idle_ns"]) / mean["duration_ns"]
    loading = sum(one["ratio"] for one in meanwhile if one["kind"] == "data")
    if loading >= DATA:
        yield Finding(severity="warn", section="step_parts", next=f"distprof comms {where}", action=MORE_LOADERS,
                      text=f"For {percent(loading)} of its step the device is idle while the host is loading data "
                           "(mean over all ranks).")
    elif min(late, _idle_without_profiler(mean, document["step"])) >= IDLE:
        most = next(iter(meanwhile), None)
        what = "" if most is None or most["kind"] is None else (
            f"; the largest part: {host_work(most['kind'], most['where'])} ({percent(most['ratio'])})")
        yield Finding(severity="warn", section="step_parts", next=f"distprof comms {where}",
                      text=f"For {percent(late)} of its step, with the profiler on, the device waits for the host "
                           f"(mean over all ranks){what}.")


def _idle_without_profiler(mean: Mapping[str, Any], step: Mapping[str, Any]) -> float:
    """Share of a step without the profiler in which a device has nothing to do, if it is as busy then."""
    usual = step_time_of(step)
    return 1.0 if usual is None or not usual.is_light else 1 - (mean["duration_ns"] - mean["idle_ns"]) / usual.time_ns


def host_waits(document: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """The line of the script, or the operator, that blocks most; not what waits for other ranks, which `comms` has."""
    found = document["waits"]
    if found is None:
        return
    worst = next((row for row in rows_of(found["rows"]) if row["waits_for"] in ("device", "data")), None)
    if worst is None or (worst["step_ratio"] or 0) < BLOCKED:
        return
    line = "" if worst["file"] is None else f"{Path(worst['file']).name}:{worst['line']} "
    yield Finding(severity="warn", section="waits", module=worst["module"], rank=worst["slowest_rank"],
                  text=f"`{line}{worst['op'] or 'several operators'}` waits for {WAITS_FOR[worst['waits_for']]} for "
                       f"{percent(worst['step_ratio'])} of the time of the steps examined "
                       f"({counted(worst['blocking_calls'], 'call')}, {duration(worst['mean_ns'])} each).",
                  next=f"distprof waits {where}" if line or document["run"]["foreign"] else
                  "distprof run --steps sync=2 ...")


def compilations(document: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """What torch.compile compiled again, and where graphs break."""
    found = document["waits"]
    totals = None if found is None else found["compilations"]["totals"]
    if totals is not None and (totals["recompile"] or totals["graph_break"]):
        failed, broke = (counted(totals[name], "time") for name in ("recompile", "graph_break"))
        yield Finding(severity="warn" if totals["recompile"] else "note", section="waits",
                      text=f"torch.compile recompiled {failed} after guard failures, and graphs broke {broke}, over "
                           "all ranks; compiling took "
                           f"{duration(totals['duration_ns'])}.", next=f"distprof waits {where}")


def bandwidth(document: Mapping[str, Any]) -> Iterator[Finding]:
    """An op that is much slower between hosts than within one, for like sizes."""
    rows = [row for row in document["bandwidths"] or () if row["num_measured"] >= MEASURED and row["busbw_median"]]
    for one in rows:
        alike = [row for row in rows if row["between_hosts"] is False and row["op"] == one["op"]
                 and row["size_bucket"] == one["size_bucket"]]
        if one["between_hosts"] and alike:
            inside = max(row["busbw_median"] for row in alike)
            if inside >= SLOWER * one["busbw_median"]:
                yield Finding(severity="note", section="bandwidths",
                              text=f"{one['op']} of {size(one['size_bucket'])} reaches {_rate(one['busbw_median'])} "
                                   f"between hosts but {_rate(inside)} within a host (busbw, median).")
                return


def memory_imbalance(document: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """A rank whose peak is well above the others'."""
    found = document["memory"]
    of_ranks = [{"rank": row["rank"], "peak_bytes": row["device_bytes"]} for row in document["peak_memory"] or ()]
    peaks = [row for row in (of_ranks if found is None else rows_of(found["ranks"])) if row["peak_bytes"]]
    if len(peaks) < 2:
        return
    most, usual = max(peaks, key=lambda row: row["peak_bytes"]), median(row["peak_bytes"] for row in peaks)
    if most["peak_bytes"] >= UNEVEN * usual:
        yield Finding(severity="warn", section="memory", rank=most["rank"],
                      text=f"Rank {most['rank']} has the highest peak memory, {size(most['peak_bytes'])}: "
                           f"{most['peak_bytes'] / usual:.2f} x that of the median rank.",
                      next="distprof run --steps memory=1 ..." if found is None else
                      f"distprof memory --rank {most['rank']} {where}")


def pipeline_bubble(document: Mapping[str, Any]) -> Iterator[Finding]:
    """How long stages of a pipeline have nothing to do."""
    found = document["pipeline"]
    if found is not None:
        yield Finding(severity="warn" if found["bubble_ratio"] >= BUBBLE else "note",
                      text=bubble(found), section="pipeline",
                      action="More micro-batches per step shrink the bubble.")


def uncounted(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Operators of unknown FLOPs that matter."""
    totals = document["totals"]
    if totals is None or totals["coverage_ratio"] is None or 1 - totals["coverage_ratio"] < UNCOUNTED:
        return
    names = [one["op"].removeprefix("aten::") for one in totals["uncounted_ops"]]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    yield Finding(severity="warn", section="totals",
                  text=f"FLOPs of {counted(len(names), 'operator')} that move {percent(1 - totals['coverage_ratio'])} "
                       f"of all bytes are not counted: {', '.join(names[:NAMED])}{more}. All FLOP totals are lower "
                       "bounds.")


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s"
