"""One communication op of this rank, labelled when it is called and timed when its end is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class CollectiveCall:
    """One communication op on this rank; the fields up to `timed_by` are columns of collectives.parquet."""

    op: str
    group: str
    group_description: str
    group_ranks: list[int]
    sequence: int
    group_sequence: int
    num_elements: int
    size_bytes: int
    dtype: str | None
    peer: int | None
    tag: int | None
    split_bytes: list[int] | None
    asynchronous: bool
    module_path: str | None
    phase: str | None
    step: int
    enqueue_ns: int
    start_ns: int | None = None
    end_ns: int | None = None
    timed_by: str | None = None
    returned_ns: int = 0
    """When the operator had returned: the op is in the backend's queue, or over."""
    thread: int = 0
    """Native id of the thread that called."""
    runner: int | None = None
    """Native id of the backend's thread that did it, known from a callback."""
    stamp_ns: int | None = None
    """When that callback ran; the thread goes on with the op afterwards."""
    over_by_ns: int | None = None
    """When it was seen to be over."""
    work_elements: Sequence[int] = ()
    """Elements of each piece of work that gloo makes of the call; none for what blocks or is point-to-point."""
    on_device: bool = False
    """True where a kernel on a GPU does it."""
