"""A job as the files of its ranks show it, while it runs and afterwards."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from distprof.contract import rank_json
from distprof.contract.paths import RUN_JSON
from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import WatchFinding, WatchState
from distprof.errors import DataError
from distprof.launch.watching.rank_folders import RankFolders
from distprof.merge.watch.pieces import PATTERN, Piece

QUIET_S = 60.0
"""A job whose end nobody noted and whose ranks wrote nothing for so long has ended."""


class Engine(Protocol):
    """What notices; `JobWatch` is the one there is."""

    def add_rank(self, rank: int, host: str) -> None:
        """A rank that was not known at the start."""

    def add(self, rank: int, piece: Piece) -> None:
        """What a rank wrote."""

    def findings(self) -> list[WatchFinding]:
        """What was noticed by now."""

    def state(self, now_ns: int, *, run_id: str, running: bool) -> WatchState:
        """All that is known."""


class MakesEngine(Protocol):
    """Makes one for the ranks that are known, by their hosts."""

    def __call__(self, hosts: Mapping[int, str]) -> Engine:
        """A new one."""


class WatchedJob:
    """Feeds what ranks write to the engine.

    Args:
        run: The run directory.
        engine: Another one than `JobWatch`.
    """

    def __init__(self, run: Path, engine: MakesEngine | None = None) -> None:
        self._run, self._make = run, engine or _job_watch
        self._folders, self._ranks = RankFolders(run), set[int]()
        self._engine: Engine | None = None
        self._attempt = 0

    @property
    def is_seen(self) -> bool:
        """Whether a rank wrote anything."""
        return bool(self._ranks)

    def look(self) -> bool:
        """Reads what is new; True where there was anything."""
        news = self._folders.look()
        if self._folders.attempt != self._attempt:  # its steps begin anew
            self._attempt, self._ranks, self._engine = self._folders.attempt, set(), None
        for one in news:
            self._engine = self._engine or self._make({})
            if one.rank not in self._ranks:
                self._ranks.add(one.rank)
                self._engine.add_rank(one.rank, one.host)
            self._engine.add(one.rank, one.piece)
        return bool(news)

    def state(self, run_id: str, *, running: bool) -> WatchState:
        """What is known now, once a rank was seen; findings have their sentences."""
        assert self._engine is not None
        state = self._engine.state(time.time_ns(), run_id=run_id, running=running)
        for finding in state.findings:
            finding.text = _sentence(finding)  # what it costs grows
        if self._attempt:
            state.notes.append(f"torchrun restarted the job {self._attempt} times: this is the last attempt"
                               if self._attempt > 1 else "torchrun restarted the job: this is the last attempt")
        return state


def is_running(run: Path) -> bool:
    """Whether a job goes on, where no watcher tells."""
    try:
        if rank_json.read(run / RUN_JSON, RunJson).end_ns is not None:
            return False
    except DataError:
        pass
    try:
        last = max((file.stat().st_mtime for file in run.glob(f"rank*/{PATTERN}")), default=0.0)
    except OSError:  # a folder was renamed meanwhile
        return True
    return abs(time.time() - last) < QUIET_S


def run_id_of(run: Path) -> str:
    """The id of a run; '' where it has none."""
    try:
        return rank_json.read(run / RUN_JSON, RunJson).run_id
    except DataError:
        return ""


def _job_watch(hosts: Mapping[int, str]) -> Engine:
    from distprof.merge.watch.job_watch import JobWatch

    return JobWatch(hosts)


def _sentence(finding: WatchFinding) -> str:
    from distprof.merge.text.watch import sentence

    return sentence(finding)
