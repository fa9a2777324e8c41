"""Defines the columns that a scan of Chrome events fills, one row per event, and what numbers and texts in them mean.

Slices that come in parts have separate columns for what the engines find out about them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from distprof.arrays import Array

NONE = -(2**63)
"""Marks a missing value in a column of times or integers."""
LATEST_NS = 1 << 62
"""Times and durations are below this, which is in the year 2116, so that two of them can be added."""
REPAIR, BAD_TIME, GLOBAL, NON_ASCII, ENCLOSING, FLOW_IN, FLOW_OUT = (1 << bit for bit in range(7))
"""Flags of an event: its text is not strict JSON that every viewer reads; its time is not a number, or too large; it is
an instant of scope g; it has bytes above 127; it ends an arrow at the slice around it, not at the next one; it has a
`bind_id` whose arrow leads to it, or starts from it."""
SLICE, META, BEGIN, END, ASYNC_BEGIN = (ord(letter) for letter in "XMBEb")
FLOW_START, FLOW_STEP, FLOW_END = (ord(letter) for letter in "stf")
"""Phases, as the character codes in columns."""
FLOWS, PAIRED = (np.isin(np.arange(256), [ord(letter) for letter in letters]) for letters in ("stf", "BEbe"))
"""By phase: whether it is an end of an arrow; whether slices of it are written as two events, a begin and an end."""
LINKED = b"stfbenSTpFNODPvV()"
"""Phases whose `id` joins events: arrows, asynchronous events, objects, samples, memory dumps, contexts."""
NO_ARROW = 2
"""In `keep`: keep the slice, but without the arrow of its `bind_id`."""
IDS_FOR_SMALL = 1 << 31
"""Integer ids below this keep their value; all others are numbered from here on."""
MOST_BYTES = 2**31 - 1
"""Maximum length of a scanned text, in bytes: places in it are 32-bit integers."""
ARRAYS = {"start": np.int32, "end": np.int32, "ts_ns": np.int64, "dur_ns": np.int64, "name": np.int32,
          "category": np.int32, "thread": np.int32, "phase": np.uint8, "flags": np.uint8}
AROUND, FOLLOWING = -1, -2
"""Durations of rows that are not slices but ask for the lane of one: of the slice around their time, that is the last
one that has begun and not ended before; or of the slice that begins next."""
LATE = np.dtype([("row", np.int64), ("lane", np.int64), ("cut", np.int64)])
_DECODER = json.JSONDecoder(strict=False)

Text = bytes | Any
"""JSON text: bytes, or a numpy array of them."""


class Status(IntEnum):
    """How a scan ended."""

    MORE = 0
    """The text ended; what is left is not a whole event."""
    ENDED = 1
    """The array ended."""
    FULL = 2
    """There is no room for more rows."""
    MALFORMED = 3
    """It met something that is not an event."""


class ScannedColumns:
    """Columns of the last scan; the first `num_rows` values of each array are valid."""

    def __init__(self, *, integers: Sequence[str], texts: Sequence[str], max_rows: int) -> None:
        """Allocates the columns.

        Args:
            integers: Keys of `args` that become columns of integers.
            texts: Keys of `args` that become columns of interned texts.
            max_rows: Maximum number of events per scan.
        """
        self.num_rows, self.max_rows = 0, max_rows
        self.recovers, self.num_damaged, self.lost_bytes = False, 0, 0
        self.arrays: dict[str, Any] = {name: np.empty(max_rows, kind) for name, kind in ARRAYS.items()}
        self.integers: dict[str, Any] = {key: np.empty(max_rows, np.int64) for key in integers}
        self.interned: dict[str, Any] = {key: np.empty(max_rows, np.int32) for key in texts}

    def column(self, name: str) -> Any:
        """Returns a view of one of `ARRAYS`, valid until the next scan."""
        return self.arrays[name][:self.num_rows]

    def check(self, text: Text, at: int, end: int) -> None:
        """Refuses a part of a text that cannot be scanned.

        Raises:
            ValueError: There is no such part, or it is too long.
        """
        if not 0 <= at <= end <= len(text) or end > MOST_BYTES:
            raise ValueError(f"expected a part of {min(len(text), MOST_BYTES)} bytes of text, found {at} to {end}")

    def columns_of(self, text: Text, **columns: tuple[Any, Any]) -> list[Array]:
        """Returns arrays with a value per row, converted to the required types.

        Args:
            text: The text that was scanned.
            columns: Name -> array and type.

        Raises:
            ValueError: The text or an array is too short for the rows.
        """
        if self.num_rows and int(self.arrays["end"][self.num_rows - 1]) > len(text):
            raise ValueError(f"expected the text of {self.num_rows} events, found {len(text)} bytes")
        arrays = [np.ascontiguousarray(array, kind) for array, kind in columns.values()]
        for name, array in zip(columns, arrays, strict=True):
            if array.shape != (self.num_rows,):
                raise ValueError(f"expected {name} of {self.num_rows} rows, found {array.shape}")
        return arrays


def thread_of(key: bytes) -> tuple[str, str]:
    """Decodes the JSON of a pid and a tid, separated by a blank, to text: 7 and "7" are the same."""
    text = key.decode("utf-8", "replace")
    try:
        _, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        end = -1
    if text[end:end + 1] != " ":  # not JSON
        end = text.index(" ")
    return _plain(text[:end]), _plain(text[end + 1:])


def _plain(text: str) -> str:
    if not text:
        return ""
    try:
        return str(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return text


class LaidSlices(NamedTuple):
    """What was found about the rows of a part, and about some rows of earlier parts."""

    lane: Any
    """Lane of each slice, 0 for the thread itself; for rows that ask, the lane of the slice they ask for, or -1."""
    cut: Any
    """New duration of each slice, -1 if it is unchanged."""
    late: Any
    """Rows of earlier parts, as an array of `LATE`: the lane of the slice that a row asked for and that follows, or the
    new duration of a slice; the other value is -1."""


def part_of(row: npt.ArrayLike, thread: npt.ArrayLike, start: npt.ArrayLike, duration: npt.ArrayLike) -> list[Array]:
    """Returns a part, converted to the required types and checked before C code reads its memory.

    Raises:
        ValueError: The columns do not belong together, or are not sorted by thread and start.
    """
    arrays: list[Any] = [np.ascontiguousarray(array, kind) for array, kind in (
        (row, np.int64), (thread, np.int32), (start, np.int64), (duration, np.int64))]
    if len({array.shape for array in arrays}) != 1:
        raise ValueError(f"expected columns of one length, found {[len(array) for array in arrays]}")
    _, threads, starts, durations = arrays
    if len(starts) and (int(starts.min()) <= -LATEST_NS or int(starts.max()) >= LATEST_NS
                        or int(durations.min()) < FOLLOWING or int(durations.max()) >= LATEST_NS):
        raise ValueError("expected times below 2^62 ns and no durations below 0, found others")
    if (threads[1:] < threads[:-1]).any() or ((starts[1:] < starts[:-1]) & (threads[1:] == threads[:-1])).any():
        raise ValueError("expected slices by thread and start, found another order")
    return arrays


def lanes_of(tolerance: int, max_lanes: int) -> tuple[int, int]:
    """Checks and returns the arguments of `new_lanes`.

    Raises:
        ValueError: They leave no lane.
    """
    if max_lanes < 1:
        raise ValueError(f"expected a lane or more, found {max_lanes}")
    return tolerance, max_lanes
