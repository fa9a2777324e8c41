"""The pattern in which optimizers step: how many of their steps make one iteration of the training loop.

A turn is one step of an optimizer, by the number of the optimizer. All of this is a function of the turns alone, which
are the same on all ranks of a job: so the ranks agree without talking to each other.

Turns of optimizers that were seen before it was known what ends a step, with the time of each.

What `--step-every` says instead: a class of optimizers whose steps end steps, or a number of optimizer steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from distprof.errors import UsageError
from distprof.own import time

MOST_TURNS = 64
"""Turns after which optimizers that step in no pattern are no longer looked at."""
MOST_FOR_SILENT = 12
"""Turns after which an optimizer that has not stepped is no longer waited for."""
REPEATS = 2
"""Iterations that must be equal, from the first turn on."""
REPEATS_LATER = 3
"""The same where what came before them was different."""


def iteration_at_end(turns: Sequence[int]) -> tuple[int, ...] | None:
    """The turns of one iteration, if the last turn ended one and the pattern is clear; every optimizer is in it."""
    for size in range(1, len(turns) // REPEATS + 1):
        last = tuple(turns[len(turns) - size:])
        if len(set(last)) < len(set(turns)):
            continue
        repeats = repeats_at_end(turns, last)
        from_the_start = repeats * size == len(turns)
        if from_the_start or (repeats >= REPEATS_LATER and _is_end(last)):
            return last
        if repeats >= REPEATS_LATER:
            return None  # the pattern is clear, but its iteration is not over
    return None


def repeats_at_end(turns: Sequence[int], last: tuple[int, ...]) -> int:
    """How often the last turns came in a row, once or more."""
    size, number = len(last), 1
    while tuple(turns[len(turns) - (number + 1) * size:len(turns) - number * size]) == last:
        number += 1
    return number


def _is_end(last: tuple[int, ...]) -> bool:
    """Optimizers are numbered as they stepped first: an iteration ends with the run of the highest number."""
    return last[-1] == max(last) and (len(set(last)) == 1 or last[0] != last[-1])


def most_frequent(turns: Sequence[int]) -> int:
    """The optimizer that steps most often; of several the one that came last."""
    counts = Counter(turns)
    return max(counts, key=lambda number: (counts[number], number))


class PatternFollower:
    """Where in the pattern the job is. A turn that is left out does not shift what follows."""

    def __init__(self, iteration: Sequence[int]) -> None:
        self.iteration = tuple(iteration)
        self._next = 0
        self.left = False
        """True once turns came in another order."""

    def ends(self, number: int) -> bool:
        """True if this turn ends an iteration."""
        size = len(self.iteration)
        if self.iteration[self._next] == number:  # as a rule
            self._next = (self._next + 1) % size
            return not self._next
        ahead = next((ahead for ahead in range(size) if self.iteration[(self._next + ahead) % size] == number), None)
        self.left = True
        if ahead is None:
            return False
        place = (self._next + ahead) % size
        self._next = (place + 1) % size
        return place == size - 1


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
        """Ends of these turns, since the epoch and by a clock that is never set; in front the start of the first."""

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


VARIABLE = "DISTPROF_STEP_EVERY"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvery:
    """One of the two."""

    text: str
    """As it was given."""
    turns: int | None = None
    class_name: str | None = None

    @classmethod
    def parse(cls, given: str | int, *, where: str = "--step-every") -> Self:
        """Reads `Adam` or `6`.

        Raises:
            UsageError: It is neither.
        """
        text = str(given).strip()
        if text.isdecimal() and int(text) > 0:
            return cls(text=text, turns=int(text))
        if not text.isidentifier():
            raise UsageError(f"{where} takes an optimizer class or a number of optimizer steps above 0, not "
                             f"{str(given)!r}", hint=f"{where} Adam, or {where} 6")
        return cls(text=text, class_name=text)

    @classmethod
    def requested(cls, environ: Mapping[str, str]) -> Self | None:
        """What DISTPROF_STEP_EVERY says; None where it is not set.

        Raises:
            UsageError: It is neither a class nor a number.
        """
        text = environ.get(VARIABLE, "")
        return cls.parse(text, where=VARIABLE) if text else None

    def ends(self, turn: int, class_names: Collection[str]) -> bool:
        """True if a step ends with this optimizer step.

        Args:
            turn: Its number, from 1.
            class_names: The optimizer's class; classes of those that stepped while backward ran.
        """
        return not turn % self.turns if self.turns is not None else self.class_name in class_names
