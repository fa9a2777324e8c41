"""Where the state of a job comes from: a run directory here or by URL, or the metrics port of its launcher."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Protocol

from distprof.contract.paths import RANK_JSON, RUN_JSON
from distprof.contract.watch_state import WatchState, decoded, is_fresh, read_state
from distprof.errors import DataError, StorageError
from distprof.files import MOST_LINES_BYTES
from distprof.launch.watching.watched_job import WatchedJob, is_running, run_id_of
from distprof.storage.credentials import is_url
from distprof.storage.places import place, remote
from distprof.terminal import quoted

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
