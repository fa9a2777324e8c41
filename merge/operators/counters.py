"""Reads CUPTI counters from traces, and finds the operators whose kernels they belong to.

torch.profiler records them with `_ExperimentalConfig(profiler_metrics=[...], profiler_measure_per_kernel=True)`: one
event per kernel, in the order of launches, with made-up times; the kernels themselves are not in such a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from distprof.arrays import Integers
from distprof.contract.problems import Problem, Unreadable
from distprof.errors import DataError
from distprof.merge.activity.device.commands import OF_ONE_KERNEL, of_names
from distprof.merge.operators.selection import Selection, check
from distprof.merge.operators.timeline.device_times import operator_around
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, RUNTIME, RankTimeline, read_timeline
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.timelines import for_each_rank, with_timelines
from distprof.merge.scan.chrome_file import ChromeFile
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE
from distprof.merge.scan.gunzip import READ_BYTES
from distprof.merge.scan.scanned_columns import SLICE

CATEGORY = b"cuda_profiler_range"
ADDS_UP = ".sum"
"""Suffix of counters that are amounts and can be summed; the others are rates, maxima and the like."""
AT_ONCE = 2
SASS = {f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": 2 if "fma" in op else 1
        for op in ("ffma", "fmul", "fadd", "hfma", "hmul", "hadd", "dfma", "dmul", "dadd")}
"""Counters of instructions -> FLOPs per instruction. Instructions of tensor cores are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedKernel:
    """A kernel with counters."""

    rank: int
    name: str
    launched_by: str | None
    """The innermost operator around its launch; None if there is none, or if launches and kernels cannot be matched."""
    counters: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRow:
    """Kernels with the same name that one operator launched."""

    launched_by: str | None
    name: str
    kernels: int
    counters: dict[str, float | None]
    """Sums of amounts, and means of other counters. None if no kernel has the counter."""

    @property
    def flops(self) -> float | None:
        """FLOPs according to the counters of `SASS`; None if one of them was not recorded."""
        values = [self.counters.get(name) for name in SASS]
        known = [value for value in values if value is not None]
        return None if len(known) < len(SASS) else sum(
            times * value for times, value in zip(SASS.values(), known, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounters:
    """The counters of a run, by operator and kernel."""

    rows: Sequence[CountedRow]
    """Largest first: by FLOPs, else by the first counter."""
    names: Sequence[str]
    """Names of the counters."""
    ranks: Sequence[int]
    """Ranks that have counters."""
    unmatched: Sequence[int]
    """Ranks whose numbers of kernels and launches differ, so that their operators are unknown."""
    problems: Sequence[Problem]


def run_counters(run: Run, ranks: Sequence[int] = ()) -> RunCounters:
    """Reads the counters in the traces of a run.

    Args:
        run: The run as it was opened.
        ranks: Only these ranks; empty: all.

    Raises:
        DataError: No trace has counters.
        UsageError: There is no such rank.
    """
    traced = [one for one in with_timelines(run).ranks if one.trace is not None]
    check(Selection(ranks=ranks), [one.number for one in traced], (), ())
    traced = [one for one in traced if one.number in ranks or not ranks]
    each = list(for_each_rank("read", rank_counters, traced, threads=AT_ONCE))
    kernels = [kernel for one in each if not isinstance(one, Unreadable) for kernel in one[0]]
    if not kernels:
        raise DataError(f"the timelines of {run.path} have no counters of CUPTI",
                        hint="torch.profiler records them with experimental_config=_ExperimentalConfig("
                             "profiler_metrics=[...], profiler_measure_per_kernel=True)")
    names = [*dict.fromkeys(name for kernel in kernels for name in kernel.counters)]
    rows = sorted(_rows(kernels, names), key=lambda row: -(row.flops or row.counters[names[0]] or 0))
    return RunCounters(
        rows=rows, names=names, ranks=sorted({kernel.rank for kernel in kernels}),
        unmatched=[rank.number for rank, one in zip(traced, each, strict=True)
                   if not isinstance(one, Unreadable) and not one[1]],
        problems=[one for one in each if isinstance(one, Unreadable)])


def rank_counters(rank: Rank) -> tuple[list[CountedKernel], bool] | Unreadable:
    """Returns kernels of a rank with counters, and whether their launches are known (True if there are no kernels)."""
    try:
        events = list(_events(rank))
        launchers = _launchers(read_timeline(rank)) if events else []
    except DataError as error:
        return Unreadable(rank=rank.number, detail=str(error))
    matches = len(launchers) == len(events)
    events.sort(key=lambda event: event["ts"])
    return [CountedKernel(rank=rank.number, name=str(event.get("name")), launched_by=launcher, counters=_numbers(event))
            for event, launcher in zip(events, launchers if matches else [None] * len(events), strict=True)], matches


def _events(rank: Rank) -> Iterator[dict[str, Any]]:
    assert rank.trace is not None
    scanner = ENGINE.new_scanner(integers=(), texts=())
    file = ChromeFile(rank.trace.name, ChunkReader(rank.trace, chunk_bytes=READ_BYTES), scanner)
    for text in file.scanned():
        categories = [one.lower() == CATEGORY for one in scanner.categories.texts()]
        held = np.array([*categories, False])[scanner.column("category")] & (scanner.column("phase") == SLICE)
        for row in np.flatnonzero(held).tolist():
            start, end = (int(scanner.column(name)[row]) for name in ("start", "end"))
            try:
                event = msgspec.json.decode(bytes(text[start:end]), type=dict[str, Any])
            except msgspec.DecodeError:
                continue  # reading the timeline reports damage
            if isinstance(event.get("ts"), (int, float)):
                yield event


def _numbers(event: dict[str, Any]) -> dict[str, float]:
    found = event.get("args")
    return {name: value for name, value in found.items() if isinstance(value, (int, float)) and "__" in name} if (
        isinstance(found, dict)) else {}


def _launchers(timeline: RankTimeline) -> list[str | None]:
    """Returns the names of the operators around the calls that launch one kernel each, in the order of time."""
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    around = operator_around(timeline, nesting)
    calls = np.flatnonzero((timeline.type == RUNTIME) & of_names(OF_ONE_KERNEL, timeline.names)[timeline.name])
    operators: Integers = around[calls[np.argsort(timeline.start_ns[calls], kind="stable")]]
    return [None if row < 0 else timeline.names[timeline.name[row]] for row in operators.tolist()]


def _rows(kernels: Sequence[CountedKernel], names: Sequence[str]) -> Iterator[CountedRow]:
    groups = dict[tuple[str | None, str], list[CountedKernel]]()
    for kernel in kernels:
        groups.setdefault((kernel.launched_by, kernel.name), []).append(kernel)
    for (launched_by, name), some in groups.items():
        yield CountedRow(launched_by=launched_by, name=name, kernels=len(some), counters={
            counter: _together(counter, [one.counters[counter] for one in some if counter in one.counters])
            for counter in names})


def _together(counter: str, values: Sequence[float]) -> float | None:
    if not values:
        return None
    return sum(values) if counter.endswith(ADDS_UP) else sum(values) / len(values)
