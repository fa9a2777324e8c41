"""A snapshot of torch.cuda.memory as columns: the history of each device, and how its memory is divided at the end."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distprof.arrays import Array, Integers
from distprof.errors import DataError
from distprof.merge.snapshot.call_stacks import CallStacks, StackRef
from distprof.merge.snapshot.plain_pickle import HINT, PlainPickle

ACTIONS = ("other", "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
           "segment_unmap", "oom", "snapshot", "free")
"""Actions of a history; `ENTRY` contains their indices."""
NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
STATES = ("inactive", "active_allocated", "active_pending_free", "active_awaiting_free")
"""States of a block; the last two are names of the same state."""
PACKED = struct.Struct("<BqqqHI")
ENTRY = np.dtype([("action", "u1"), ("address", "<i8"), ("size", "<i8"), ("time_us", "<i8"), ("stream", "<u2"),
                  ("stack", "<u4")])
"""Columns of a history, packed as they are read. The address of an `oom` is the free memory of the device; times are -1
if torch wrote none; `stream` is an index into `Snapshot.streams`."""
BLOCK = ("address", "size", "requested", "state", "stack", "segment")
SEGMENT = ("device", "address", "size", "stream", "expandable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The contents of one file."""

    path: Path
    stacks: CallStacks
    histories: Mapping[int, Array]
    """Device -> one row per entry, `ENTRY`, oldest first."""
    streams: Sequence[int]
    """Streams as torch numbers them; 0 is the default stream."""
    blocks: Integers
    """One row per block, `BLOCK`; addresses that torch did not write are computed."""
    segments: Integers
    """One row per segment, `SEGMENT`."""
    num_other: int
    """Entries with an unknown action."""
    settings: str | None
    """PYTORCH_CUDA_ALLOC_CONF, if it was set."""

    @property
    def devices(self) -> list[int]:
        """Devices with memory or a history."""
        return sorted({*self.histories, *self.segments[:, 0].tolist()})


class _Small:
    """Replaces an entry or block that became a row, or what is not needed."""


ENTRY_ROW, BLOCK_ROW, ANNOTATION = _Small(), _Small(), _Small()


def read_snapshot(path: Path) -> Snapshot:
    """Reads a file that `torch.cuda.memory._dump_snapshot` wrote.

    Raises:
        DataError: It is not a snapshot, is damaged, or contains more than plain containers.
    """
    return _Reader(path).read()


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._stacks = CallStacks()
        self._entries, self._blocks = bytearray(), array("q")
        self._streams: dict[int, int] = {}
        self._pickle = PlainPickle(path, self._finish, self._stacks.stack)

    def read(self) -> Snapshot:
        found = self._pickle.load()
        if isinstance(found, list):  # torch before 2.0 wrote only the segments
            found = {"segments": found, "device_traces": []}
        if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
            raise self._no_snapshot()
        try:
            return self._snapshot(found)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            raise self._no_snapshot() from None

    def _no_snapshot(self) -> DataError:
        return DataError(f"{self._path} is not a memory snapshot: it has no segments", hint=HINT)

    def _finish(self, found: dict[Any, Any]) -> Any:
        """Turns dicts that occur in large numbers into rows."""
        if "action" in found:
            self._entries += PACKED.pack(
                NUMBERS.get(found["action"], 0), found.get("addr", found.get("device_free", 0)), found["size"],
                found.get("time_us", -1), self._stream(found["stream"]), self._stack_of(found))
            return ENTRY_ROW
        if "filename" in found and "line" in found:
            return self._stacks.frame(found)
        if "state" in found and "size" in found:
            self._add_block(found)
            return BLOCK_ROW
        # annotations of record_function, as many as entries in some files
        return ANNOTATION if "stage" in found and "time_us" in found else None

    def _stream(self, stream: int) -> int:
        if not isinstance(stream, int):
            raise TypeError
        known = self._streams.get(stream)
        return self._streams.setdefault(stream, len(self._streams)) if known is None else known

    def _stack_of(self, found: Mapping[Any, Any]) -> int:
        frames = found.get("frames")
        if frames.__class__ is StackRef:
            return int(frames.number)
        if frames is None:
            return 0
        stack = self._stacks.stack(frames)
        if stack is None:
            raise TypeError
        self._pickle.replace(frames, stack)
        return stack.number

    def _add_block(self, found: Mapping[Any, Any]) -> None:
        history = found.get("history") or [{}]  # written by torch 2.0
        requested = found.get("requested_size", history[0].get("real_size", found["size"]))
        stack = self._stack_of(found) or self._stack_of(history[0])
        self._blocks.extend((found.get("address", -1), found["size"], requested, STATES.index(found["state"]), stack))

    def _snapshot(self, found: Mapping[str, Any]) -> Snapshot:
        entries = np.frombuffer(self._entries, ENTRY)
        histories = dict(self._histories(found.get("device_traces", []), entries))
        segments = np.array([(int(one.get("device", 0)), int(one["address"]), int(one["total_size"]),
                              self._stream(one["stream"]), bool(one.get("is_expandable")))
                             for one in found["segments"]], np.int64).reshape(-1, len(SEGMENT))
        settings = found.get("allocator_settings")
        words = settings.get("PYTORCH_CUDA_ALLOC_CONF") if isinstance(settings, dict) else None
        known = words if isinstance(words, str) and words else None
        return Snapshot(path=self._path, stacks=self._stacks, histories=histories, segments=segments,
                        streams=list(self._streams), blocks=self._placed(found["segments"], segments),
                        num_other=int(np.count_nonzero(entries["action"] == 0)), settings=known)

    def _histories(self, traces: list[Any], entries: Array) -> Iterator[tuple[int, Any]]:
        """Yields device and history; rows are in the order of the lists that contained them."""
        begin = 0
        for device, trace in enumerate(traces):
            if not all(one is ENTRY_ROW for one in trace):
                raise TypeError
            if trace:
                yield device, entries[begin:begin + len(trace)]
            begin += len(trace)
        if begin != len(entries):
            raise ValueError(begin)

    def _placed(self, found: list[Any], segments: Integers) -> Integers:
        """Adds to blocks the index of their segment, and their address if torch wrote none: blocks are contiguous."""
        blocks = np.frombuffer(self._blocks, np.int64).reshape(-1, len(BLOCK) - 1)
        counts = [len(one["blocks"]) for one in found]
        if sum(counts) != len(blocks):
            raise ValueError(counts)
        segment = np.repeat(np.arange(len(counts)), counts)
        before = np.cumsum(blocks[:, 1]) - blocks[:, 1]
        first = np.cumsum(counts, dtype=np.int64) - counts
        offset = before - before[np.minimum(first, len(blocks) - 1)][segment] if len(blocks) else before
        address = np.where(blocks[:, 0] >= 0, blocks[:, 0], segments[segment, 1] + offset)
        return np.column_stack([address, blocks[:, 1:], segment])
