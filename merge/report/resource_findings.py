"""Defines findings, and makes those about hosts, networks, compilers, memory and FLOPs from sections of a document."""

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
"""Loading data is reported from this share of a step on."""
BLOCKED = 0.02
"""A line that waits is reported from this share of the steps on."""
SLOWER = 2.0
"""Collectives between hosts are reported if they are slower than those within a host by at least this factor."""
MEASURED = 5
"""Minimum number of collectives that a bandwidth must be based on."""
IDLE = 0.2
"""A device that waits for its host is reported from this share of its step on."""
BUBBLE = 0.1
UNCOUNTED = 0.01
"""Operators of unknown FLOPs are reported from this share of the bytes moved on."""
NAMED = 4
UNEVEN = 1.2
"""A rank is reported if its peak memory is at least this many times that of the median rank."""
WAITS_FOR = {"device": "the device", "communication": "other ranks", "data": "data"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence of the first screen."""

    severity: Severity
    text: str
    section: str
    """Key in the document of what the finding is about."""
    detail: str | None = None
    """Further sentences about it."""
    rank: int | None = None
    step: int | None = None
    module: str | None = None
    action: str | None = None
    """What usually helps."""
    next: str | None = None
    """The command that shows more."""
    view: str | None = None
    """The command that opens the trace at this place."""
    id: str | None = None
    """Id of a finding of the watch."""


def data_loading(document: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Yields time spent loading data in the thread of the steps, for which no rank waits if all are equally slow at it.

    Args:
        document: Has `step_parts` of traces with steps.
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
    """Yields devices that wait for their hosts, and for what; not if they only wait because the profiler slows hosts.

    Args:
        document: Has `step` and `step_parts`.
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
    """Returns the idle share of a device without the profiler, if it is equally busy then."""
    usual = step_time_of(step)
    return 1.0 if usual is None or not usual.is_light else 1 - (mean["duration_ns"] - mean["idle_ns"]) / usual.time_ns


def host_waits(document: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Yields the script line, or the operator, that blocks most; waits for other ranks are left to `comms`."""
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
    """Yields what torch.compile recompiled, and how often graphs broke."""
    found = document["waits"]
    totals = None if found is None else found["compilations"]["totals"]
    if totals is not None and (totals["recompile"] or totals["graph_break"]):
        failed, broke = (counted(totals[name], "time") for name in ("recompile", "graph_break"))
        yield Finding(severity="warn" if totals["recompile"] else "note", section="waits",
                      text=f"torch.compile recompiled {failed} after guard failures, and graphs broke {broke}, over "
                           "all ranks; compiling took "
                           f"{duration(totals['duration_ns'])}.", next=f"distprof waits {where}")


def bandwidth(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields an op that is much slower between hosts than within one, at similar sizes."""
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
    """Yields a rank whose peak memory is well above that of the others."""
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
    """Yields how long pipeline stages are idle."""
    found = document["pipeline"]
    if found is not None:
        yield Finding(severity="warn" if found["bubble_ratio"] >= BUBBLE else "note",
                      text=bubble(found), section="pipeline",
                      action="More micro-batches per step shrink the bubble.")


def uncounted(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields operators of unknown FLOPs that matter."""
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
