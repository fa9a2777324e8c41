"""What `stuck.json` in a rank's folder says: the rank's side of a hang. Types alone, to write it and to read it with.

    msgspec.json.decode(path.read_bytes(), type=Stuck)

The file is there while the rank is thought to be stuck and after it was ended that way; a rank that goes on removes
it. It was written while the job ran: `time_ns` says when, and all is as of then. A rank that ended by itself, or was
killed before anybody noticed, has none.

Who hangs in what, over all ranks: a collective of `Group.collectives` with `completed` false has been called by this
rank and is not over; ranks of the group whose `last_called` is below its `number` never called it. `number` and
`last_*` count what torch's flight recorder counts of a group, alike on all its ranks (point-to-point ops of gloo are
not in it). Where two ranks have different `op`, `input_sizes` or `input_dtypes` under one `number`, that is the
mismatch. What the others do meanwhile is in `threads`, the main one first.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class StackFrame(msgspec.Struct, kw_only=True):
    """A line of Python that is running."""

    file: str
    line: int
    function: str


class Thread(msgspec.Struct, kw_only=True):
    """A thread with Python on it."""

    name: str
    native_id: int | None
    """As the kernel numbers it, and the timeline."""
    main: bool
    frames: list[StackFrame]
    """Innermost last."""


class Collective(msgspec.Struct, kw_only=True):
    """A collective of a group in torch's flight recorder."""

    number: int
    """Counts the group's collectives, from 1."""
    name: str
    """As torch profiles it: gloo:all_reduce, nccl:broadcast, ..."""
    op: str
    """all_reduce, ...; gloo's reduce_scatter is an all_reduce."""
    point_to_point: bool
    state: str | None
    """scheduled, started or completed; gloo leaves it at scheduled."""
    completed: bool
    """True where it is over, well or with an error."""
    input_sizes: list[list[int]]
    input_dtypes: list[str]
    output_sizes: list[list[int]]
    output_dtypes: list[str]
    called_ns: int
    """Since the epoch, this rank's clock."""


class Group(msgspec.Struct, kw_only=True):
    """A process group of this rank."""

    name: str
    description: str
    backend: str | None
    ranks: list[int]
    last_called: int | None
    """Number of the last collective that this rank called; null: none, or not known."""
    last_started: int | None
    """Null for gloo."""
    last_completed: int | None
    collectives: list[Collective]
    """The last ones, in the order of their calls; 50 at most."""


class OpenCall(msgspec.Struct, kw_only=True):
    """A labelled call that had not ended; fields as the columns of collectives.parquet."""

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
    """One rank."""

    format: int
    rank: int
    world_size: int
    time_ns: int
    """Since the epoch, this rank's clock."""
    cause: Literal["signal", "watchdog", "error"]
    why: str
    """In words: signal SIGTERM, no step has ended for 30.0 s, RuntimeError: ..."""
    waiting: bool
    """True where a collective of `groups` had been called and was not over."""
    recording: bool
    """False after the last pass: then `step` is the number of recorded steps."""
    step: int
    pass_name: str | None = msgspec.field(name="pass")
    phase: str | None
    """Of the main thread, where known: forward, recompute, backward or optimizer."""
    module_path: str | None
    """Of the forward call that the main thread is in, where known."""
    since_ns: int | None
    """When the last step ended or, after the last pass, a collective was last called."""
    groups: list[Group]
    open_calls: list[OpenCall]
    """Trace pass only, CPU tensors only, without reduce_scatter."""
    threads: list[Thread]
    failure: Failure | None = None
    notes: list[str] = []
    """What could not be found out, and why."""
