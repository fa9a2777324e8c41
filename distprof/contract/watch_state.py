"""`watch/state.json` of a run: what the watch of a job knows by now. `distprof watch --once --json` prints it.

The launcher's watcher writes it whole, every few seconds while the job runs and once more at its end.
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
"""Of the state: the newest that this version reads, and the one that it writes."""
WATCH = "watch"
"""A folder in a run directory."""
STATE_JSON = "state.json"
REQUEST_JSON = "request.json"
WINDOWS = "windows"
"""A folder in a run directory: what was recorded later, each a run directory of its own: 0001, 0002, ..."""
LogTo = Literal["tensorboard", "wandb", "mlflow"]
OPEN_RUNS = ("wandb", "mlflow")
"""Of these, what ranks write into a run that their script has open there."""
SETTLES_S = 8.0
"""The first estimate of a finding changes most."""
AT_ONCE = ("hang", "stopped")
"""What nobody waits for to become clearer."""


def window_folder(run: Path, number: int) -> Path:
    """The run directory of the N-th recording that was made later in the job of a run."""
    return run / WINDOWS / f"{number:04d}"


def logged_file(run: Path, log_to: str | None) -> Path:
    """A line for each run of a tracker that ranks write into: `rank 0: 3k9x2b1c`."""
    return run / WATCH / f"log-to-{log_to}"


FindingKind = Literal["slow_rank", "slow_host", "slow_link", "slow_group", "regression", "intermittent", "data_stall",
                      "memory_growth", "pauses", "stopped", "hang"]


class WatchFinding(msgspec.Struct, kw_only=True):
    """Something that was noticed. It keeps its `id` while it is updated."""

    id: str
    kind: FindingKind
    ranks: list[int] = []
    """Who; none where it concerns the whole job."""
    hosts: list[str] = []
    onset_step: int
    onset_ns: int
    """Since the epoch, rank 0's clock."""
    until_step: int | None = None
    """The last step of it; null: it goes on."""
    per_step_ns: float | None = None
    """What it costs per step while it lasts; of one that comes and goes, the mean over all steps since its onset."""
    per_step_error_ns: float | None = None
    """Half the 95 % interval of that."""
    cost_ns: float | None = None
    """What it has cost by now."""
    before_ns: float | None = None
    """Step time before; null where that does not apply."""
    after_ns: float | None = None
    period_steps: float | None = None
    """Of one that comes and goes in a rhythm."""
    share: float | None = None
    """Of the steps since its onset, how many are affected."""
    p: float | None = None
    """Largest probability that chance alone does this."""
    phase: str | None = None
    """data, forward, backward, optimizer or communication, where the steps tell."""
    module: str | None = None
    line: str | None = None
    """`file.py:33`."""
    window: int | None = None
    """The recording that told module and line."""
    why: list[str] = []
    """What the machine said at the same time, in sentences."""
    bytes_per_hour: float | None = None
    """Of memory that grows."""
    text: str = ""
    """The finding as a sentence."""


class RankState(msgspec.Struct, kw_only=True):
    """A rank as its last rows show it."""

    rank: int
    host: str
    step: int
    """The last that ended."""
    time_ns: int
    """When it did."""
    step_ns: float | None
    """Mean of the steps of the last 10 s."""
    waiting_ratio: float | None
    """Share of a step in which it waits in collectives, for others or for data to move; null where no step was
    sampled."""
    data_ns: float | None
    forward_ns: float | None
    backward_ns: float | None
    optimizer_ns: float | None
    device_ns: float | None
    host_bytes: int | None
    device_bytes: int | None
    recent_ns: list[float] = []
    """Step times of the last minute at equal distances, for a sparkline."""


class WatchState(msgspec.Struct, kw_only=True):
    """The whole job."""

    format: int
    run_id: str
    time_ns: int
    running: bool
    world_size: int
    num_steps: int
    """Steps that all ranks have ended."""
    first_watched: int | None
    elapsed_ns: int | None
    """Of the watched steps."""
    step_ns: float | None
    """Median over the watched job."""
    ranks: list[RankState]
    findings: list[WatchFinding]
    notes: list[str] = []
    """What could not be watched, and why."""


class WindowRequest(msgspec.Struct, kw_only=True):
    """`watch/request.json`: the passes that all ranks record from a step on, into `windows/<number>/`."""

    number: int
    """From 1."""
    first_step: int
    """A rank that has come farther already records nothing."""
    steps: str
    """A plan, as of `run --steps`."""
    why: str = ""
    """`asked`, or the id of a finding."""
    stacks: int = 0
    """Counts requests for the stacks of all ranks, which they write at once wherever they are."""


def certain_findings(findings: Collection[WatchFinding], seen_s: dict[str, float], *, running: bool) -> set[str]:
    """Ids of findings that have been there for a while.

    Args:
        findings: As of now.
        seen_s: When each was seen first, which is added to.
        running: At the end of the job all are.
    """
    now_s = time.monotonic()
    return {one.id for one in findings if now_s - seen_s.setdefault(one.id, now_s) >= SETTLES_S or not running
            or one.kind in AT_ONCE}


FRESH_S = 10.0
"""A running job's state is written every 2 s: one that is older has lost its watcher."""
KEPT = ("num_steps", "first_watched", "elapsed_ns", "step_ns", "findings", "notes")
"""Fields of `WatchState` that say something of the job as a whole."""


def read_state(run: Path) -> WatchState | None:
    """What the watcher wrote last; None where there is nothing.

    Raises:
        DataError: It cannot be read.
        FormatError: It is of a newer distprof.
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
    """A state from its JSON.

    Raises:
        DataError: It is damaged.
        FormatError: It is of a newer distprof.
    """
    try:
        about = msgspec.json.decode(content)
        if isinstance(about, dict) and isinstance(about.get("format"), int) and about["format"] > FORMAT:
            raise FormatError(f"{place} has format {about['format']}, and this distprof reads up to {FORMAT}",
                              hint="pip install --upgrade distprof")
        return msgspec.convert(about, WatchState)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{place} is damaged: {error}") from error


def is_fresh(state: WatchState) -> bool:
    """Whether it is the last word: of a job that is over, or of a watcher that is there."""
    return not state.running or abs(time.time_ns() - state.time_ns) < FRESH_S * 1e9


def data_of(state: WatchState | None) -> dict[str, Any] | None:
    """`KEPT` as plain data, for `summary.json`."""
    return None if state is None else {name: msgspec.to_builtins(getattr(state, name)) for name in KEPT}


def state_of(data: Mapping[str, Any] | None) -> WatchState | None:
    """The other way round; without ranks."""
    return None if data is None else msgspec.convert(
        {"format": FORMAT, "run_id": "", "time_ns": 0, "running": False, "world_size": 0, "ranks": [], **data},
        WatchState)


def write_state(run: Path, state: WatchState) -> None:
    """Replaces it. Not synced: it is worth nothing after a crash, and a sync would make the job's own writes wait.

    Raises:
        OSError: It cannot be written, or the run directory was removed, which is not made again.
    """
    write_unsynced(run, STATE_JSON, json_text(state))


def write_unsynced(run: Path, name: str, content: bytes) -> None:
    """Replaces a file in `watch/`, which is made where it is not there.

    Raises:
        OSError: As above.
    """
    folder = run / WATCH
    if not folder.is_dir():
        folder.mkdir()  # without parents: the run directory may be gone
    write_whole(folder / name, lambda temporary: temporary.write_bytes(content), syncs=False)
