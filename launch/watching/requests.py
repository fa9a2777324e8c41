"""Requests to the ranks of a running job to record some steps, and the progress of these recordings.

A request is `watch/request.json` in the run directory. All ranks record from the step that it names, into
`windows/0001` and so on: see `distprof/recording/watch/windows.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from distprof.contract import rank_json
from distprof.contract.passes import ARRIVALS, TRACE
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_FOLDER, RANK_JSON, RUN_JSON
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import REQUEST_JSON, WATCH, WINDOWS, WindowRequest, window_folder
from distprof.errors import DataError, OutputError
from distprof.files import json_text, read_small, told, write_whole
from distprof.recording.job.claim import locked
from distprof.recording.plan import StepPlan

NEWS_S = 5.5
"""Longest time until a step of a rank is in its files."""
LEAD_S, SHARED_LEAD_S = 2.4, 5.4
"""Time in which all ranks read a request; the second for several hosts, as a file server may show it seconds late."""
LEAD_STEPS = 3
"""Fewest steps between a request and the first recorded step."""
TRACED, ARRIVING = 3, 20
"""Default numbers of steps that are traced, for a timeline, and in which arrivals are recorded, to rule out chance."""
WINDOW_S = 10.0
"""Of long steps, only as many are recorded as fit into this time."""
FEWEST = 4
"""But at least this many."""
EVERY_S = 600.0
"""Default time between two requests that the watch makes by itself."""
GIVEN_UP_S = 300.0
"""A recording whose folders have not changed for this long is given up: its ranks are taken to be gone."""
LOCK = ".requesting"
"""Folder in `watch/` that exists while a request is made."""


def usual_steps(step_s: float) -> str:
    """Returns a plan that shows who is late, and where in the script, for steps of this duration."""
    number = min(max(int(WINDOW_S / step_s), FEWEST), ARRIVING)
    return f"{TRACE}={TRACED},{ARRIVALS}={number}"


def ask(run: Path, steps: str, why: str, *, latest_step: int, step_s: float, age_s: float = NEWS_S) -> WindowRequest:
    """Asks all ranks of a job to record some steps.

    Args:
        run: The run directory.
        steps: A plan. Passes that it does not name get no steps.
        why: `asked`, or the id of a finding.
        latest_step: A step that has ended.
        step_s: Duration of a step.
        age_s: Longest time since it ended.

    Returns:
        The request, which is written; the ranks will read it before its first step.

    Raises:
        UsageError: `steps` is not a valid plan.
        OutputError: An earlier request is not finished yet, or nothing can be written there.
    """
    plan = StepPlan.only(steps)
    lead_s = age_s + (SHARED_LEAD_S if len(_about(run).hosts) > 1 else LEAD_S)
    first_step = latest_step + 1 + max(math.ceil(lead_s / step_s), LEAD_STEPS)
    with told(run / WATCH), locked(run / WATCH, LOCK):
        before = latest_request(run)
        if before is not None and not finished(run, before.number):
            raise OutputError(f"{window_folder(run, before.number)} is still being recorded",
                              hint="wait until it is done: two at once would disturb each other")
        request = WindowRequest(number=_next_number(run, before), first_step=first_step, steps=_named(plan), why=why,
                                stacks=before.stacks if before is not None else 0)
        write_whole(run / WATCH / REQUEST_JSON, lambda path: path.write_bytes(json_text(request)))
    return request


def _named(plan: StepPlan) -> str:
    return ",".join(f"{name}={number}" for name, number in plan.steps.items() if number)


def _next_number(run: Path, before: WindowRequest | None) -> int:
    found = [int(folder.name) for folder in (run / WINDOWS).glob("[0-9]*") if folder.name.isdecimal()]
    return max([0, *found, *([before.number] if before is not None else [])]) + 1


def latest_request(run: Path) -> WindowRequest | None:
    """Returns the last request that was made; None if there is none that can be read."""
    try:
        return msgspec.json.decode(read_small(run / WATCH / REQUEST_JSON), type=WindowRequest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class RequestPolicy:
    """Decides when the watch requests a recording by itself: once per finding, rarely, and one at a time.

    Args:
        run: The run directory. The last request in it counts, too.
        every_s: Shortest time between two requests, in s; infinite for no requests at all.
    """

    def __init__(self, run: Path, every_s: float = EVERY_S) -> None:
        self._run, self._every_s = run, every_s
        before = latest_request(run)
        self._done = {before.why} if before is not None else set[str]()
        self._last_s = -math.inf if before is None else _changed_s(run / WATCH / REQUEST_JSON)

    def allows(self, finding: str) -> bool:
        """Returns whether a recording may be requested now because of a finding."""
        if finding in self._done or math.isinf(self._every_s) or time.time() - self._last_s < self._every_s:
            return False
        before = latest_request(self._run)
        return before is None or finished(self._run, before.number)

    def asked(self, finding: str) -> None:
        """Notes that a recording was requested because of a finding."""
        self._done.add(finding)
        self._last_s = time.time()


def _changed_s(path: Path) -> float:
    """Returns when a file or folder was changed, in s since the epoch; minus infinity if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return -math.inf


# --- progress of a recording -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowProgress:
    """The progress of the ranks with a recording."""

    of: int
    """Number of ranks of the job."""
    read: int = 0
    """Number of ranks that have read the request."""
    written: tuple[int, ...] = ()
    """Ranks that have written all of their files."""
    failed: dict[int, str] = field(default_factory=dict)
    """Ranks that recorded nothing -> why."""

    @property
    def is_over(self) -> bool:
        """Whether all ranks have written their files or failed."""
        return len(self.written) + len(self.failed) >= self.of


def progress(run: Path, number: int) -> WindowProgress:
    """Returns the progress of the ranks of a job with the N-th recording."""
    folder, written, failed, read = window_folder(run, number), list[int](), dict[int, str](), 0
    for one, rank in _ranks_in(folder):
        read += 1
        if not one.name.endswith(PARTIAL_SUFFIX):
            written.append(rank)
        elif (why := _why_failed(one)) is not None:
            failed[rank] = why
    return WindowProgress(of=_world_size(run), read=read, written=tuple(written), failed=failed)


def _ranks_in(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yields the folders of ranks, sorted, each with its rank; other names are left out."""
    for one in sorted(folder.glob("rank[0-9]*")):
        if (fits := RANK_FOLDER.fullmatch(one.name)) is not None:
            yield one, int(fits[1])


def finished(run: Path, number: int) -> bool:
    """Returns whether no more files of the N-th recording are expected: all ranks have written them or failed, the job
    is over, or nothing has changed for `GIVEN_UP_S`.
    """
    return progress(run, number).is_over or _about(run).end_ns is not None or _is_given_up(run, number)


def _is_given_up(run: Path, number: int) -> bool:
    """Returns whether nothing has changed for long: a rank was killed, or has not read the request."""
    folder = window_folder(run, number)
    try:
        paths = list(folder.glob("rank*/*"))
    except OSError:  # a rank has renamed its folder meanwhile
        return False
    # the window's folder last: it changes where a rank renames its own, whose files are then gone from these paths
    changed_s = max(map(_changed_s, (run / WATCH / REQUEST_JSON, *paths, folder)))
    return time.time() - changed_s > GIVEN_UP_S


def _why_failed(folder: Path) -> str | None:
    try:
        about = rank_json.read(folder / RANK_JSON, RankJson)
    except DataError:
        return None  # the file is not written yet
    return about.why or "no reason is known" if about.status == "failed" else None


def _world_size(run: Path) -> int:
    """Returns the number of ranks that record into this directory, from `run.json` or their folders."""
    about = _about(run)
    here = len({rank for _, rank in _ranks_in(run)})
    return here if about.directories or about.world_size is None else about.world_size


def _about(run: Path) -> RunJson:
    return rank_json.read(run / RUN_JSON, RunJson)
