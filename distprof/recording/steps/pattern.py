"""The pattern in which optimizers step: how many of their steps make one iteration of the training loop.

A turn is one step of an optimizer, by the number of the optimizer. All of this is a function of the turns alone, which
are the same on all ranks of a job: so the ranks agree without talking to each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
