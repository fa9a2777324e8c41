"""What ranks do because of us: steps that a recording later in the job makes longer are no trouble of the job."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.contract.watch import Note
from distprof.merge.watch.pieces import Piece

BEGINS = ("window_asked", "window_began")
ENDS = ("window_ended", "window_missed")
WRITES_NS = 5_000_000_000
"""So long files may be written beside the script."""
LONGEST_NS = 120_000_000_000
"""A recording whose end is not known has ended by then."""


@dataclass(slots=True, kw_only=True)
class OwnWork:
    """Times of a rank, by its clock, in which it prepares a recording, records and writes."""

    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(self, notes: list[Note]) -> None:
        """Notes of the rank, in their order."""
        for note in notes:
            if note.kind in BEGINS and not (self.spans and note.time_ns < self.spans[-1][1]):
                self.spans.append((note.time_ns, note.time_ns + LONGEST_NS))
            elif note.kind in ENDS and self.spans:
                self.spans[-1] = self.spans[-1][0], note.time_ns + WRITES_NS

    def without(self, piece: Piece) -> Piece:
        """The piece without rows and samples that lie in these times."""
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
