"""Implements `distprof trigger`: asks the ranks of a running job to record, and waits for their files."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distprof.contract import rank_json
from distprof.contract.paths import PARTIAL_SUFFIX, RUN_JSON
from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import WindowRequest, window_folder
from distprof.errors import DataError, OutputError
from distprof.launch.watching.rank_folders import LatestStep, latest_step, rank_folders
from distprof.launch.watching.requests import WindowProgress, ask, progress, usual_steps
from distprof.recording.plan import StepPlan
from distprof.storage.places import remote
from distprof.terminal import quoted
from distprof.units import counted, spans

LOOK_AGAIN_S = 0.1
"""Time between two looks at the progress."""
WITHOUT_STEP_S = 15.0
"""A job in which no step has ended for this long, and for `WITHOUT_STEPS` steps, has ended or hangs."""
WITHOUT_STEPS = 20
FIRST_STEPS_S = 600.0
"""Longest wait for the end of the passes."""
READ_S = 15.0
"""Longest time until ranks have read a request, even with a slow file server."""
WRITE_S = 60.0
"""Longest time in which ranks write what they recorded."""
SLOWER = 4
"""A recorded step may take up to this many times as long as a fast one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered:
    """A request and its result."""

    request: WindowRequest
    folder: Path
    done: WindowProgress
    """Progress when waiting ended."""

    def document(self) -> dict[str, Any]:
        """Returns the output of `--json`."""
        return {"number": self.request.number, "first_step": self.request.first_step, "steps": self.request.steps,
                "run": os.fspath(self.folder), "complete": self.done.is_over and not self.done.failed,
                **asdict(self.done)}


def trigger(run: Path, steps: str, *, waits: bool, tell: Callable[[str], None]) -> Triggered:
    """Asks the ranks of a job to record now.

    Args:
        run: The run directory.
        steps: A plan; '' for the default.
        waits: Whether to wait until the ranks have written their files.
        tell: Called with a line about the progress.

    Raises:
        DataError: There is no such run, its job is over, or nothing reads requests.
        UsageError: `steps` is not a valid plan.
        OutputError: The run belongs to another user, an earlier recording is not finished, nothing can be written
            there, or no rank recorded anything.
    """
    if steps:
        StepPlan.only(steps)
    _check_running(run)
    if waits:
        _wait_for_first_steps(run, tell)
    latest = _latest(run)
    request = ask(run, steps or usual_steps(latest.step_s), "asked", latest_step=latest.step, step_s=latest.step_s,
                  age_s=latest.age_s)
    folder = window_folder(run, request.number)
    in_s = (request.first_step - latest.now) * latest.step_s
    tell(f"recording {request.steps} from step {request.first_step} on, in about {in_s:.0f} s, to {folder}")
    if not waits:
        return Triggered(request=request, folder=folder, done=progress(run, request.number))
    done = _waited(run, request, latest, in_s, tell)
    if not done.written:
        raise OutputError(f"no rank recorded anything in {folder}: {_why(done)}", hint="try again")
    return Triggered(request=request, folder=folder, done=done)


def _check_running(run: Path) -> None:
    """Checks that a run is that of a running job of this user.

    Raises:
        DataError: There is no such run, or its job is over.
        OutputError: The run belongs to another user.
    """
    if remote(run) is not None:
        raise DataError(f"{run} is not a directory on this machine, and its ranks do not look there",
                        hint="run this on a host of the job, with the directory that its ranks write to")
    if not (run / RUN_JSON).is_file():
        raise DataError(f"{run} is not a run directory: it has no {RUN_JSON}",
                        hint="distprof run prints where it records")
    about = rank_json.read(run / RUN_JSON, RunJson)
    if about.first_step:
        raise DataError(f"{run} is a later recording of a job, not a job", hint=f"distprof trigger "
                        f"{quoted(run.absolute().parent.parent)}")
    if about.end_ns is not None:
        raise DataError(f"the job of {run} is over", hint=f"distprof findings {quoted(run)} shows what was recorded")
    owner = run.stat().st_uid
    if owner != os.geteuid():
        raise OutputError(f"{run} belongs to {_name(owner)}, whose ranks accept no requests from {_name(os.geteuid())}",
                          hint=f"run it as {_name(owner)}")


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _wait_for_first_steps(run: Path, tell: Callable[[str], None]) -> None:
    """Waits until ranks have finished their passes, during which they read no requests, and written a later step.

    Raises:
        DataError: The job ended meanwhile.
    """
    if latest_step(run) is not None or not _records_first_steps(run):
        return
    tell(f"the ranks of {run} are still recording their first steps: waiting for their end")
    began = ended = time.monotonic()
    while latest_step(run) is None and ended - began < FIRST_STEPS_S and time.monotonic() - ended < READ_S:
        if _records_first_steps(run):
            ended = time.monotonic()
        time.sleep(LOOK_AGAIN_S)
        _check_running(run)


def _records_first_steps(run: Path) -> bool:
    return any(folder.name.endswith(PARTIAL_SUFFIX) for folder in rank_folders(run))


def _latest(run: Path) -> LatestStep:
    """Returns the latest step of a job.

    Raises:
        DataError: It is unknown, or no step has ended for long, so no rank would read a request.
    """
    latest = latest_step(run)
    if latest is None:
        if _records_first_steps(run):
            raise DataError(f"the ranks of {run} are still recording their first steps",
                            hint="try again in a moment: requests are accepted after that")
        raise DataError(f"no rank of {run} is watched, so none would read a request",
                        hint="is it a job with --watch off or DISTPROF_WATCH=off, or one that has just begun?")
    if latest.age_s > max(WITHOUT_STEP_S, WITHOUT_STEPS * latest.step_s):
        raise DataError(f"no step of {run} has ended for {latest.age_s:.0f} s: its job has ended or hangs",
                        hint=f"distprof comms {quoted(run)} shows ranks that hang")
    return latest


def _waited(run: Path, request: WindowRequest, latest: LatestStep, in_s: float,
            tell: Callable[[str], None]) -> WindowProgress:
    """Waits until no more files are expected, and returns the progress at that time."""
    num_steps = StepPlan.only(request.steps).num_steps
    recorded_by = time.monotonic() + in_s + SLOWER * num_steps * latest.step_s + READ_S
    until, said = recorded_by + WRITE_S, ""
    while True:
        found, now = progress(run, request.number), time.monotonic()
        is_over = _is_over(run)  # after reading the progress, so that no file is missed
        text = _progress(found)
        if text != said:
            said = text
            tell(text)
        if found.is_over or is_over or now > until or (now > recorded_by and not found.read):
            return found
        time.sleep(LOOK_AGAIN_S)


def _is_over(run: Path) -> bool:
    return rank_json.read(run / RUN_JSON, RunJson).end_ns is not None


def _progress(found: WindowProgress) -> str:
    if found.written:
        return f"{len(found.written)} of {counted(found.of, 'rank')} written"
    return f"{found.read} of {counted(found.of, 'rank')} ready"


def _why(found: WindowProgress) -> str:
    """Returns why ranks recorded nothing."""
    if found.failed:
        return next(iter(found.failed.values()))
    return "they did not read the request, or the job ended" if not found.read else "the job ended, or hangs"


def lines_of(found: Triggered) -> list[str]:
    """Returns the output for people: where the files are, and which commands show them."""
    done, where = found.done, quoted(found.folder)
    if not done.written:
        return [where]
    last = found.request.first_step + StepPlan.only(found.request.steps).num_steps - 1
    text = f"{found.folder}: {len(done.written)} of {counted(done.of, 'rank')} recorded steps " \
           f"{found.request.first_step}-{last}"
    lacking = sorted(set(range(done.of)) - set(done.written))
    missing = [f"missing: {spans(lacking)}, {_why(done)}"] if lacking and len(done.written) < done.of else []
    return [text, *missing, f"    distprof findings {where}", f"    distprof report {where}",
            f"    distprof comms {where}"]
