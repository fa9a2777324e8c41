"""The watch of a whole job, during it and afterwards: turns the data of ranks into findings and the job's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from distprof.contract.paths import rank_folder
from distprof.contract.watch_state import FORMAT, WatchFinding, WatchState, is_fresh, read_state
from distprof.errors import DataError
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.watch import shifts
from distprof.merge.watch.grid import Grid
from distprof.merge.watch.job_growth import growing, job_growths, still_longer, unexplained
from distprof.merge.watch.late_ranks import together_steps
from distprof.merge.watch.long_steps import LongSteps, OwnWork
from distprof.merge.watch.now_and_then import now_and_then, split
from distprof.merge.watch.pieces import PATTERN, Piece, RankReader
from distprof.merge.watch.sampled_steps import SampledSteps
from distprof.merge.watch.slow_ranks import slow_ranks
from distprof.merge.watch.state import LastRows, Register, waiting
from distprof.merge.watch.view import View

STOPPED_NS = 20_000_000_000
"""A rank has stopped if it is silent for more than 20 s, and three of its longest steps, while others continue."""
UNEVEN_NS = 2_000_000_000
"""If the watched time of ranks differs by more than this, some ranks went on without the others."""
SELDOM = 400
"""For each 400 blocks, a search waits for one more round in which a block was completed: searches of long jobs cost
more."""
AT_ONCE = 4096
"""Rows of the rank with most of them whose steps are taken at a time, of all ranks, so that a finished long job needs
no more memory than a live one."""
MOST_RANKS = 64
MOST_BYTES = 48 << 20
"""Most ranks, and bytes of all their watch files, that are analysed after the job if no watcher wrote its state: every
command would have to repeat it."""


class JobWatch:
    """What is known of a job so far."""

    def __init__(self, hosts: Mapping[int, str]) -> None:
        """Starts without data.

        Args:
            hosts: Host name of each rank.
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
        """Adds a rank, or changes the host of one."""
        self._hosts[rank] = host
        if rank in self._last:
            self._last[rank].host = host
            return
        self._last[rank] = LastRows(rank, host)
        self._grid.add_rank(rank)
        self._sampled.add_rank(rank)

    def add(self, rank: int, piece: Piece) -> None:
        """Takes a piece that `RankReader.new` returned."""
        if rank not in self._last:
            self.add_rank(rank, "")
        own = self._own_work.setdefault(rank, OwnWork())
        own.add(piece.notes)
        self._last[rank].add(piece.columns, piece.notes)
        piece = own.without(piece)
        self._grid.add(rank, piece.columns)
        self._sampled.add(rank, piece.samples)
        self._long.add(rank, piece.columns, piece.notes)

    def finish(self) -> None:
        """Says that no more rows will come: ranks without any are not waited for."""
        self._grid.is_over = True

    def findings(self) -> list[WatchFinding]:
        """Returns all findings in the order in which they were first made. Ids are stable; the other fields are
        updated."""
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
        """Searches now. `findings` searches only as often as `SELDOM` allows."""
        view = self._view()
        found = split(view, slow_ranks(view))
        found += job_growths(view, found)
        found += still_longer(view, self._register.findings, found)
        before = [one for one in self._register.findings if one.kind in ("slow_rank", "slow_host")]
        found += now_and_then(view, found, before, self._long)
        found += _memory(view)
        self._note(found, view.typical_ns)

    def _view(self) -> View:
        return View(self._grid, self._sampled, self._hosts, self._num_steps())

    def _known(self) -> list[LastRows]:
        return [one for one in self._last.values() if one.first is not None]

    def _num_steps(self) -> int:
        """Returns the number of steps that all ranks have ended."""
        return min((one.last_step + 1 for one in self._known()), default=0)

    def _note(self, found: list[WatchFinding], typical_ns: float) -> None:
        newest = max((one.end_ns for one in self._last.values()), default=0)
        self._register.update(found, newest, self._grid.frontier() - 1, together_steps(typical_ns))

    def state(self, now_ns: int, *, run_id: str, running: bool) -> WatchState:
        """Returns the current state of the job.

        Args:
            now_ns: Current time, in ns since the epoch.
            run_id: Id of the run.
            running: Whether the job runs. If not, silent ranks have ended, not stopped.
        """
        if not running:
            self.finish()
        self.findings()
        if running:
            self._register.update(list(self._stopped(now_ns)), now_ns, self._grid.frontier() - 1, 0, stopped=True)
        known, num_steps = self._known(), self._num_steps()
        ratio, place = waiting(self._sampled), {rank: number for number, rank in enumerate(self._grid.ranks)}
        ranks = [state for rank, one in sorted(self._last.items())
                 if (state := one.state(_finite(ratio[place[rank]]))) is not None]
        view = self._view()
        return WatchState(
            format=FORMAT, run_id=run_id, time_ns=now_ns, running=running, world_size=len(self._last),
            num_steps=num_steps,
            first_watched=min((one.first for one in known if one.first is not None), default=None),
            elapsed_ns=max((one.elapsed_ns for one in known if one.last_step + 1 == num_steps), default=None),
            step_ns=self._step_ns(view), ranks=ranks, findings=list(self._register.findings),
            notes=[] if running else list(_uneven(known, num_steps)),
            is_short=len(self._grid.blocks.first) < shifts.BEFORE + shifts.LEAST,
            unexplained=None if running or self._explains_steps() else unexplained(view))

    def _explains_steps(self) -> bool:
        """Returns whether there are findings other than pauses and memory."""
        return any(one.kind not in ("pauses", "memory_growth") for one in self._register.findings)

    def _step_ns(self, view: View) -> float | None:
        """Returns the median step time of the watched job; that of rows before the first block is complete."""
        if len(self._grid.blocks.first):
            return _finite(view.typical_ns)
        return _finite(float(np.nanmedian(self._grid.rows[:, :, 0]))) if self._grid.rows.size else None

    def _stopped(self, now_ns: int) -> Iterator[WatchFinding]:
        """Finds ranks that stopped, by the times at which their rows arrived, as clocks of ranks may differ."""
        anew = not 0 <= now_ns - self._looked_ns <= STOPPED_NS / 2  # the clock was set, or no look for long
        self._looked_ns = now_ns
        for one in self._last.values():
            one.look(now_ns, anew=anew)
        newest = max((one.came_ns for one in self._last.values()), default=0)
        for rank, one in self._last.items():
            patience = max(STOPPED_NS, 3 * one.longest_ns)
            if one.first is not None and not one.ended and one.came_ns + patience < newest:
                yield WatchFinding(id="", kind="stopped", ranks=[rank], hosts=[self._hosts[rank]],
                                   onset_step=one.last_step + 1, onset_ns=one.end_ns)


def _uneven(known: list[LastRows], num_steps: int) -> Iterator[str]:
    """Yields a note if some ranks went on without the others."""
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
    """Analyses the watch files of a job, which may still run.

    Args:
        run_folder: The folder that contains the folders of the ranks.
        hosts: Host name of each rank.
    """
    pieces = {rank: RankReader(run_folder / rank_folder(rank)).new() for rank in hosts}
    return watched_pieces(pieces, hosts)


def watched_pieces(pieces: Mapping[int, Piece], hosts: Mapping[int, str]) -> JobWatch:
    """Analyses pieces that were read already, one for each rank."""
    job = JobWatch(hosts)
    job.finish()
    longest = max(map(_ends, pieces.values()), key=len, default=np.empty(0, np.int64))
    for low, high in pairwise([0, *longest[AT_ONCE - 1:-1:AT_ONCE].tolist(), np.iinfo(np.int64).max]):
        for rank, piece in pieces.items():
            job.add(rank, _part(piece, low, high))
        job.findings()
    job.look()
    return job


def _ends(piece: Piece) -> Any:
    """Returns the step after each row."""
    return piece.columns["first_step"] + piece.columns["num_steps"]


def _part(piece: Piece, low: int, high: int) -> Piece:
    """Returns the rows that end after step `low` and not after `high`, and what is from `low` to before `high`."""
    begin, end = np.searchsorted(_ends(piece), [low, high], side="right")
    columns: dict[str, Any] = {name: values[begin:end] for name, values in piece.columns.items()}
    return Piece(columns=columns, samples=[one for one in piece.samples if low <= one.step.step < high],
                 notes=[one for one in piece.notes if low <= one.step < high])


def known_state(run: Run) -> WatchState | None:
    """Returns the state of the watched steps of a run.

    Args:
        run: The run.

    Returns:
        None if no step was watched, or the run is too large to analyse and no watcher wrote its state.
    """
    if run.kind != "distprof":
        return None
    written = None if run.more else _written(run.path)  # each host of several wrote its own
    found = written if written is not None else _of_files(run)
    return found if found is not None and found.num_steps else None


def watch_files(rank: Rank) -> list[Path]:
    """Returns the watch files of a rank; none if it was not watched, or its folder is gone."""
    with suppress(OSError):
        return sorted(rank.folder.glob(PATTERN))
    return []


def num_bytes(rank: Rank) -> int:
    """Returns the total size of the watch files of a rank."""
    found = 0
    for path in watch_files(rank):
        with suppress(OSError):
            found += path.stat().st_size
    return found


def _written(run: Path) -> WatchState | None:
    """Returns the state that the watcher wrote; None if there is none, or the watcher was lost before the job ended."""
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
