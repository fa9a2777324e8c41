"""The engine that reads and rewrites Chrome events: compiled from C where that was possible, else plain Python.

Both give the same events and the same columns. DISTPROF_PLAIN_ENGINE=1 takes the plain one.
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
"""Environment variable."""


class Interner(Protocol):
    """Gives numbers to texts, counted from 0 in the order in which they first appear; equal texts get equal numbers."""

    def __len__(self) -> int: ...

    def texts(self, first: int = 0) -> list[bytes]:
        """Those from number `first` on."""


class Scanner(Protocol):
    """Reads events of one file, part after part of its text. Its columns are those of the last scan."""

    num_rows: int
    max_rows: int
    """Room for events of one scan."""
    recovers: bool
    """True to go on behind damage within a scan, where the text shows what follows; False at first."""
    num_damaged: int
    """Places of damage that the last scan passed over."""
    lost_bytes: int
    """Bytes in these places."""
    arrays: dict[str, Any]
    """The columns of `ARRAYS`, with room for `max_rows`."""
    integers: dict[str, Any]
    """Columns of integers out of `args`, likewise."""
    interned: dict[str, Any]
    """Columns of texts out of `args`, as numbers of `texts`."""

    @property
    def names(self) -> Interner:
        """Names of events: what stands between the quotes, or the literal where there are none; so all texts."""

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
        """The rows of one of `ARRAYS`, a view that is valid until the next scan."""

    def scan(self, text: Text, at: int, end: int) -> tuple[Status, int]:
        """Reads events of the array that stands in `text`, from byte `at` on; returns how it ended and where to go on.

        Raises:
            ValueError: There is no such part of the text, or it is 2 GB or more.
        """

    def next_event(self, text: Text, at: int, end: int) -> int | None:
        """Where an event seems to begin behind the damage at `at`; None where none does before `end`.

        Raises:
            ValueError: There is no such part of the text, or it is 2 GB or more.
        """

    def links(self, text: Text) -> Any:
        """int64 a row: a number for what links it with others, an arrow's id or a slice's `bind_id`, else `NONE`.

        Ids that are small numbers keep their value; all others of the file are counted.
        """

    def rewrite(self, text: Text, *, keep: Array, pid: Integers, tid: Integers, ts_ns: Integers, dur_ns: Integers,
                links: Integers, first_id: int) -> memoryview:
        """The events of the last scan with other numbers, joined by a comma and a newline; valid until the next call.

        Args:
            text: What was scanned.
            keep: uint8 a row; 0 leaves it out, `NO_ARROW` takes its arrow away.
            pid: int64 a row.
            tid: int64 a row.
            ts_ns: int64 a row, `NONE` leaves it as it is.
            dur_ns: int64 a row, likewise.
            links: int64 a row, an id instead of the one it has; `NONE` gives that a new number.
            first_id: Added to every id.
        """


class Lanes(Protocol):
    """Gives lanes to slices: none of a lane overlaps another there in part."""

    def add(self, row: npt.ArrayLike, thread: npt.ArrayLike, start: npt.ArrayLike,
            duration: npt.ArrayLike) -> LaidSlices:
        """Takes in the next part of all slices; they come by thread, start, and longest first.

        Args:
            row: A number by which later parts can tell about it, int64.
            thread: int32, never one that came before another.
            start: In ns; rows that ask for a slice come behind all that start by then.
            duration: In ns; `AROUND` or `FOLLOWING` for rows that ask for the lane of a slice.

        Raises:
            ValueError: The columns do not belong together, or are in another order.
        """


class Engine(Protocol):
    """What the modules `compiled` and `plain` have."""

    def new_scanner(self, *, integers: Sequence[str] = (), texts: Sequence[str] = (), max_rows: int = 1 << 15,
                    skims: bool = False) -> Scanner:
        """A scanner that has read nothing yet.

        Args:
            integers: Keys of `args` that become columns of integers.
            texts: Keys of `args` that become columns of interned texts.
            max_rows: Room for events of one scan.
            skims: Allows to pass over `args` that hold no object and end with a brace on a line of its own, without a
                look inside: twice as fast, and damage in there goes unseen. Only where nothing of `args` is asked for.
        """

    def new_lanes(self, *, tolerance: int, max_lanes: int) -> Lanes:
        """Lanes that hold no slice yet.

        Args:
            tolerance: So much, in ns, may be cut of a slice's end or of those it sticks out of, whichever is less;
                else it goes to a lane of its own.
            max_lanes: Lanes of a thread, the thread itself included.

        Raises:
            ValueError: They leave no lane.
        """


def is_compiled() -> bool:
    """True where the compiled engine is in use."""
    return PLAIN not in os.environ and is_built()


def described() -> str:
    """The engine in use, for a person, with a hint where it is the slow one."""
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
