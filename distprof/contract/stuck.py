"""The types of `stuck.json`, the file in the folder of a rank that hangs.

    msgspec.json.decode(path.read_bytes(), type=Stuck)

The file exists while the rank is taken to hang, or after it was asked where it is, and stays if the process ends then;
a rank that goes on removes it. It was written while the job ran: everything is as of `time_ns`. A rank that ended by
itself, or was killed before the hang was noticed, has no file.

To find what a job hangs in, compare the ranks: a collective of `StuckGroup.collectives` with `completed` false was
called by this rank and has not ended; ranks of the group whose `last_called` is below its `number` never called it.
`number` and `last_*` count as torch's flight recorder does, alike on all ranks of a group, without point-to-point ops
of gloo. If two ranks have different `op`, `input_sizes` or `input_dtypes` under one `number`, that is the mismatch.
`threads` shows what the other ranks do meanwhile, the main thread first.
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
    """The number that the kernel and the timeline use."""
    main: bool
    frames: list[StackFrame]
    """Innermost last."""


class StuckCollective(msgspec.Struct, kw_only=True):
    """A collective of a group in torch's flight recorder."""

    number: int
    """Counts the group's collectives, from 1."""
    name: str
    """Its name in torch's profiler: gloo:all_reduce, nccl:broadcast, ..."""
    op: str
    """all_reduce, ...; gloo's reduce_scatter is an all_reduce."""
    point_to_point: bool
    state: str | None
    """scheduled, started or completed; gloo leaves it at scheduled."""
    completed: bool
    """True where it ended, with or without an error."""
    input_sizes: list[list[int]]
    input_dtypes: list[str]
    output_sizes: list[list[int]]
    output_dtypes: list[str]
    called_ns: int
    """Since the epoch, this rank's clock."""


class StuckGroup(msgspec.Struct, kw_only=True):
    """A process group of this rank."""

    name: str
    description: str
    backend: str | None
    ranks: list[int]
    last_called: int | None
    """Number of the last collective that this rank called; null where it called none, or that is unknown."""
    last_started: int | None
    """Null for gloo."""
    last_completed: int | None
    collectives: list[StuckCollective]
    """The last ones, in the order of their calls; 50 at most."""
    ranks_known: bool = True
    """False where a dump of torch's flight recorder does not list the ranks of the group: there may be more."""


class OpenCall(msgspec.Struct, kw_only=True):
    """A labelled call that had not ended; its fields are columns of collectives.parquet."""

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
    """The content of the file: one rank."""

    format: int
    rank: int
    world_size: int
    time_ns: int
    """Since the epoch, this rank's clock."""
    cause: Literal["signal", "watchdog", "error", "asked", "dump"]
    """asked: by the watcher of the job, to find out whether it hangs. dump: in no file, but made when a dump of torch's
    flight recorder is read."""
    why: str
    """Like signal SIGTERM, no step has ended for 30.0 s, RuntimeError: ..."""
    waiting: bool
    """True where a collective of `groups` was called and had not ended."""
    recording: bool
    """False after the last pass: then `step` is the number of recorded steps."""
    step: int
    pass_name: str | None = msgspec.field(name="pass")
    phase: str | None
    """Of the main thread: forward, evaluation, recompute, backward or optimizer; null where unknown."""
    module_path: str | None
    """Module whose forward call the main thread is in; null where unknown."""
    since_ns: int | None
    """When the last step ended or, after the last pass, a collective was last called."""
    groups: list[StuckGroup]
    open_calls: list[OpenCall]
    """Trace and arrivals passes only, CPU tensors only, without reduce_scatter."""
    threads: list[StuckThread]
    failure: Failure | None = None
    notes: list[str] = []
    """What is missing here, and why."""


LONGEST = 160
"""Characters of a message that are shown."""
_NATIVE = re.compile(r"\[[^\]\s]*\.(?:cc|cpp|cu|h|hpp):\d+\]\s*")
"""Places in C++ that messages of backends begin with."""


def in_brief(message: str) -> str:
    """The message of an exception in a line, without places in C++."""
    found = " ".join(_NATIVE.sub("", message).split())
    return found if len(found) <= LONGEST else f"{found[:LONGEST - 3]}..."
