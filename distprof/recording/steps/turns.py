"""Turns of optimizers that were seen before it was known what ends a step, with the time of each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

from distprof.recording.steps.pattern import repeats_at_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """A step that was over before it was known what ends one."""

    start_ns: int
    """Since the epoch."""
    duration_ns: int


class TurnLog:
    """Which optimizer stepped, and when."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._marks: list[tuple[int, int]] = [_now()]
        """Ends of these turns, since the epoch and by a clock that is never set; in front the begin of the first."""

    def begin(self) -> None:
        """The first turn begins only now."""
        self.numbers, self._marks = [], [_now()]

    def start_over(self) -> None:
        """The next turn is the first."""
        self.numbers, self._marks = [], self._marks[-1:]

    def add(self, number: int) -> None:
        """A turn is over."""
        self.numbers.append(number)
        self._marks.append(_now())

    def iterations(self, iteration: tuple[int, ...], *, by_end: bool = False) -> list[Waited]:
        """The iterations at the end of the log, in a row.

        Args:
            iteration: Turns of each.
            by_end: All iterations that ended with its last turn, whatever the others were.
        """
        if by_end:
            ends = [0, *(index + 1 for index, turn in enumerate(self.numbers) if turn == iteration[-1])]
        else:
            size, repeats = len(iteration), repeats_at_end(self.numbers, iteration)
            ends = [len(self.numbers) - size * before for before in range(repeats, -1, -1)]
        marks = [self._marks[index] for index in ends]
        return [Waited(start_ns=begin[0], duration_ns=end[1] - begin[1]) for begin, end in pairwise(marks)]


def _now() -> tuple[int, int]:
    return time.time_ns(), time.perf_counter_ns()
