"""Single steps far longer than their neighbours: pauses, data stalls and hiccups, except those that distprof causes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from distprof.arrays import Flags, Floats, Integers
from distprof.contract.watch import UNKNOWN, Note
from distprof.merge.watch.grid import medians
from distprof.merge.watch.pieces import Columns, Piece

PHASES = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
READ = ("num_steps", "span_ns", "longest_ns", "longest_step", "gc_ns", "device_ns", *PHASES)
DEVICE, LONGEST, WIDTH = 5, 6, 7
"""Columns of rows, after the span and the phases."""
CHUNK = 64
"""Rows of a rank that are examined together, however they arrive: the first ones, the next ones, and so on."""
GROUP = 8
"""Rows with the same usual step: the median of the `CHUNK` rows before them, or of as many as there are."""
LONG = 2.0
"""A long step takes more than this many times the usual step."""
FAR = 8.0
"""A long step exceeds the usual longest step of a row by more than this many robust standard deviations."""
RARE = 0.2
"""If more rows than this share (and one) contain a long step, the chunk is skipped: its long steps are not rare."""
MOST_IN_A_ROW = 4
"""If more rows in a row contain a long step, steps became longer. That may be so until a row without one follows."""
KEPT = 2048
"""Most long steps that are kept, the newest."""
NAMED = ("evaluation", "checkpoint")
"""Kinds of notes that announce a pause."""
BEGINS = ("window_asked", "window_began")
"""Kinds of notes with which a rank's work for a recording begins."""
ENDS = ("window_ended", "window_missed")
"""And ends, except for the writing of files."""
WRITES_NS = 5_000_000_000
"""Time after the end of a recording in which its files may still be written beside the script."""
LONGEST_NS = 120_000_000_000
"""A recording whose end was not noted is taken to have ended after this time."""


class LongSteps:
    """Long steps of the job, with what each rank recorded of them."""

    def __init__(self) -> None:
        """Starts without steps."""
        self.of: dict[int, dict[int, Any]] = {}
        """By step and rank: the excess over the usual step, its parts in each of `PHASES`, and the time in garbage
        collection, in ns."""
        self.noted: dict[int, str] = {}
        """By step: `evaluation` or `checkpoint`, as the script announced."""
        self._before: dict[int, tuple[Floats, Flags]] = {}
        """By rank: the newest `CHUNK` rows before those in `_open`, nan where there are fewer; and whether the newest
        `MOST_IN_A_ROW` of them contain a long step."""
        self._open: dict[int, Columns] = {}
        """By rank: rows of the last whole chunk and of the next one, which may show that long steps are not rare."""

    def add(self, rank: int, columns: Columns, notes: list[Note]) -> None:
        """Takes new rows and notes of a rank."""
        for note in notes:
            if note.kind in NAMED:
                self.noted[note.step] = note.kind
        if len(columns["first_step"]):
            self._examine(rank, self._reopened(rank, columns))
        while len(self.of) > KEPT:
            del self.of[min(self.of)]

    def _reopened(self, rank: int, columns: Columns) -> Columns:
        """Takes back what open rows of a rank showed, and returns them with new ones behind."""
        held = self._open.pop(rank, None)
        if held is None:
            return columns
        for step in self.of.keys() & set(held["longest_step"].tolist()):
            self.of[step].pop(rank, None)
            if not self.of[step]:
                del self.of[step]
        return {name: np.concatenate([values, columns[name]]) for name, values in held.items()}

    def _examine(self, rank: int, columns: Columns) -> None:
        """Finds the long steps in rows, the first of which begins a chunk."""
        count = columns["num_steps"]
        phases = np.stack([np.where(columns[name] == UNKNOWN, 0, columns[name]) for name in PHASES], axis=1)
        device = np.where(columns["device_ns"] == UNKNOWN, np.nan, columns["device_ns"])
        rows = np.column_stack([columns["span_ns"], phases, device]) / count[:, None]
        before, ended = self._before.get(rank, (np.full((CHUNK, WIDTH), np.nan), np.zeros(MOST_IN_A_ROW, np.bool_)))
        rows = np.concatenate([before, np.column_stack([rows, columns["longest_ns"]])])
        middle, least = _usual(rows)
        longest = _longest(columns, middle, rows[CHUNK - 1:, DEVICE])
        long = np.append(ended, longest > least)
        usual_gc_ns = float(np.median(columns["gc_ns"] / count)) if len(count) else 0.0
        for row in np.flatnonzero(_rare(long)).tolist():
            excess = float(longest[row] - middle[row, 0])
            more = np.maximum(phases[row] - count[row] * middle[row, 1:5], 0)
            more *= min(excess / max(more.sum(), 1e-9), 1)
            self.of.setdefault(int(columns["longest_step"][row]), {})[rank] = (
                excess, more, max(int(columns["gc_ns"][row] - count[row] * usual_gc_ns), 0))
        settled = max(len(count) // CHUNK - 1, 0) * CHUNK
        # copies, as a part would keep all rows in memory
        self._before[rank] = rows[settled:settled + CHUNK].copy(), long[settled:settled + MOST_IN_A_ROW].copy()
        self._open[rank] = {name: columns[name][settled:].copy() for name in READ}

    def note_near(self, step: int) -> str | None:
        """Returns the pause that the script announced at this step, the one before or the one after; None for none."""
        return next((self.noted[near] for near in (step, step - 1, step + 1) if near in self.noted), None)


def _longest(columns: Columns, middle: Floats, device: Floats) -> Any:
    """Returns the longest step of each row. If a device was not slower in the row than usual, or than in both rows
    beside it, then the host was only ahead of the device and waited for it, as with DDP in every 100th step.

    Args:
        columns: Of the rows.
        middle: Usual values of each row.
        device: Device time per step, of these rows and the one before them.
    """
    usual = np.fmax(middle[:, DEVICE], np.fmin(device[:-1], np.append(device[2:], np.nan)))
    lost = np.fmax((device[1:] - usual) * columns["num_steps"], 0)
    return np.fmin(columns["longest_ns"], middle[:, 0] + np.where(np.isnan(device[1:] + usual), np.inf, lost))


def _usual(rows: Floats) -> tuple[Any, Any]:
    """Returns the usual values of each row but the first `CHUNK`, shape (rows, WIDTH), and the least of a long step;
    nan where nothing is known of the rows before its group."""
    size = len(rows) - CHUNK
    before = sliding_window_view(rows, CHUNK, axis=0)[:size:GROUP].swapaxes(1, 2)
    middle = medians(before)
    wide = 1.4826 * medians(np.abs(before[:, :, LONGEST:] - middle[:, None, LONGEST:]))[:, 0]
    least = np.maximum(LONG * middle[:, 0], middle[:, LONGEST] + FAR * wide)
    return np.repeat(middle, GROUP, axis=0)[:size], np.repeat(least, GROUP)[:size]


def _rare(long: Flags) -> Any:
    """Returns which long steps are single ones, and rare; without those of the first `MOST_IN_A_ROW` rows."""
    single = long.copy()
    edges = np.flatnonzero(np.diff(long, prepend=False, append=False)).reshape(-1, 2)
    for begin, end in edges.tolist():
        if end - begin > MOST_IN_A_ROW or end == len(long):  # more may follow
            single[begin:end] = False
    single = single[MOST_IN_A_ROW:]
    begins = np.arange(0, len(single), CHUNK)
    sizes, number = np.diff(np.append(begins, len(single))), np.add.reduceat(single.astype(int), begins)
    return single & np.repeat(number <= 1 + RARE * sizes, sizes)


@dataclass(slots=True, kw_only=True)
class OwnWork:
    """Times in which a rank prepares a recording, records and writes files, by its clock in ns since the epoch."""

    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(self, notes: list[Note]) -> None:
        """Takes new notes of the rank, in order of time."""
        for note in notes:
            if note.kind in BEGINS and not (self.spans and note.time_ns < self.spans[-1][1]):
                self.spans.append((note.time_ns, note.time_ns + LONGEST_NS))
            elif note.kind in ENDS and self.spans:
                self.spans[-1] = self.spans[-1][0], note.time_ns + WRITES_NS

    def without(self, piece: Piece) -> Piece:
        """Returns the piece without the rows and samples that overlap these times."""
        if not self.spans:
            return piece
        ends, spans = piece.columns["end_ns"], piece.columns["span_ns"]
        kept = ~self._held(ends - spans, ends)
        samples = [one for one, held in zip(piece.samples, self._held(*self._times(piece)).tolist(), strict=True)
                   if not held]
        return Piece(columns={name: values[kept] for name, values in piece.columns.items()}, samples=samples,
                     notes=piece.notes)

    def _times(self, piece: Piece) -> tuple[Integers, Integers]:
        begins = np.array([one.step.start_ns for one in piece.samples], np.int64)
        return begins, begins + np.array([one.step.span_ns for one in piece.samples], np.int64)

    def _held(self, begins: Integers, ends: Integers) -> Flags:
        held = np.zeros(len(begins), np.bool_)
        for first, last in self.spans:
            held |= (ends > first) & (begins < last)
        return held
