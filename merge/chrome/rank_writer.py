"""Makes the second pass over a rank: feeds the decided events of its trace to the writers of the format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain

from distprof.errors import DataError
from distprof.merge.chrome.formats import RankWriter
from distprof.merge.chrome.rank_events import OtherThreadsError, RankCounts, RankEvents
from distprof.merge.chrome.rank_plan import RankPlan
from distprof.merge.chrome.survey import Survey, survey_trace
from distprof.merge.chrome.work_folder import StillWanted
from distprof.merge.scan.chrome_file import ChromeFile
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE, Scanner
from distprof.merge.scan.gunzip import READ_BYTES


def write_rank(plan: RankPlan, writers: Sequence[RankWriter]) -> RankCounts:
    """Writes the events of a rank with all writers in one pass; without a writer nothing is read.

    If the file can no longer be read, nothing is written, and the counts say why.

    Raises:
        DataError: The file is not a Chrome trace.
    """
    if not writers:
        return RankCounts(rank=plan.rank)
    plan = replace(plan, survey=plan.survey.whole())
    try:
        return _written(plan, writers)
    except DataError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        return _unwritten(plan, writers, str(error.args[0]))


def _unwritten(plan: RankPlan, writers: Sequence[RankWriter], why: str) -> RankCounts:
    """Leaves files without events."""
    counts = RankCounts(rank=plan.rank, lost=why)
    events = RankEvents(plan, _scanner(writers), counts)
    for writer in writers:
        writer.begin(events)
        writer.close()
    return counts


def _written(plan: RankPlan, writers: Sequence[RankWriter]) -> RankCounts:
    if not plan.selection.is_all:
        plan = replace(plan, survey=survey_trace(
            plan.trace, plan.selection, base_ns=plan.survey.base_ns, folder=plan.survey.folder))
    try:
        counts = _write(plan, writers)
        if _is_same(counts, plan.survey):
            return counts
    except OtherThreadsError:
        pass
    # the survey skims: because of damage within args it read other events
    return _write(replace(plan, survey=survey_trace(
        plan.trace, plan.selection, base_ns=plan.survey.base_ns, strict=True, folder=plan.survey.folder)), writers)


def _is_same(counts: RankCounts, survey: Survey) -> bool:
    found, before = counts.losses, survey.losses
    return (counts.num_read, found.damaged_events, found.lost_bytes) == (
        survey.num_events, before.damaged_events, before.lost_bytes)


def _each_once(keys: Iterable[Sequence[str]]) -> Sequence[str]:
    return tuple(dict.fromkeys(chain.from_iterable(keys)))


def _scanner(writers: Sequence[RankWriter]) -> Scanner:
    return ENGINE.new_scanner(integers=_each_once(writer.integers for writer in writers),
                              texts=_each_once(writer.texts for writer in writers))


def _write(plan: RankPlan, writers: Sequence[RankWriter]) -> RankCounts:
    scanner = _scanner(writers)
    file = ChromeFile(plan.trace.name, ChunkReader(plan.trace, chunk_bytes=READ_BYTES), scanner)
    layout = plan.survey.layout
    counts = RankCounts(
        rank=plan.rank, losses=file.losses, metadata=file.metadata, num_side=layout.num_side,
        num_cut=len(layout.cut_rows) + len(layout.moved_rows), num_hanging=len(layout.hanging_rows),
        num_left_out=layout.num_left_out)
    events, wanted = RankEvents(plan, scanner, counts), StillWanted(plan.survey.folder)
    with ExitStack() as stack:
        for writer in writers:
            writer.begin(events)
            stack.callback(writer.close)
        for text in file.scanned():
            wanted.look()
            decided = events.decide(text)
            for writer in writers:
                writer.add(decided)
        for writer in writers:
            writer.end()
    counts.num_bytes = file.num_bytes
    return counts
