"""The watch of a whole job: pieces of ranks go in, findings and the state of the job come out, live and afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from distprof.contract.paths import rank_folder
from distprof.contract.watch_state import FORMAT, WatchFinding, WatchState, is_fresh, read_state
from distprof.errors import DataError
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.watch.grid import Grid
from distprof.merge.watch.job_growth import growing, job_growths
from distprof.merge.watch.late_ranks import together_steps
from distprof.merge.watch.long_steps import LongSteps, OwnWork
from distprof.merge.watch.now_and_then import now_and_then, split
from distprof.merge.watch.pieces import PATTERN, Piece, RankReader
from distprof.merge.watch.sampled_steps import SampledSteps
from distprof.merge.watch.slow_ranks import slow_ranks
from distprof.merge.watch.state import LastRows, Register, waiting
from distprof.merge.watch.view import View

STOPPED_NS = 20_000_000_000
"""A rank that is silent for longer than that, and than three of its longest steps, while others go on, has stopped."""
UNEVEN_NS = 2_000_000_000
"""Ranks whose steps took by that much longer than those of others went on without them."""
SELDOM = 400
"""Blocks, for each of which a look waits for another time that one became full: in a long job a look costs more."""
AT_ONCE = 4096
"""Rows of a rank that are taken together, so that a long job needs no more memory than a live one."""
MOST_RANKS = 64
MOST_BYTES = 48 << 20
"""Of all ranks together: without a watcher, longer jobs are not looked at again by every command."""


class JobWatch:
    """What is known of a job by now."""

    def __init__(self, hosts: Mapping[int, str]) -> None:
        """Nothing yet.

        Args:
            hosts: Of each rank.
        """
        self._hosts: dict[int, str] = {}
        self._grid, self._sampled, self._long = Grid(), SampledSteps(), LongSteps()
        self._last: dict[int, LastRows] = {}
        self._register = Register()
        self._own_work: dict[int, OwnWork] = {}
        self._unseen = 0
        self._looked_ns = 0
        for rank, host in sorted(hosts.items()):
            self.add_rank(rank, host)

    def add_rank(self, rank: int, host: str) -> None:
        """A rank more, or another host of one."""
        self._hosts[rank] = host
        if rank in self._last:
            self._last[rank].host = host
            return
        self._last[rank] = LastRows(rank, host)
        self._grid.add_rank(rank)
        self._sampled.add_rank(rank)

    def add(self, rank: int, piece: Piece) -> None:
        """What `RankReader.new` gave."""
        if rank not in self._last:
            self.add_rank(rank, "")
        own = self._own_work.setdefault(rank, OwnWork())
        own.add(piece.notes)
        self._last[rank].add(piece.columns, piece.notes)
        piece = own.without(piece)
        self._grid.add(rank, piece.columns)
        self._sampled.add(rank, piece.samples)
        self._long.add(rank, piece.columns, piece.notes)

    def findings(self) -> list[WatchFinding]:
        """Everything that was noticed, in the order in which it was; ids stay, the rest is as of now."""
        if self._advance():
            self._unseen += 1
        if self._unseen * SELDOM > len(self._grid.blocks.first):
            self.look()
            self._unseen = 0
        return list(self._register.findings)

    def _advance(self) -> bool:
        full = self._grid.advance()
        until = self._grid.frontier()
        self._sampled.advance(until, {rank for rank, one in self._last.items() if one.last_step + 1 >= until > 0})
        return full

    def look(self) -> None:
        """Searches now; `findings` does it now and then."""
        view = View(self._grid, self._sampled, self._hosts)
        found = split(view, slow_ranks(view))
        found += job_growths(view, found)
        found += now_and_then(view, found, self._long)
        found += _memory(view)
        self._note(found, view.typical_ns)

    def _note(self, found: list[WatchFinding], typical_ns: float) -> None:
        newest = max((one.end_ns for one in self._last.values()), default=0)
        self._register.update(found, newest, self._grid.frontier(), together_steps(typical_ns))

    def state(self, now_ns: int, *, run_id: str, running: bool) -> WatchState:
        """The job as of now.

        Args:
            now_ns: Since the epoch.
            run_id: Of the run.
            running: Whether ranks are still there: else who is silent has ended with the others.
        """
        findings = self.findings()
        if running:
            self._register.update([*_living(findings), *self._stopped(now_ns)], now_ns, self._grid.frontier(), 1e9)
        known = [one for one in self._last.values() if one.first is not None]
        num_steps = min((one.last_step + 1 for one in known), default=0)
        ratio, place = waiting(self._sampled), {rank: number for number, rank in enumerate(self._grid.ranks)}
        ranks = [state for rank, one in sorted(self._last.items())
                 if (state := one.state(_finite(ratio[place[rank]]))) is not None]
        view = View(self._grid, self._sampled, self._hosts)
        return WatchState(
            format=FORMAT, run_id=run_id, time_ns=now_ns, running=running, world_size=len(self._last),
            num_steps=num_steps,
            first_watched=min((one.first for one in known if one.first is not None), default=None),
            elapsed_ns=max((one.elapsed_ns for one in known if one.last_step + 1 == num_steps), default=None),
            step_ns=self._step_ns(view), ranks=ranks, findings=list(self._register.findings),
            notes=[] if running else list(_uneven(known, num_steps)))

    def _step_ns(self, view: View) -> float | None:
        """Median over the watched job; before a block is full that of the rows."""
        if len(self._grid.blocks.first):
            return _finite(view.typical_ns)
        return _finite(float(np.nanmedian(self._grid.rows[:, :, 0]))) if self._grid.rows.size else None

    def _stopped(self, now_ns: int) -> Iterator[WatchFinding]:
        """By when rows came, as ranks may have clocks that are set apart."""
        anew = not 0 <= now_ns - self._looked_ns <= STOPPED_NS / 2  # the clock was set, or nobody looked
        self._looked_ns = now_ns
        for one in self._last.values():
            one.look(now_ns, anew=anew)
        newest = max((one.came_ns for one in self._last.values()), default=0)
        for rank, one in self._last.items():
            patience = max(STOPPED_NS, 3 * one.longest_ns)
            if one.first is not None and not one.ended and one.came_ns + patience < newest:
                yield WatchFinding(id="", kind="stopped", ranks=[rank], hosts=[self._hosts[rank]],
                                   onset_step=one.last_step + 1, onset_ns=one.end_ns)


def _living(findings: list[WatchFinding]) -> list[WatchFinding]:
    return [one for one in findings if one.until_step is None and one.kind != "stopped"]


def _uneven(known: list[LastRows], num_steps: int) -> Iterator[str]:
    """That some ranks went on without the others."""
    times = [one.elapsed_ns for one in known]
    longer = [one for one in known if one.last_step + 1 > num_steps]
    if longer and max(times) - min(times) > UNEVEN_NS:  # not only rows that a killed rank did not write
        last = max(one.last_step for one in longer)
        yield f"only {len(longer)} of {len(known)} ranks noted steps {num_steps:,} to {last:,}: these are not compared"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _memory(view: View) -> Iterator[WatchFinding]:
    for name, of in growing(view.grid.blocks).items():
        ranks = [view.ranks[place] for place in of]
        slopes, steps = [one for one, _ in of.values()], [step for _, step in of.values()]
        onset = int(np.median(steps))
        yield WatchFinding(
            id="", kind="memory_growth", ranks=sorted(ranks),
            hosts=sorted({view.hosts.get(rank, "") for rank in ranks}), onset_step=onset, onset_ns=view.time_of(onset),
            bytes_per_hour=float(np.median(slopes)), why=[] if name == "host_bytes" else ["memory of the device"])


def watched(run_folder: Path, hosts: Mapping[int, str]) -> JobWatch:
    """The watch of a job that has ended, or as of now.

    Args:
        run_folder: With folders of ranks.
        hosts: Of each rank.
    """
    pieces = {rank: RankReader(run_folder / rank_folder(rank)).new() for rank in hosts}
    return watched_pieces(pieces, hosts)


def watched_pieces(pieces: Mapping[int, Piece], hosts: Mapping[int, str]) -> JobWatch:
    """The same of pieces that were read."""
    job = JobWatch(hosts)
    longest = max((len(piece.columns["first_step"]) for piece in pieces.values()), default=0)
    for begin in range(0, longest, AT_ONCE):
        for rank, piece in pieces.items():
            job.add(rank, _part(piece, begin))
        job.findings()
    job.look()
    return job


def _part(piece: Piece, begin: int) -> Piece:
    columns: dict[str, Any] = {name: values[begin:begin + AT_ONCE] for name, values in piece.columns.items()}
    ends = piece.columns["first_step"] + piece.columns["num_steps"]
    low, high = (ends[place - 1] if 0 < place <= len(ends) else 0 if not place else np.iinfo(np.int64).max
                 for place in (begin, begin + AT_ONCE))
    return Piece(columns=columns, samples=[one for one in piece.samples if low <= one.step.step < high],
                 notes=[one for one in piece.notes if low <= one.step < high])


def known_state(run: Run) -> WatchState | None:
    """All that is known of the watched steps; None where no step was watched, or nobody has looked.

    Args:
        run: What was recorded.
    """
    if run.kind != "distprof":
        return None
    written = None if run.more else _written(run.path)  # each host of several wrote its own
    found = written if written is not None else _of_files(run)
    return found if found is not None and found.num_steps else None


def watch_files(rank: Rank) -> list[Path]:
    """The files of a rank; none where it was not watched, or its folder is gone."""
    with suppress(OSError):
        return sorted(rank.folder.glob(PATTERN))
    return []


def num_bytes(rank: Rank) -> int:
    """What the files of a rank hold."""
    found = 0
    for path in watch_files(rank):
        with suppress(OSError):
            found += path.stat().st_size
    return found


def _written(run: Path) -> WatchState | None:
    """What the watcher wrote last; None where that is not its last word."""
    try:
        state = read_state(run)
    except DataError:
        return None
    return state if state is not None and is_fresh(state) else None


def _of_files(run: Run) -> WatchState | None:
    ranks = [rank for rank in run.ranks if watch_files(rank)] if len(run.ranks) <= MOST_RANKS else []
    if not ranks or sum(map(num_bytes, ranks)) > MOST_BYTES:
        return None
    pieces = {rank.number: RankReader(rank.folder).new() for rank in ranks}
    job = watched_pieces(pieces, {rank.number: rank.host for rank in ranks})
    newest = max((int(piece.columns["end_ns"][-1]) for piece in pieces.values() if len(piece.columns["end_ns"])),
                 default=0)
    return job.state(newest, run_id=run.run_id, running=False)
