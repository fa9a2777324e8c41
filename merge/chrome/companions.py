"""Adds traces of a rank by other programs, like VizTracer and py-spy, to its trace, as separate processes.

The result is written beside the merge and read like any trace. If both share a clock, times stay; otherwise the other
program's trace is moved to the start of the rank's trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
from isal import igzip

from distprof.arrays import Integers
from distprof.contract.problems import Problem, Remark, TimesFromStart, TracesBeside, Unreadable
from distprof.errors import DataError
from distprof.merge.chrome.survey import Survey, survey_trace
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.timelines import damages_of
from distprof.merge.scan.chrome_file import ChromeFile
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE
from distprof.merge.scan.made_events import meta
from distprof.merge.scan.scanned_columns import NONE
from distprof.merge.scan.trace_file import TraceFile

EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
FIRST_PID, PIDS_EACH, FIRST_TID = 3_000_000_000, 1_000_000, 2_000_000_000
"""Numbers that no system assigns to a process or thread."""
FIRST_ID = 1 << 40
"""Offset of arrow ids, beyond those of the rank's own trace."""
LEVEL = 1
NAMED = 3
"""How many file names a message lists."""


@dataclass(slots=True, kw_only=True)
class _Found:
    problems: list[Problem] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)
    """Names of traces that were added to those of ranks."""
    shifted: list[str] = field(default_factory=list)
    """Those of them that have a clock of their own."""


def with_companions(run: Run, folder: Path) -> Run:
    """Returns the run with traces that include those of other programs for the same rank, written to the folder."""
    if not any(rank.beside for rank in run.ranks):
        return run
    found = _Found()
    ranks = [rank if not rank.beside or rank.trace is None else _joined(rank, rank.trace, folder, found)
             for rank in run.ranks]
    remarks: list[Remark] = [one for one in run.remarks if not isinstance(one, TracesBeside)]
    for names, sort in ((found.drawn, TracesBeside), (found.shifted, TimesFromStart)):
        if names:
            remarks.append(sort(num_files=len(names), files=tuple(names[:NAMED]), **(
                {"drawn": True} if sort is TracesBeside else {})))
    return replace(run, ranks=ranks, remarks=tuple(remarks), problems=(*run.problems, *found.problems))


def _joined(rank: Rank, trace: TraceFile, folder: Path, found: _Found) -> Rank:
    plain = replace(trace, anonymiser=None)
    try:
        own = survey_trace(plain)
    except DataError:  # the merge reports it
        return rank
    more = []
    for number, beside in enumerate(rank.beside):
        try:
            survey = survey_trace(beside)
        except DataError as error:
            found.problems.append(Unreadable(file=beside.name, detail=str(error.args[0])))
            continue
        found.problems += damages_of(rank.number, beside, survey.damage, survey.losses, survey.num_events)
        found.drawn.append(beside.name)
        shift_ns = _shift_ns(own, survey)
        if shift_ns:
            found.shifted.append(beside.name)
        more.append(_Companion(trace=beside, survey=survey, add_ns=survey.base_ns - own.base_ns + shift_ns,
                               number=number))
    path = folder / f"rank{rank.number}.json.gz"
    with igzip.open(path, "wb", compresslevel=LEVEL) as file:
        for piece in _with_events(iter(ChunkReader(plain)), more):
            file.write(piece)
    return replace(rank, trace=TraceFile(path=path, label=trace.name, anonymiser=trace.anonymiser), beside=())


def _shift_ns(own: Survey, other: Survey) -> int:
    """Returns the shift of the other trace: 0 if the two overlap in time, which means that they share a clock."""
    if own.first_ns is None or own.last_ns is None or other.first_ns is None or other.last_ns is None:
        return 0
    at_once = own.first_ns <= other.last_ns and other.first_ns <= own.last_ns
    return 0 if at_once else own.first_ns - other.first_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Companion:
    """A trace that is added to another one."""

    trace: TraceFile
    survey: Survey
    add_ns: int
    number: int
    """Index among the companions of the rank."""

    def events(self) -> Iterator[bytes]:
        """Yields its events with new numbers, joined by commas, each piece ending with a comma."""
        pids = list(dict.fromkeys(pid for pid, _ in self.survey.threads))
        numbers = {pid: FIRST_PID + self.number * PIDS_EACH + place for place, pid in enumerate(pids)}
        for pid, number in numbers.items():
            name = self.trace.name if len(pids) == 1 else f"{self.trace.name} pid {pid}"
            yield msgspec.json.encode(meta(number, "process_labels", {"labels": name})) + b",\n"
        pid_of = np.array([numbers[pid] for pid, _ in self.survey.threads], np.int64)
        tid_of = np.array([_number(tid, FIRST_TID + place) for place, (_, tid) in enumerate(self.survey.threads)],
                          np.int64)
        scanner = ENGINE.new_scanner()
        for text in ChromeFile(self.trace.name, ChunkReader(self.trace), scanner).scanned():
            thread, at_ns = scanner.column("thread"), scanner.column("ts_ns")
            nothing: Integers = np.full(scanner.num_rows, NONE)
            keep = ((scanner.column("phase") != 0) & (thread < len(pid_of))).astype(np.uint8)
            thread = np.minimum(thread, len(pid_of) - 1)
            piece = scanner.rewrite(
                text, keep=keep, pid=pid_of[thread], tid=tid_of[thread], first_id=FIRST_ID * (self.number + 1),
                ts_ns=np.where(at_ns == NONE, NONE, at_ns + self.add_ns), dur_ns=nothing, links=nothing)
            if piece:
                yield bytes(piece) + b",\n"


def _number(tid: str, instead: int) -> int:
    return int(tid) if tid.isdecimal() and len(tid) < 10 else instead


def _with_events(text: Iterator[bytes], more: Sequence[_Companion]) -> Iterator[bytes]:
    """Yields the text of a trace with these events before its own."""
    held = b""
    for piece in text:
        held += piece
        match = EVENTS.search(held)
        if match is not None:
            yield held[:match.end()]
            for one in more:
                yield from one.events()
            yield held[match.end():]
            yield from text
            return
    yield held
