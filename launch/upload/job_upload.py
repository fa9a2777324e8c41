"""The upload of a job, as its launcher has it: begun beside the job, finished after it, never in its way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from distprof.ending import ended_by_signals
from distprof.errors import Ended, OutputError, StorageError
from distprof.launch.upload.uploader import SECRETS, Outcome
from distprof.storage.credentials import exported
from distprof.storage.faults import Kind, fault_of
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.listing import LISTINGS
from distprof.storage.remote_path import RemotePath
from distprof.terminal import quoted, say

PROGRAM = ("import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
           "from distprof.launch.upload.uploader import main; main()")
"""Imports what this process would import, and not what lies in the working directory, as `-m` does."""
OF_RUN = re.compile(r"(rank\d+(\.partial)?|attempt\d{4,}|merged)/.*|run\.json|report\.html|\.upload\.json|\.merging")


class JobUpload:
    """A process that uploads what ranks complete.

    Args:
        directory: Where they record.
        target: Where it goes.
        meanwhile: Whether ranks are uploaded before the job has ended.
    """

    def __init__(self, directory: Path, target: RemotePath, *, meanwhile: bool) -> None:
        self._directory, self._target = directory, target
        say(f"uploading to {target}: each rank when it is complete, in a separate process")
        command = [sys.executable, "-c", PROGRAM, "\n".join(sys.path), os.fspath(directory.absolute()), target.url,
                   "meanwhile" if meanwhile else "at the end"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DISTPROF_")
                   or name.startswith("DISTPROF_STORAGE_")}
        environ[SECRETS] = msgspec.json.encode(exported(target.url)).decode()  # everybody may list arguments
        self._process: subprocess.Popen[bytes] | None = None
        try:  # a session of its own: what a terminal sends to the job does not end it
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ,
                                             start_new_session=True)
        except OSError as error:
            say(f"cannot start the upload: {error.strerror}")

    def finish(self) -> bool:
        """Has the rest uploaded, waits for it, and says what did not arrive; True where all did. Never fails."""
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
                said, _ = self._process.communicate()  # the end of its standard input is the end of the job
        except Ended:
            self._process.terminate()
            self._process.wait()
            return None
        return msgspec.json.decode(said, type=Outcome)

    def _again(self) -> str:
        return f"distprof upload {quoted(self._directory)} {quoted(self._target)}"


def check_target(target: RemotePath, *, force: bool) -> None:
    """Looks whether a run may be uploaded there, before the job begins; a storage that is busy stops no job.

    Raises:
        OutputError: Another run is there and `force` is False, or nothing may be read there.
        StorageError: The keys are refused.
        UsageError: A package is missing.
    """
    try:
        found = [name for name in LISTINGS.of(target.url)[0].entries if OF_RUN.fullmatch(name)]
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
