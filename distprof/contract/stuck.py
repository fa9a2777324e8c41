"""The types of `stuck.json`, a file in the folder of a rank that hangs.

    msgspec.json.decode(path.read_bytes(), type=Stuck)

The file exists while the rank seems to hang, or after the watcher asked for it, and remains if the process ends then; a
rank that continues removes it. It describes the state at `time_ns`. A rank that ended by itself, or was killed before
the hang was noticed, has no file.

To find the cause of a hang, compare the ranks. A collective in `StuckGroup.collectives` with `completed` false was
called by this rank and has not ended; ranks of the group whose `last_called` is below its `number` never called it.
`number` and `last_*` count as torch's flight recorder does, the same on all ranks of a group, excluding gloo's
point-to-point ops. If two ranks have different `op`, `input_sizes` or `input_dtypes` for the same `number`, that is the
mismatch. `threads` shows what other ranks do meanwhile, the main thread first.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec


class StackFrame(msgspec.Struct, kw_only=True):
    """A call in a Python stack."""

    file: str
    line: int
    function: str


class StuckThread(msgspec.Struct, kw_only=True):
    """A thread that runs Python."""

    name: str
    native_id: int | None
    """Thread id used by the kernel and in the timeline."""
    main: bool
    frames: list[StackFrame]
    """Calls, innermost last."""


class StuckCollective(msgspec.Struct, kw_only=True):
    """An op of a group in torch's flight recorder."""

    number: int
    """Number of the collective in the group, from 1."""
    name: str
    """Its name in torch's profiler: gloo:all_reduce, nccl:broadcast, ..."""
    op: str
    """all_reduce, ...; gloo's reduce_scatter is an all_reduce."""
    point_to_point: bool
    state: str | None
    """scheduled, started or completed; gloo leaves it at scheduled."""
    completed: bool
    """True if it ended, with or without an error."""
    input_sizes: list[list[int]]
    input_dtypes: list[str]
    output_sizes: list[list[int]]
    output_dtypes: list[str]
    called_ns: int
    """Time of the call: since the epoch, by this rank's clock."""


class StuckGroup(msgspec.Struct, kw_only=True):
    """A process group of this rank."""

    name: str
    description: str
    backend: str | None
    ranks: list[int]
    last_called: int | None
    """Number of the last collective that this rank called; null if it called none, or if unknown."""
    last_started: int | None
    """Number of the last collective that the backend started; null for gloo."""
    last_completed: int | None
    collectives: list[StuckCollective]
    """The last ones (at most 50), in the order of their calls."""
    ranks_known: bool = True
    """False if a dump of torch's flight recorder does not list the ranks of the group: there may be more."""


class OpenCall(msgspec.Struct, kw_only=True):
    """A labelled call that had not ended; the fields are columns of collectives.parquet."""

    op: str
    group: str
    group_ranks: list[int]
    sequence: int
    group_sequence: int
    num_elements: int
    size_bytes: int
    dtype: str | None
    peer: int | None
    tag: int | None
    asynchronous: bool
    module_path: str | None
    phase: str | None
    step: int
    enqueue_ns: int


class Failure(msgspec.Struct, kw_only=True):
    """The exception that ended the script."""

    type: str
    message: str
    frames: list[StackFrame]


class Stuck(msgspec.Struct, kw_only=True):
    """Content of the file: one rank."""

    format: int
    rank: int
    world_size: int
    time_ns: int
    """Time of the observation: since the epoch, by this rank's clock."""
    cause: Literal["signal", "watchdog", "error", "asked", "dump"]
    """Why it was written. asked: requested by the watcher of the job, to find out whether it hangs. dump: not from a
    file, but made from a dump of torch's flight recorder."""
    why: str
    """The cause in words, like `signal SIGTERM`, `no step has ended for 30.0 s`, `RuntimeError: ...`."""
    waiting: bool
    """True if a collective in `groups` was called and had not ended."""
    recording: bool
    """False after the last pass; `step` is then the number of recorded steps."""
    step: int
    pass_name: str | None = msgspec.field(name="pass")
    phase: str | None
    """Phase of the main thread: forward, evaluation, recompute, backward or optimizer; null if unknown."""
    module_path: str | None
    """Module whose forward call the main thread is in; null if unknown."""
    since_ns: int | None
    """When the last step ended or, after the last pass, when a collective was last called."""
    groups: list[StuckGroup]
    open_calls: list[OpenCall]
    """Calls that had not ended; only of CPU tensors in the trace and arrivals passes, excluding reduce_scatter."""
    threads: list[StuckThread]
    failure: Failure | None = None
    notes: list[str] = []
    """What is missing here, and why."""


LONGEST = 160
"""Messages are shortened to this number of characters."""
_NATIVE = re.compile(r"\[[^\]\s]*\.(?:cc|cpp|cu|h|hpp):\d+\]\s*")
"""Source locations in C++, with which messages of backends begin."""


def in_brief(message: str) -> str:
    """Returns the message of an exception as one short line without source locations in C++."""
    found = " ".join(_NATIVE.sub("", message).split())
    return found if len(found) <= LONGEST else f"{found[:LONGEST - 3]}..."
