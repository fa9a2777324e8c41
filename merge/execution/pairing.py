"""Finds the timeline of execution traces whose names do not contain the rank, by the calls that both recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from distprof.contract.problems import ExecutionTraceLeftOut, LeftOut, Problem, Remark, Unreadable
from distprof.errors import DataError
from distprof.merge.execution.linking import FUNCTION, LEAST, Calls, calls_of_table, calls_of_timeline, joined
from distprof.merge.execution.node_table import NodeTable, read_table
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, RankTimeline, Wanted, read_timeline
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.traces.discovery import first_few
from distprof.merge.run.traces.rank_from_name import NUMBER
from distprof.merge.scan.trace_file import TraceFile

TOGETHER = ((True, True), (True, False), (False, True), (False, False))
"""Whether an execution trace has the process number of a timeline, and the timeline's rank as a number in its file
name; the most reliable combination first. In each case the calls must agree too: ranks of one job often have the same
calls with the same ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Ranks with their execution traces, and messages about traces that could not be assigned."""

    ranks: Sequence[Rank]
    remarks: Sequence[Remark] = ()
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """A file with what it is compared by."""

    trace: TraceFile
    calls: Calls
    process: int | None
    rank: int | None = None


@dataclass(slots=True, kw_only=True)
class _Files:
    """Reads the files that are compared, each once; problems are collected."""

    labels: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def execution_traces(self, traces: Iterable[TraceFile]) -> Iterator[_Recorded]:
        for trace in traces:
            try:
                table = read_table(trace)
            except DataError as error:
                self.problems.append(Unreadable(file=trace.name, detail=str(error.args[0])))
                continue
            yield _Recorded(trace=trace, calls=calls_of_table(table, self.labels), process=observed_process(table))

    def timelines(self, traces: Iterable[tuple[int | None, TraceFile]]) -> Iterator[_Recorded]:
        for rank, trace in traces:
            try:
                timeline = read_timeline(Rank(number=rank or 0, folder=Path(), trace=trace),
                                         wanted=Wanted(integers=(FUNCTION,)))
            except DataError:  # reported when the run is opened
                continue
            yield _Recorded(trace=trace, calls=calls_of_timeline(timeline, self.labels),
                            process=process_of(timeline), rank=rank)


def observed_process(table: NodeTable) -> int | None:
    """Returns the process number that an execution trace states."""
    process = table.file.metadata.get("pid")
    return process if type(process) is int else None


def process_of(timeline: RankTimeline) -> int | None:
    """Returns the process with the most host slices."""
    threads = timeline.thread[timeline.type < NUM_HOST]
    if not len(threads):
        return None
    process = timeline.threads[int(np.argmax(np.bincount(threads)))].partition(" ")[0]
    return int(process) if process.isdecimal() and len(process) < 20 else None


def paired(run: Run) -> Paired:
    """Assigns execution traces without a rank in their names to the ranks with a timeline of the same process.

    Raises:
        DataError: There are execution traces, and none can be assigned to a rank.
    """
    if not run.unpaired.execution_traces:
        return Paired(ranks=run.ranks)
    files = _Files()
    free = list(files.timelines((one.number, one.trace) for one in run.ranks
                                if one.trace is not None and one.execution_trace is None))
    loose = list(files.execution_traces(run.unpaired.execution_traces))
    of_rank, alike = _matched(loose, free)
    ranks = [replace(one, execution_trace=of_rank[one.number].trace) if one.number in of_rank else one
             for one in run.ranks]
    if all(one.execution_trace is None for one in ranks):
        raise DataError(
            "no execution trace here is known to be of a timeline's process: "
            + first_few([one.name for one in run.unpaired.execution_traces]),
            hint="pass the execution trace and the timeline of one process: distprof export ET TIMELINE; or timelines "
                 "alone")
    used = {one.trace for one in of_rank.values()}
    others = [one for one in loose if one.trace not in used]
    without_rank = list(files.timelines((None, one) for one in run.unpaired.timelines)) if others else []
    remarks = [_left_out(one, alike.get(one.trace, ()), free, without_rank) for one in others]
    return Paired(ranks=ranks, remarks=remarks, problems=files.problems)


def _matched(loose: Sequence[_Recorded], free: Sequence[_Recorded]) -> (
        tuple[dict[int, _Recorded], dict[TraceFile, Sequence[str]]]):
    """Returns rank -> its execution trace, and the timelines of execution traces that fit several equally well."""
    of_rank, alike = dict[int, _Recorded](), dict[TraceFile, Sequence[str]]()
    done = set[TraceFile]()
    for together in TOGETHER:
        for one in loose:
            if one.trace in done:
                continue
            left = [other for other in free if other.rank not in of_rank and _together(one, other) == together]
            best = _best(one, left)
            if len(best) == 1 and best[0].rank is not None:
                of_rank[best[0].rank] = one
            elif best:
                alike[one.trace] = [other.trace.name for other in best]
            if best:
                done.add(one.trace)
    return of_rank, alike


def _together(one: _Recorded, timeline: _Recorded) -> tuple[bool, bool]:
    return (one.process is not None and one.process == timeline.process,
            timeline.rank in {int(number) for number in NUMBER.findall(Path(one.trace.name).name)})


def _best(one: _Recorded, timelines: Sequence[_Recorded]) -> list[_Recorded]:
    """Returns the timelines that share the most calls with it, if these are at least `LEAST`; several if equal."""
    shares = [(_share(one.calls, other.calls), other) for other in timelines]
    most = max((share for share, _ in shares), default=0.0)
    return [other for share, other in shares if share == most >= LEAST]


def _share(ours: Calls, theirs: Calls) -> float:
    same, _, compared, _ = joined(ours, theirs)
    return len(same) / compared if compared else 0.0


def _left_out(one: _Recorded, alike: Sequence[str], free: Sequence[_Recorded], without_rank: Sequence[_Recorded]) -> (
        Remark):
    if alike:
        return ExecutionTraceLeftOut(file=one.trace.name, what="alike", timelines=tuple(alike))
    sides: tuple[tuple[LeftOut, Sequence[_Recorded]], ...] = (("without_rank", without_rank), ("taken", free))
    for what, some in sides:
        if best := _best(one, some):
            return ExecutionTraceLeftOut(file=one.trace.name, what=what,
                                         timelines=tuple(other.trace.name for other in best))
    return ExecutionTraceLeftOut(file=one.trace.name, what="unknown")
