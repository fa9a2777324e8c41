"""Single steps far longer than their neighbours: pauses, data stalls and hiccups, except those that distprof causes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.contract.watch import UNKNOWN, Note
from distprof.merge.watch.pieces import Columns, Piece

PHASES = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
CHUNK = 64
"""Rows that are examined together; the usual step is the median of the newest `CHUNK` rows, these included."""
LONG = 2.0
"""A long step takes more than this many times the usual step."""
FAR = 8.0
"""A long step exceeds the usual longest step of a row by more than this many robust standard deviations."""
RARE = 0.2
"""If more rows than this share (and one) contain a long step, the chunk is skipped: its long steps are not rare."""
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
        self.covered: dict[int, tuple[int, int]] = {}
        """By rank: its first step, and the step after its last one."""
        self._usual: dict[int, deque[Any]] = {}

    def add(self, rank: int, columns: Columns, notes: list[Note]) -> None:
        """Takes new rows and notes of a rank."""
        for note in notes:
            if note.kind in NAMED:
                self.noted[note.step] = note.kind
        size = len(columns["first_step"])
        for begin in range(0, size, CHUNK):
            self._chunk(rank, {name: values[begin:begin + CHUNK] for name, values in columns.items()})
        if size:
            last = int(columns["first_step"][-1] + columns["num_steps"][-1])
            self.covered[rank] = self.covered.get(rank, (int(columns["first_step"][0]), 0))[0], last
        while len(self.of) > KEPT:
            del self.of[min(self.of)]

    def _chunk(self, rank: int, columns: Columns) -> None:
        count = columns["num_steps"]
        phases = np.stack([np.where(columns[name] == UNKNOWN, 0, columns[name]) for name in PHASES], axis=1)
        rows = np.concatenate([columns["span_ns"][:, None], phases], axis=1) / count[:, None]
        rows = np.concatenate([rows, columns["longest_ns"][:, None]], axis=1)
        usual = self._usual.setdefault(rank, deque(maxlen=CHUNK))
        usual.extend(rows)
        middle = np.median(np.array(usual), axis=0)
        wide = 1.4826 * float(np.median(np.abs(np.array(usual)[:, 5] - middle[5])))
        least = max(LONG * middle[0], middle[5] + FAR * wide)
        long = np.flatnonzero(columns["longest_ns"] > least)
        if len(usual) < 8 or len(long) > 1 + RARE * len(count):
            return
        for row in long:
            excess = float(columns["longest_ns"][row] - middle[0])
            more = np.maximum(phases[row] - count[row] * middle[1:5], 0)
            more *= min(excess / max(more.sum(), 1e-9), 1)
            self.of.setdefault(int(columns["longest_step"][row]), {})[rank] = (
                excess, more, max(int(columns["gc_ns"][row]), 0))

    def note_near(self, step: int) -> str | None:
        """Returns the pause that the script announced at this step, the one before or the one after; None for none."""
        return next((self.noted[near] for near in (step, step - 1, step + 1) if near in self.noted), None)


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
