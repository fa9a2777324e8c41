"""The state of a job from the files of its ranks, while it runs and afterwards, or from its launcher."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON
from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import WatchFinding, WatchState, decoded, is_fresh, read_state
from distprof.errors import DataError, StorageError
from distprof.files import MOST_LINES_BYTES
from distprof.launch.watching.rank_folders import RankFolders
from distprof.merge.watch.pieces import PATTERN, Piece
from distprof.storage.credentials import is_url
from distprof.storage.places import place, remote
from distprof.terminal import quoted

QUIET_S = 60.0
"""A job without a noted end has ended if its ranks wrote nothing for this long."""


class Engine(Protocol):
    """What makes the findings: `JobWatch`, or a stand-in of tests."""

    def add_rank(self, rank: int, host: str) -> None:
        """Adds a rank."""

    def add(self, rank: int, piece: Piece) -> None:
        """Takes what a rank wrote."""

    def findings(self) -> list[WatchFinding]:
        """Returns the findings so far."""

    def state(self, now_ns: int, *, run_id: str, running: bool) -> WatchState:
        """Returns the current state of the job."""


class MakesEngine(Protocol):
    """Makes an engine for the known ranks."""

    def __call__(self, hosts: Mapping[int, str]) -> Engine:
        """Returns a new engine, for ranks with these host names."""


class WatchedJob:
    """Feeds what ranks write to the engine.

    Args:
        run: The run directory.
        engine: Used instead of `JobWatch`.
    """

    def __init__(self, run: Path, engine: MakesEngine | None = None) -> None:
        self._run, self._make = run, engine or _job_watch
        self._folders, self._ranks = RankFolders(run), set[int]()
        self._engine: Engine | None = None
        self._attempt = 0

    @property
    def is_seen(self) -> bool:
        """Whether any rank has written something."""
        return bool(self._ranks)

    def look(self) -> bool:
        """Reads what is new. Returns whether there was anything."""
        news = self._folders.look()
        if self._folders.attempt != self._attempt:  # steps of a new attempt are watched from the start
            self._attempt, self._ranks, self._engine = self._folders.attempt, set(), None
        for one in news:
            self._engine = self._engine or self._make({})
            if one.rank not in self._ranks:
                self._ranks.add(one.rank)
                self._engine.add_rank(one.rank, one.host)
            self._engine.add(one.rank, one.piece)
        return bool(news)

    def state(self, run_id: str, *, running: bool) -> WatchState:
        """Returns the current state, with the sentences of findings; only once `is_seen`."""
        assert self._engine is not None
        state = self._engine.state(time.time_ns(), run_id=run_id, running=running)
        if self._attempt:  # others remember what they did for the findings of earlier attempts
            state.findings = [msgspec.structs.replace(one, id=f"{one.id}.{self._attempt}") for one in state.findings]
        for finding in state.findings:
            finding.text = _sentence(finding)  # its cost has grown
        if self._attempt:
            state.notes.append(f"torchrun restarted the job {self._attempt} times: this is the last attempt"
                               if self._attempt > 1 else "torchrun restarted the job: this is the last attempt")
        return state


def is_running(run: Path) -> bool:
    """Returns whether a job without a watcher is running."""
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
    """Returns the id of a run; '' if it has none."""
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


LAUNCHER = re.compile(r"(?:https?://)?(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})/?")
ANSWER_S = 5.0
"""Timeout of a request to a launcher."""
NOT_YET = 503
"""Status code of a launcher before the first step was watched."""


class Source(Protocol):
    """A source of the state of a job."""

    title: str
    """Names the source for people."""

    def state(self) -> WatchState | None:
        """Returns the current state; None if no step was watched yet.

        Raises:
            DataError: There is no such run, or it cannot be read.
            StorageError: The launcher does not answer.
        """


class LauncherSource:
    """A launcher that was started with `--metrics`."""

    def __init__(self, host: str, port: int) -> None:
        self.title = f"{host}:{port}"
        self._url = f"http://{host}:{port}/state.json"

    def state(self) -> WatchState | None:
        try:
            with urllib.request.urlopen(self._url, timeout=ANSWER_S) as answer:
                content = answer.read(MOST_LINES_BYTES)
        except urllib.error.HTTPError as error:
            if error.code == NOT_YET:
                return None
            raise DataError(f"{self.title} answers {error.code}: it is no launcher with --metrics",
                            hint="distprof run --metrics PORT") from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise StorageError(f"{self.title} does not answer: {getattr(reason, 'strerror', None) or reason}",
                               hint="is the job running, with --metrics PORT?") from error
        except ValueError as error:  # the answer is not HTTP
            raise DataError(f"{self.title} is no launcher with --metrics") from error
        return decoded(content, self._url)


class RunSource:
    """A run directory: the state that the launcher's watcher wrote, or, without one, the state from the ranks' files.

    Args:
        run: The directory, or its URL.
    """

    def __init__(self, run: Path) -> None:
        self.title = str(run)
        self._run = run
        self._job: WatchedJob | None = None

    def state(self) -> WatchState | None:
        run = self._refreshed()
        written = read_state(run)
        if written is not None and is_fresh(written):
            return written
        self._job = self._job or WatchedJob(run)
        self._job.look()
        if self._job.is_seen:
            return self._job.state(run_id_of(run), running=is_running(run))
        if not (run / RUN_JSON).is_file() and not any(run.glob(f"rank*/{RANK_JSON}")):
            raise DataError(f"{self._run} is not a run directory", hint=f"ls {quoted(self._run)}")
        return written

    def _refreshed(self) -> Path:
        """Returns the directory; of a URL, with a fresh listing."""
        return self._run if remote(self._run) is None else place(str(self._run))


def source_of(text: str) -> Source:
    """Returns the source that a user named.

    Raises:
        UsageError: It is a URL that cannot be read.
    """
    launcher = LAUNCHER.fullmatch(text)
    if launcher is not None and (is_url(text) or not Path(text).exists()):
        return LauncherSource(launcher["host"], int(launcher["port"]))
    return RunSource(place(text))
