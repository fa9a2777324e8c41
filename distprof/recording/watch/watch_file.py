"""Appends rows, samples and notes to a rank's files every few seconds, on a separate thread, since disks may hang."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distprof.contract.watch import Frame, Note, SampledStep, StepRows, encoded
from distprof.files import append_whole
from distprof.helper import Helper
from distprof.own import Event, lock, time
from distprof.recording.watch.rows import Row
from distprof.recording.watch.sampled_steps import FoundSample
from distprof.recording.watch.thinning import NAME
from distprof.threads import UnseenThread, is_scarce

EVERY_S = 3.0
"""Time in seconds between two frames, if there is news."""
PATIENCE_S = 2.0
"""Time in seconds that the end of the script waits for the disk."""
PIECES = 8
"""Number of files; each is closed once it has its share of the bytes that all may have."""
MOST_HELD = 100_000
"""Maximum number of rows in memory while a disk hangs."""


class WatchFile:
    """Takes rows, samples and notes from the thread of the steps, and writes them on another thread."""

    def __init__(self, folder: Path, most_bytes: int, overdue: Callable[[bool], list[Row]],
                 failed: Callable[[Exception], None]) -> None:
        """Prepares a new piece.

        Args:
            folder: The rank's folder.
            most_bytes: Limit for all pieces, above which old ones are thinned.
            overdue: Returns rows that nobody has added, or was late to add; all rows if its argument is True.
            failed: Called once, when nothing can be written any more.
        """
        self._folder, self._most_bytes = folder, most_bytes
        self._overdue, self._failed = overdue, failed
        self._rows: deque[Row] = deque(maxlen=MOST_HELD)
        self._samples: deque[FoundSample] = deque(maxlen=MOST_HELD)
        self._notes: deque[Note] = deque(maxlen=MOST_HELD)
        self._number = 0
        self._in_piece = self._in_all = 0
        self._file_lock = lock()
        self._over = Event()
        self._works = True
        self._due_s = time.monotonic() + EVERY_S
        """Without a thread of ours: when to write."""
        self._thread: UnseenThread | None = None

    def start(self) -> None:
        """Begins to write."""
        while (self._folder / NAME.format(self._number)).exists():
            self._in_all += (self._folder / NAME.format(self._number)).stat().st_size
            self._number += 1
        if not is_scarce():
            self._thread = UnseenThread(self._write_on)
            self._thread.start()

    def add(self, rows: list[Row], samples: list[FoundSample]) -> None:
        """Adds rows and samples that are complete."""
        self._rows.extend(rows)
        self._samples.extend(samples)
        if self._thread is None and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + EVERY_S
            self.flush()

    def note(self, note: Note) -> None:
        """Adds a note."""
        self._notes.append(note)

    def close(self) -> None:
        """Writes what is not written yet; waits for the disk, and for a running write, for at most `PATIENCE_S`."""
        self._over.set()
        if self._thread is None or not self._thread.is_alive():
            self.flush(at_end=True)
        else:
            self._thread.join(PATIENCE_S)

    def flush(self, *, at_end: bool = False) -> None:
        """Writes what there is; does nothing while another thread writes."""
        if not self._works or not self._file_lock.acquire(timeout=PATIENCE_S if at_end else 0):
            return
        try:
            self._write(at_end=at_end)
        except Exception as error:  # noqa: BLE001 (a full disk, a removed folder; the job continues)
            self._works = False
            self._failed(error)
        finally:
            self._file_lock.release()

    def _write_on(self) -> None:
        while not self._over.wait(EVERY_S):
            self.flush()
        self.flush(at_end=True)

    def _write(self, *, at_end: bool) -> None:
        overdue = self._overdue(at_end)
        rows = [*_taken(self._rows), *overdue]
        samples, notes = _taken(self._samples), _taken(self._notes)
        if not (rows or samples or notes):
            return
        content = encoded(frame_of(sorted(rows, key=lambda row: row["first_step"]), samples, notes))
        path = self._folder / NAME.format(self._number)
        # a removed folder is not created again
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            append_whole(number, content)
        finally:
            os.close(number)
        self._in_piece += len(content)
        self._in_all += len(content)
        if not at_end and self._in_piece >= self._most_bytes / PIECES:
            self._begin_piece()

    def _begin_piece(self) -> None:
        self._number, self._in_piece = self._number + 1, 0
        if self._in_all > self._most_bytes:
            (self._folder / NAME.format(self._number)).touch()  # the last piece is left alone
            helper = Helper()
            try:
                self._in_all = helper.call("distprof.recording.watch.thinning:thin", self._folder.absolute(),
                                           self._most_bytes * (PIECES - 1) // PIECES)
            finally:
                helper.close()


def _taken(queue: deque[Any]) -> list[Any]:
    """Returns and removes the contents, to which another thread may be adding."""
    return [queue.popleft() for _ in range(len(queue))]


def frame_of(rows: Sequence[Row], samples: Sequence[FoundSample], notes: Iterable[Note]) -> Frame:
    """Returns a frame with this content; groups and names of its samples are numbered within it."""
    groups: dict[str, tuple[int, list[int]]] = {}
    names: dict[str, int] = {}
    columns = StepRows(**{name: [row[name] for row in rows] for name in StepRows.__struct_fields__})
    numbered = [_numbered(one, groups, names) for one in samples]
    return Frame(rows=columns, samples=numbered, notes=list(notes),
                 groups=[(name, ranks) for name, (_, ranks) in groups.items()], names=list(names))


def _numbered(found: FoundSample, groups: dict[str, tuple[int, list[int]]], names: dict[str, int]) -> SampledStep:
    return msgspec.structs.replace(
        found.step,
        group=[groups.setdefault(name, (len(groups), ranks))[0] for name, ranks in found.groups],
        op=[names.setdefault(op, len(names)) for op in found.ops])
