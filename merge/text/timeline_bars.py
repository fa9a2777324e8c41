"""Collectives drawn as characters, one row per rank, with a ruler of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from distprof.contract.ops import ROWS
from distprof.units import duration

LETTERS = {op.name: op.letter for op in ROWS}
OTHER = "#"
"""Letter of an op that has none."""
IDLE, ARRIVAL, WAITING, INSIDE, NO_END = ".", ">", "~", "=", "?"
MEANING = {
    ARRIVAL: "arrival", WAITING: "waiting for another rank", INSIDE: "in it, waiting or moving",
    NO_END: "end not known",
}
STYLES = {IDLE: "dim", ARRIVAL: "bold", WAITING: "yellow", INSIDE: "cyan", NO_END: "red"}
"""Of letters that are not here: green."""
TICK_COLUMNS = 12
"""Least distance of two ticks of a ruler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Time from left to right."""

    start_ns: int
    end_ns: int
    width: int

    def cell(self, at_ns: int) -> int:
        """The column of an instant."""
        place = (at_ns - self.start_ns) * self.width // max(self.end_ns - self.start_ns, 1)
        return min(max(int(place), 0), self.width - 1)

    def ruler(self) -> str:
        """Ticks with the time since the start: `|0        |5 ms     |10 ms`."""
        step = self._tick_ns()
        line = ""
        for at_ns in range(0, max(self.end_ns - self.start_ns, 1), step):
            text = f"|{_since(at_ns)}"
            column = at_ns * self.width // max(self.end_ns - self.start_ns, 1)
            if column + len(text) <= self.width:
                line = line.ljust(column) + text
        return line

    def _tick_ns(self) -> int:
        least = max(self.end_ns - self.start_ns, 1) * TICK_COLUMNS / self.width
        power = 1
        while True:
            for factor in (1, 2, 5):
                if factor * power >= least:
                    return factor * power
            power *= 10


def _since(ns: int) -> str:
    number, _, unit = duration(ns).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}" if ns else "0"


def time_axis(rows: pl.DataFrame, width: int) -> Axis | None:
    """From the first arrival to the last end; None where no arrival is known."""
    start, end = rows["arrival_ns"].min(), rows.select(pl.max_horizontal("arrival_ns", "end_ns").max()).item()
    if not isinstance(start, int):
        return None
    return Axis(start_ns=start, end_ns=max(end, start + 1), width=width)


def bars(rows: pl.DataFrame, ranks: Sequence[int], axis: Axis, *, arrivals: bool) -> dict[int, str]:
    """A row of characters per rank.

    Args:
        rows: `MERGED_COLLECTIVES`, of what is drawn.
        ranks: Whose rows are wanted.
        axis: Time of each column.
        arrivals: Mark where a rank came.
    """
    cells = {rank: [IDLE] * axis.width for rank in ranks}
    known = rows.filter(pl.col("arrival_ns").is_not_null(), pl.col("rank").is_in(list(cells))).sort("arrival_ns")
    moments = known.select("rank", "op", "arrival_ns", "wait_ns", "end_ns").rows()
    # of several at once, moving is seen before waiting, and arriving before both
    for rank, _, arrival, wait, end in moments:
        if wait:
            _paint(cells[rank], axis, arrival, min(arrival + wait, end), WAITING)
    for rank, op, arrival, wait, end in moments:
        if end is None:
            _paint(cells[rank], axis, arrival, arrival, NO_END)
        elif wait is None and arrivals:
            _paint(cells[rank], axis, arrival, end, INSIDE)
        else:
            _paint(cells[rank], axis, arrival + (wait or 0), end, LETTERS.get(op, OTHER))
    if arrivals:
        for rank, _, arrival, _, end in moments:
            if end is not None and axis.cell(end) > axis.cell(arrival):
                _paint(cells[rank], axis, arrival, arrival, ARRIVAL)
    return {rank: "".join(line) for rank, line in cells.items()}


def _paint(cells: list[str], axis: Axis, start_ns: int, end_ns: int, letter: str) -> None:
    first, last = axis.cell(start_ns), axis.cell(end_ns)
    cells[first:last + 1] = letter * (last + 1 - first)


def legend(ops: Sequence[str], drawn: str) -> str:
    """What the characters mean, of those that are there."""
    letters: dict[str, list[str]] = {}
    for op in ops:
        letters.setdefault(LETTERS.get(op, OTHER), []).append(op)
    parts = [f"{letter} moving in {', '.join(names)}" for letter, names in letters.items() if letter in drawn]
    return ", ".join([f"{letter} {meaning}" for letter, meaning in MEANING.items() if letter in drawn] + parts)
