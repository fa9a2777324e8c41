"""A job as the files of its ranks show it, while it runs and afterwards, or as its launcher tells it."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

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


LAUNCHER = re.compile(r"(?:https?://)?(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})/?")
ANSWER_S = 5.0
NOT_YET = 503


class Source(Protocol):
    """Tells the state of a job whenever it is asked."""

    title: str

    def state(self) -> WatchState | None:
        """What is known now; None where no step was watched yet.

        Raises:
            DataError: There is no such run, or it cannot be read.
            StorageError: Nobody answers.
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
        except ValueError as error:  # what answers does not speak HTTP
            raise DataError(f"{self.title} is no launcher with --metrics") from error
        return decoded(content, self._url)


class RunSource:
    """A run directory: what the watcher of its launcher wrote, or what its files show where there is none.

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
        """A URL is listed again."""
        return self._run if remote(self._run) is None else place(str(self._run))


def source_of(text: str) -> Source:
    """What a user named.

    Raises:
        UsageError: A URL that nothing can read.
    """
    launcher = LAUNCHER.fullmatch(text)
    if launcher is not None and (is_url(text) or not Path(text).exists()):
        return LauncherSource(launcher["host"], int(launcher["port"]))
    return RunSource(place(text))
