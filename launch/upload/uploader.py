"""The process that uploads a run while it is recorded: it looks for complete ranks, and ends with the job or after it.

Its standard input ends with the launcher, however that goes. Then it uploads the rest, and prints an `Outcome`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

import msgspec

from distprof.ending import ended_by_signals
from distprof.errors import DistprofError, Ended
from distprof.launch.upload.part_upload import ranks_of
from distprof.launch.upload.run_upload import upload_run, uploaded
from distprof.storage.credentials import remember

SECRETS = "DISTPROF_STORAGE_SECRETS"
"""A variable: what `credentials.exported` tells of the URL, as JSON."""
LOOKS_S = 2.0
"""Between looks for ranks that are complete."""
LOW_PRIORITY = 19


class Outcome(msgspec.Struct, kw_only=True):
    """What did not arrive."""

    missing: list[str]
    """Names of parts; `run.json` for the run directory itself."""
    why: str = ""


def main() -> None:
    """Uploads a run directory to a URL, both given as arguments."""
    directory, url, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    remember(msgspec.json.decode(os.environ.pop(SECRETS, "{}"), type=dict[str, str]))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the launcher was killed: the upload goes on
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
    """Until the launcher ends its standard input."""
    done = set[str]()
    while not _has_ended(LOOKS_S):
        try:
            ready = [part for part in ranks_of(directory) if part.is_complete_rank and part.name not in done]
        except OSError:  # a folder was renamed meanwhile
            continue
        for part in ready if looks else ():
            outcome = uploaded([part], url)
            if outcome.failed:
                break  # it is tried again, at the end at the latest
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
