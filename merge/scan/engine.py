"""The engine that reads and rewrites Chrome events: compiled from C where that was possible, otherwise plain Python.

Both give the same events and the same columns. DISTPROF_PLAIN_ENGINE=1 selects the plain one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from distprof.compiled import build
from distprof.compiled.library import how_built, is_built
from distprof.merge.scan.scanned_columns import LaidSlices, Status, Text

if TYPE_CHECKING:
    import numpy.typing as npt

    from distprof.arrays import Array, Integers

PLAIN = "DISTPROF_PLAIN_ENGINE"
"""Environment variable that selects the plain engine."""


class Interner(Protocol):
    """Gives texts numbers, counted from 0 in the order of first appearance; equal texts get equal numbers."""

    def __len__(self) -> int: ...

    def texts(self, first: int = 0) -> list[bytes]:
        """Returns the texts from number `first` on."""


class Scanner(Protocol):
    """Reads events of one file, part by part of its text. Its columns are those of the last scan."""

    num_rows: int
    max_rows: int
    """Maximum number of events per scan."""
    recovers: bool
    """Whether a scan continues after damage if the text shows what follows; False initially."""
    num_damaged: int
    """Number of damaged places that the last scan skipped."""
    lost_bytes: int
    """Bytes in these places."""
    arrays: dict[str, Any]
    """The columns of `ARRAYS`, each with room for `max_rows`."""
    integers: dict[str, Any]
    """Key in `args` -> column of integers, with room for `max_rows`."""
    interned: dict[str, Any]
    """Key in `args` -> column of texts, as their numbers in `texts`."""

    @property
    def names(self) -> Interner:
        """Names of events: the bytes between the quotes, or the literal if there are none; as in all texts."""

    @property
    def categories(self) -> Interner:
        """Categories; events without one have number -1."""

    @property
    def threads(self) -> Interner:
        """JSON of a pid, a blank, JSON of a tid."""

    @property
    def texts(self) -> Interner:
        """Texts of `args`."""

    def column(self, name: str) -> Any:
        """Returns the rows of one of `ARRAYS`, a view that is valid until the next scan."""

    def scan(self, text: Text, at: int, end: int) -> tuple[Status, int]:
        """Reads events of the array in `text` from byte `at` on; returns how it ended and where to continue.

        Raises:
            ValueError: There is no such part of the text, or it is 2 GB or more.
        """

    def next_event(self, text: Text, at: int, end: int) -> int | None:
        """Returns where an event seems to begin after the damage at `at`; None if none does before `end`.

        Raises:
            ValueError: There is no such part of the text, or it is 2 GB or more.
        """

    def links(self, text: Text) -> Any:
        """Returns per row (int64) a number for what links it to others, an arrow's id or a slice's `bind_id`, else
        `NONE`.

        Ids that are small numbers keep their value; all others in the file are numbered.
        """

    def rewrite(self, text: Text, *, keep: Array, pid: Integers, tid: Integers, ts_ns: Integers, dur_ns: Integers,
                links: Integers, first_id: int) -> memoryview:
        """Returns the events of the last scan with new numbers, joined by a comma and a newline; valid until the next
        call.

        Args:
            text: The text that was scanned.
            keep: uint8 per row; 0 drops the row, `NO_ARROW` removes its arrow.
            pid: int64 per row.
            tid: int64 per row.
            ts_ns: int64 per row, `NONE` leaves the time unchanged.
            dur_ns: int64 per row, `NONE` leaves the duration unchanged.
            links: int64 per row, an id in place of the event's own; `NONE` gives its own id a new number.
            first_id: Added to every id.
        """


class Lanes(Protocol):
    """Assigns slices to lanes, in which no slice partly overlaps another."""

    def add(self, row: npt.ArrayLike, thread: npt.ArrayLike, start: npt.ArrayLike,
            duration: npt.ArrayLike) -> LaidSlices:
        """Takes the next part of all slices, which must be sorted by thread, start, and longest first.

        Args:
            row: A number by which later parts can refer to the row, int64.
            thread: int32, ascending.
            start: In ns; a row that asks for a slice comes after all slices that have started by then.
            duration: In ns; `AROUND` or `FOLLOWING` for rows that ask for the lane of a slice.

        Raises:
            ValueError: The columns do not belong together, or are in another order.
        """


class Engine(Protocol):
    """The interface of the modules `compiled` and `plain`."""

    def new_scanner(self, *, integers: Sequence[str] = (), texts: Sequence[str] = (), max_rows: int = 1 << 15,
                    skims: bool = False) -> Scanner:
        """Returns a scanner that has read nothing yet.

        Args:
            integers: Keys of `args` that become columns of integers.
            texts: Keys of `args` that become columns of interned texts.
            max_rows: Maximum number of events per scan.
            skims: Allows skipping, unread, `args` that contain no object and end with a brace on a line of its own:
                twice as
                fast, but damage in them goes unnoticed. Only for callers that need nothing from `args`.
        """

    def new_lanes(self, *, tolerance: int, max_lanes: int) -> Lanes:
        """Returns lanes that hold no slice yet.

        Args:
            tolerance: In ns: if a slice sticks out of others, its end or theirs, whichever is less, may be cut by this
                much;
                otherwise it goes to a lane of its own.
            max_lanes: Number of lanes per thread, including the thread itself.

        Raises:
            ValueError: They leave no lane.
        """


def is_compiled() -> bool:
    """Returns whether the compiled engine is in use."""
    return PLAIN not in os.environ and is_built()


def described() -> str:
    """Describes the engine in use, with a hint if it is the slow one."""
    if is_compiled():
        return f"merge engine: compiled ({how_built()})"
    slow = "merge engine: plain Python, many times slower"
    if PLAIN in os.environ:
        return f"{slow} ({PLAIN} is set)  hint: unset {PLAIN}"
    return f"{slow} ({how_built()})  hint: install a C compiler, then run: python {build.__file__}"


def _engine() -> Engine:
    if is_compiled():
        from distprof.merge.scan import compiled

        return compiled
    from distprof.merge.scan import plain

    return plain


ENGINE = _engine()
