"""The upload of a job by a process beside it. The launcher waits for its end; one of several launchers then merges.

The process uploads ranks when they are complete. When its standard input closes, because the job or the launcher has
ended, it uploads the rest and prints an `Outcome`.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import msgspec

from distprof.contract.paths import MERGED, RANK_JSON, REPORT_HTML, RUN_JSON
from distprof.contract.rank_json import RankJson
from distprof.ending import ended_by_signals
from distprof.errors import DistprofError, Ended, OutputError, StorageError
from distprof.launch.upload.run_upload import MANIFEST, ranks_of, upload_run, uploaded
from distprof.recording.run_directory import FOLDERS, MERGING, UPLOADED
from distprof.storage.credentials import exported, remember
from distprof.storage.faults import Kind, fault_of
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.listing import LISTINGS
from distprof.storage.remote_path import RemotePath
from distprof.terminal import quoted, say

SECRETS = "DISTPROF_STORAGE_SECRETS"
"""Environment variable with the result of `credentials.exported` for the URL, as JSON."""
LOOKS_S = 2.0
"""Interval in seconds between checks for complete ranks."""
LOW_PRIORITY = 19


class Outcome(msgspec.Struct, kw_only=True):
    """What was not uploaded."""

    missing: list[str]
    """Names of parts; `run.json` for the run directory itself."""
    why: str = ""


def main() -> None:
    """Uploads a run directory; arguments are the directory, the URL, and `meanwhile` or `at the end`."""
    directory, url, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    remember(msgspec.json.decode(os.environ.pop(SECRETS, "{}"), type=dict[str, str]))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # if the launcher is killed, the upload continues
    os.nice(LOW_PRIORITY)
    try:
        with ended_by_signals():
            _while_recording(directory, url, looks=when == "meanwhile")
            outcome = _rest(directory, url)
    except Ended as end:
        os._exit(end.exit_code)
    try:
        os.write(1, msgspec.json.encode(outcome))
    except OSError:
        pass
    os._exit(0)


def _while_recording(directory: Path, url: str, *, looks: bool) -> None:
    """Uploads complete ranks (if `looks`) until standard input closes."""
    done = set[str]()
    while not _has_ended(LOOKS_S):
        try:
            ready = [part for part in ranks_of(directory) if part.is_complete_rank and part.name not in done]
        except OSError:  # a folder was renamed in the meantime
            continue
        for part in ready if looks else ():
            outcome = uploaded([part], url)
            if outcome.failed:
                break  # the next check tries again, and finally `_rest`
            done.add(part.name)
            if _has_ended(0):
                return


def _has_ended(patience_s: float) -> bool:
    ready, _, _ = select.select([0], [], [], patience_s)
    return bool(ready) and not os.read(0, 1)


def _rest(directory: Path, url: str) -> Outcome:
    try:
        done = upload_run(directory, url)
    except (DistprofError, OSError) as error:
        return Outcome(missing=["run.json"], why=str(error.args[0]) if error.args else type(error).__name__)
    return Outcome(missing=[one.part.name or "run.json" for one in done.failed],
                   why=done.failed[0].why if done.failed else "")


PROGRAM = ("import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
           "from distprof.launch.upload.job_upload import main; main()")
"""Imports from the same path as this process; `-m` would also import from the working directory."""
FILES = (RUN_JSON, REPORT_HTML, MANIFEST, MERGING)
"""Objects directly in a run, which are replaced with it like those in its `FOLDERS`."""


class JobUpload:
    """The handle of the process that uploads ranks.

    Args:
        directory: The run directory.
        target: URL to upload to.
        meanwhile: Whether ranks are uploaded before the job has ended.
    """

    def __init__(self, directory: Path, target: RemotePath, *, meanwhile: bool) -> None:
        self._directory, self._target = directory, target
        say(f"uploading to {target}: each rank when it is complete, in a separate process")
        command = [sys.executable, "-c", PROGRAM, "\n".join(sys.path), os.fspath(directory.absolute()), target.url,
                   "meanwhile" if meanwhile else "at the end"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DISTPROF_")
                   or name.startswith("DISTPROF_STORAGE_")}
        environ[SECRETS] = msgspec.json.encode(exported(target.url)).decode()  # every user can list arguments
        self._process: subprocess.Popen[bytes] | None = None
        try:  # in its own session: signals that a terminal sends to the job do not end it
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ,
                                             start_new_session=True)
        except OSError as error:
            say(f"cannot start the upload: {error.strerror}")

    def finish(self) -> bool:
        """Waits until the rest is uploaded and reports what was not. Returns whether everything was. Never raises."""
        outcome: Outcome | None = None
        with suppress(Exception):
            outcome = self._rest()
        if outcome is None:
            say("the upload is incomplete. Next:", f"    {self._again()}")
        elif outcome.missing:
            say(f"not uploaded: {', '.join(outcome.missing[:8])}{' and more' if len(outcome.missing) > 8 else ''}: "
                f"{outcome.why}. Next:", f"    {self._again()}")
        else:
            say(f"uploaded to {self._target}; {self._directory} holds the same files")
        return outcome is not None and not outcome.missing

    def _rest(self) -> Outcome | None:
        if self._process is None:
            return None
        try:
            with ended_by_signals():
                said, _ = self._process.communicate()  # closes its standard input, which means the end of the job
        except Ended:
            self._process.terminate()
            self._process.wait()
            return None
        return msgspec.json.decode(said, type=Outcome)

    def _again(self) -> str:
        return f"distprof upload {quoted(self._directory)} {quoted(self._target)}"


def check_target(target: RemotePath, *, force: bool) -> None:
    """Checks before the job begins that a run may be uploaded to a URL; with `force`, removes an earlier run there.

    A storage that is temporarily unavailable does not stop the job.

    Raises:
        OutputError: Another run is there and `force` is False, or the URL cannot be read or written.
        StorageError: The storage rejects the credentials.
        UsageError: A package is missing.
    """
    try:
        found = _run_at(target)
        if found and not force:
            raise OutputError(f"there is already a run at {target}", hint="replace it with --force")
        backend_of(target.url).remove([f"{target.url}/{name}" for name in found])
    except StorageError as error:
        if error.__cause__ is None or fault_of(error.__cause__).kind is not Kind.AGAIN:
            raise
        say(f"{error.args[0]}; the upload will try again")
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror}", hint=getattr(error, "hint", "")) from error
    LISTINGS.forget(target.url)


def _run_at(target: RemotePath) -> list[str]:
    """Returns the objects of the run at a URL; empty if no run is there. Those that show that one is there come last:
    if their removal is interrupted, the next one continues."""
    found = [name for name in LISTINGS.of(target.url)[0].entries
             if name in FILES or ("/" in name and FOLDERS.fullmatch(name.partition("/")[0]))]
    shown = {name for name in found if name in FILES or name.startswith(("rank", "attempt", f"{MERGED}/"))}
    return sorted(found, key=lambda name: (name in shown, name == RUN_JSON)) if shown else []


_RANK_JSON = re.compile(rf"rank\d{{5,}}/{re.escape(RANK_JSON)}")


_UPLOADED = re.compile(rf"{re.escape(UPLOADED)}/(\d{{5,7}})-(\d{{5,7}})")


def mark_uploaded(target: RemotePath, directory: Path) -> None:
    """Writes to the URL that everything of the complete ranks of this host is there.

    Args:
        target: URL of the run.
        directory: The run directory of this host.
    """
    with suppress(DistprofError, OSError):  # then nobody merges, and each launcher has printed the command
        for first, last in _consecutive(int(part.name.removeprefix("rank")) for part in ranks_of(directory)
                                        if part.is_complete_rank and "/" not in part.name):
            backend_of(target.url).put(f"{target.url}/{UPLOADED}/{first:05}-{last:05}", b"uploaded")


def claimed(target: RemotePath) -> bool:
    """Returns whether this launcher should merge: all hosts have uploaded everything (ranks are there earlier than the
    rest), and no other launcher has claimed the merge.

    Each launcher calls this after `mark_uploaded`, so the last one finds all ranks.

    Args:
        target: URL of the run.

    Raises:
        DistprofError, OSError: The URL cannot be read.
    """
    LISTINGS.forget(target.url)
    entries = LISTINGS.of(target.url)[0].entries
    found = sorted(name for name in entries if _RANK_JSON.fullmatch(name))
    if not found:
        return False
    backend, url = backend_of(target.url), f"{target.url}/{found[0]}"
    about = msgspec.json.decode(backend.whole(url, backend.info(url)), type=RankJson)
    marks = filter(None, map(_UPLOADED.fullmatch, entries))
    there = {rank for one in marks for rank in range(int(one[1]), int(one[2]) + 1)}
    return there.issuperset(range(about.world_size)) and len(found) >= about.world_size and backend.put(
        f"{target.url}/{MERGING}", b"merging", only_new=True)


def _consecutive(ranks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the last of consecutive ranks."""
    for _, together in groupby(enumerate(sorted(ranks)), key=lambda one: one[1] - one[0]):
        numbers = [rank for _, rank in together]
        yield numbers[0], numbers[-1]


def unclaimed(target: RemotePath) -> None:
    """Withdraws the claim, so that another launcher or a person can merge."""
    with suppress(DistprofError, OSError):
        backend_of(target.url).remove([f"{target.url}/{MERGING}"])
