"""`watch/state.json` of a run: what the watch of a job knows. `distprof watch --once --json` prints it.

The launcher's watcher replaces it every few seconds while the job runs and once more at its end.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from distprof.errors import DataError, FormatError
from distprof.files import MOST_LINES_BYTES, json_text, read_small, write_whole
from distprof.own import time

FORMAT = 1
"""The newest format of the state that this version reads, and the one that it writes."""
WATCH = "watch"
"""Folder of the run directory with the state."""
STATE_JSON = "state.json"
REQUEST_JSON = "request.json"
WINDOWS = "windows"
"""Folder of the run directory with recordings made later, each a run directory of its own: 0001, 0002, ..."""
LogTo = Literal["tensorboard", "wandb", "mlflow"]
OPEN_RUNS = ("wandb", "mlflow")
"""Trackers for which ranks write into the run that their script has open."""
SETTLES_S = 8.0
"""Findings are reported only after this time, because their first estimates change most."""
AT_ONCE = ("hang", "stopped")
"""Kinds of findings that are reported immediately."""


def window_folder(run: Path, number: int) -> Path:
    """Returns the run directory of the N-th recording made later in the job."""
    return run / WINDOWS / f"{number:04d}"


def logged_file(run: Path, log_to: str | None) -> Path:
    """Returns the file with one line per tracker run that ranks write into: `rank 0: 3k9x2b1c`."""
    return run / WATCH / f"log-to-{log_to}"


FindingKind = Literal["slow_rank", "slow_host", "slow_link", "slow_group", "regression", "intermittent", "data_stall",
                      "memory_growth", "pauses", "stopped", "hang"]


class WatchFinding(msgspec.Struct, kw_only=True):
    """Something abnormal in the job. It keeps its `id` when it is updated."""

    id: str
    kind: FindingKind
    ranks: list[int] = []
    """Ranks concerned; empty if it concerns the whole job."""
    hosts: list[str] = []
    onset_step: int
    onset_ns: int
    """Time of the onset: since the epoch, by rank 0's clock."""
    until_step: int | None = None
    """Last affected step; null while it continues."""
    per_step_ns: float | None = None
    """Cost per step while it lasts; for an intermittent finding, the mean over all steps since its onset."""
    per_step_error_ns: float | None = None
    """Half the width of the 95 % interval of `per_step_ns`."""
    cost_ns: float | None = None
    """Total cost so far."""
    before_ns: float | None = None
    """Step time before the onset; null if that does not apply, as is `after_ns`."""
    after_ns: float | None = None
    period_steps: float | None = None
    """Period of an intermittent finding, if it is periodic."""
    share: float | None = None
    """Fraction of affected steps since the onset."""
    p: float | None = None
    """Upper bound of the probability that chance alone causes this."""
    phase: str | None = None
    """data, forward, backward, optimizer or communication, if the steps show it."""
    module: str | None = None
    line: str | None = None
    """`file.py:33`."""
    window: int | None = None
    """Number of the later recording that showed `module` and `line`."""
    why: list[str] = []
    """Conditions of the machine at the same time, as sentences."""
    bytes_per_hour: float | None = None
    """Growth rate of memory."""
    text: str = ""
    """The finding as a sentence."""


class RankState(msgspec.Struct, kw_only=True):
    """The state of a rank according to its last rows."""

    rank: int
    host: str
    step: int
    """The last step that ended."""
    time_ns: int
    """When that step ended."""
    step_ns: float | None
    """Mean step time over the last 10 s."""
    waiting_ratio: float | None
    """Fraction of a step in which it waits in collectives, for others or for data to move; null if no step was
    sampled."""
    data_ns: float | None
    forward_ns: float | None
    backward_ns: float | None
    optimizer_ns: float | None
    device_ns: float | None
    host_bytes: int | None
    device_bytes: int | None
    recent_ns: list[float] = []
    """Step times of the last minute at equal intervals, for a sparkline."""


class LongerSteps(msgspec.Struct, kw_only=True):
    """Step times of the whole job that grew."""

    from_step: int
    until_step: int | None
    """None if they did not become shorter again."""
    before_ns: float
    after_ns: float


class WatchState(msgspec.Struct, kw_only=True):
    """The state of the whole job."""

    format: int
    run_id: str
    time_ns: int
    running: bool
    world_size: int
    num_steps: int
    """Number of steps that all ranks have ended."""
    first_watched: int | None
    elapsed_ns: int | None
    """Duration of the watched steps."""
    step_ns: float | None
    """Median step time over the watched steps."""
    ranks: list[RankState]
    findings: list[WatchFinding]
    notes: list[str] = []
    """What could not be watched, and why."""
    is_short: bool = False
    """Whether the job was too short to be searched for longer steps and late ranks."""
    unexplained: LongerSteps | None = None
    """Longer steps of a job that has ended for which no finding gives a reason; the largest such growth."""


class WindowRequest(msgspec.Struct, kw_only=True):
    """`watch/request.json`: passes that all ranks shall record from a given step, into `windows/<number>/`."""

    number: int
    """Number of the recording, from 1."""
    first_step: int
    """First step to record; a rank that is already past it records nothing."""
    steps: str
    """A plan, as for `run --steps`."""
    why: str = ""
    """`asked`, or the id of a finding."""
    stacks: int = 0
    """Number of requests so far for the stacks of all ranks, which ranks write immediately, wherever they are."""


def certain_findings(findings: Collection[WatchFinding], seen_s: dict[str, float], *, running: bool) -> set[str]:
    """Returns the ids of findings that have existed for `SETTLES_S`, or need not.

    Args:
        findings: Current findings.
        seen_s: Id -> time at which the finding was first seen; new findings are added.
        running: Whether the job runs; when it has ended, all findings are returned.
    """
    now_s = time.monotonic()
    return {one.id for one in findings if now_s - seen_s.setdefault(one.id, now_s) >= SETTLES_S or not running
            or one.kind in AT_ONCE}


FRESH_S = 10.0
"""The state of a running job is written every 2 s: if it is older than this, its watcher is gone."""
KEPT = ("num_steps", "first_watched", "elapsed_ns", "step_ns", "findings", "notes", "is_short", "unexplained")
"""Fields of `WatchState` that describe the job as a whole."""


def read_state(run: Path) -> WatchState | None:
    """Reads what the watcher wrote last; None if there is nothing.

    Raises:
        DataError: It cannot be read.
        FormatError: A newer distprof wrote it.
    """
    path = run / WATCH / STATE_JSON
    try:
        content = read_small(path, MOST_LINES_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return decoded(content, os.fspath(path) if isinstance(path, os.PathLike) else str(path))


def decoded(content: bytes, place: str) -> WatchState:
    """Parses a state from JSON.

    Raises:
        DataError: It is damaged.
        FormatError: A newer distprof wrote it.
    """
    try:
        about = msgspec.json.decode(content)
        if isinstance(about, dict) and isinstance(about.get("format"), int) and about["format"] > FORMAT:
            raise FormatError(f"{place} has format {about['format']}, and this distprof reads up to {FORMAT}",
                              hint="pip install --upgrade distprof")
        return msgspec.convert(about, WatchState)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{place} is damaged: {error}") from error


def is_fresh(state: WatchState) -> bool:
    """Returns whether a state is up to date: the job has ended, or its watcher is alive."""
    return not state.running or abs(time.time_ns() - state.time_ns) < FRESH_S * 1e9


def data_of(state: WatchState | None) -> dict[str, Any] | None:
    """Returns the fields `KEPT` as plain data, for `summary.json`."""
    return None if state is None else {name: msgspec.to_builtins(getattr(state, name)) for name in KEPT}


def state_of(data: Mapping[str, Any] | None) -> WatchState | None:
    """Returns the state for such data, without ranks: the inverse of `data_of`."""
    return None if data is None else msgspec.convert(
        {"format": FORMAT, "run_id": "", "time_ns": 0, "running": False, "world_size": 0, "ranks": [], **data},
        WatchState)


def write_state(run: Path, state: WatchState) -> None:
    """Replaces the file. It is not synced: it is worthless after a crash, and a sync would delay the job's own writes.

    Raises:
        OSError: It cannot be written, or the run directory was removed, which is not created again.
    """
    write_unsynced(run, STATE_JSON, json_text(state))


def write_unsynced(run: Path, name: str, content: bytes) -> None:
    """Replaces a file in `watch/`; creates that folder if necessary.

    Raises:
        OSError: As for `write_state`.
    """
    folder = run / WATCH
    if not folder.is_dir():
        folder.mkdir()  # without parents: the run directory may be gone
    write_whole(folder / name, lambda temporary: temporary.write_bytes(content), syncs=False)
