"""The pattern in which optimizers step: how many of their steps make one iteration of the training loop.

A turn is one step of an optimizer, identified by the optimizer's number. Everything here is a function of the turns,
which are the same on all ranks of a job: so the ranks agree without communicating.

`TurnLog` holds the turns, with their times, from before it was known what ends a step.

`StepEvery` is the value of `--step-every`, which replaces the pattern: a class of optimizers whose steps end steps, or
a number of optimizer steps.
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
"""Number of turns after which optimizers that step in no pattern are no longer examined."""
MOST_FOR_SILENT = 12
"""Number of turns after which an optimizer that has not stepped is no longer waited for."""
REPEATS = 2
"""Number of iterations that must be equal, if they begin with the first turn."""
REPEATS_LATER = 3
"""Number of iterations that must be equal, if other turns came before them."""


def iteration_at_end(turns: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the turns of one iteration, which has every optimizer; None unless the last turn clearly ended one."""
    for size in range(1, len(turns) // REPEATS + 1):
        last = tuple(turns[len(turns) - size:])
        if len(set(last)) < len(set(turns)):
            continue
        repeats = repeats_at_end(turns, last)
        from_the_start = repeats * size == len(turns)
        if from_the_start or (repeats >= REPEATS_LATER and _is_end(last)):
            return last
        if repeats >= REPEATS_LATER:
            return None  # the pattern is clear, but the iteration is not over
    return None


def repeats_at_end(turns: Sequence[int], last: tuple[int, ...]) -> int:
    """Returns how many times in a row the last turns occurred, at least 1."""
    size, number = len(last), 1
    while tuple(turns[len(turns) - (number + 1) * size:len(turns) - number * size]) == last:
        number += 1
    return number


def _is_end(last: tuple[int, ...]) -> bool:
    """True if this may end an iteration: with the run of the highest number, as numbers follow the first steps."""
    return last[-1] == max(last) and (len(set(last)) == 1 or last[0] != last[-1])


def most_frequent(turns: Sequence[int]) -> int:
    """Returns the optimizer that steps most often; among several, the one with the highest number."""
    counts = Counter(turns)
    return max(counts, key=lambda number: (counts[number], number))


class PatternFollower:
    """Position of the job in the pattern. A missing turn does not shift those that follow."""

    def __init__(self, iteration: Sequence[int]) -> None:
        self.iteration = tuple(iteration)
        self._next = 0
        self.left = False
        """True once turns came in another order."""

    def ends(self, number: int) -> bool:
        """Returns whether this turn ends an iteration."""
        size = len(self.iteration)
        if self.iteration[self._next] == number:  # the usual case
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
    """A step that ended before it was known what ends a step."""

    start_ns: int
    """Start in ns since the epoch."""
    duration_ns: int


class TurnLog:
    """Which optimizer stepped, and when."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._marks: list[tuple[int, int]] = [_now()]
        """The start of the first turn, then the end of each turn: in ns since the epoch, and by a clock that is never
        set."""

    def begin(self) -> None:
        """Moves the start of the first turn to now."""
        self.numbers, self._marks = [], [_now()]

    def start_over(self) -> None:
        """Drops all turns: the next one is the first."""
        self.numbers, self._marks = [], self._marks[-1:]

    def add(self, number: int) -> None:
        """Ends a turn."""
        self.numbers.append(number)
        self._marks.append(_now())

    def iterations(self, iteration: tuple[int, ...], *, by_end: bool = False) -> list[Waited]:
        """Returns the consecutive iterations at the end of the log.

        Args:
            iteration: The turns of one iteration.
            by_end: Returns all iterations that ended with the iteration's last turn, whatever the other turns were.
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
    """The parsed `--step-every`; exactly one of `turns` and `class_name` is set."""

    text: str
    """As the user gave it."""
    turns: int | None = None
    class_name: str | None = None

    @classmethod
    def parse(cls, given: str | int, *, where: str = "--step-every") -> Self:
        """Parses `Adam` or `6`.

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
        """Parses DISTPROF_STEP_EVERY; None if it is not set.

        Raises:
            UsageError: It is neither a class nor a number.
        """
        text = environ.get(VARIABLE, "")
        return cls.parse(text, where=VARIABLE) if text else None

    def ends(self, turn: int, class_names: Collection[str]) -> bool:
        """Returns whether a step ends with this optimizer step.

        Args:
            turn: Its number, from 1.
            class_names: Class of the optimizer, or classes of all that stepped during backward.
        """
        return not turn % self.turns if self.turns is not None else self.class_name in class_names
