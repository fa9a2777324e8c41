"""Reduces a whole job to few points in time, each with its shortest, median and longest step: no spike is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distprof.arrays import Floats, Integers
from distprof.contract.watch import UNKNOWN, Note
from distprof.merge.watch.pieces import Columns, RankReader, old_columns

MOST = 2000
"""Target number of points of a job; there are a few more where rows are missing."""
PHASES = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
SERIES = ("step_ns", "longest_ns", *PHASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The stretches into which a job is divided, the same for all ranks; arrays have one value per point."""

    first_step: Integers
    last_step: Integers
    begin_ns: Integers
    """Start of each point, in ns since `origin_ns`, by the clock of one rank."""
    end_ns: Integers
    origin_ns: int
    """Start of the first point, in ns since the epoch."""
    rows: int
    """Largest number of rows of one rank that share a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine:
    """Step times of a rank at all points, in ns per step; nan where it recorded nothing."""

    rank: int
    low_ns: Floats
    """Smallest row mean of each point."""
    of: dict[str, Floats]
    """By the names in `SERIES`: the median row of each point; for `longest_ns`, the longest step."""
    notes: list[Note] = field(default_factory=list)


def rows_of(folder: Path) -> tuple[Columns, list[Note]]:
    """Returns the rows that a rank recorded outside of the passes, possibly none, and its notes; also of older runs."""
    piece = RankReader(folder).new()
    if len(piece.columns["first_step"]):
        return piece.columns, piece.notes
    return old_columns(folder) or piece.columns, piece.notes


def points(columns: Columns, most: int = MOST) -> Points:
    """Divides a job into points with equal numbers of rows of one rank, and wherever its rows are missing.

    Args:
        columns: Rows of that rank, at least one.
        most: Approximate number of points.
    """
    first, ends = columns["first_step"], columns["first_step"] + columns["num_steps"]
    size = -(-len(first) // most)
    gaps = np.flatnonzero(first[1:] != ends[:-1]) + 1
    begins = np.union1d(np.arange(0, len(first), size), gaps[:most])
    lasts = np.append(begins[1:], len(first)) - 1
    origin = int(columns["end_ns"][0] - columns["span_ns"][0])
    return Points(first_step=first[begins], last_step=ends[lasts] - 1, origin_ns=origin, rows=size,
                  begin_ns=columns["end_ns"][begins] - columns["span_ns"][begins] - origin,
                  end_ns=columns["end_ns"][lasts] - origin)


def rank_line(rank: int, folder: Path, at: Points) -> RankLine:
    """Reads the rows of a rank and reduces them to points."""
    columns, notes = rows_of(folder)
    return reduced(rank, columns, at, [one for one in notes if one.kind != "thinned"])


def reduced(rank: int, columns: Columns, at: Points, notes: list[Note] | None = None) -> RankLine:
    """Reduces rows to points. A row that spans several points counts in all of them, its longest step in one."""
    first, number = columns["first_step"], np.maximum(columns["num_steps"], 1)
    place = np.searchsorted(at.first_step, first, side="right") - 1
    begins, ends = np.searchsorted(place, np.arange(len(at.first_step))), np.searchsorted(
        place, np.arange(len(at.first_step)), side="right")
    covers = _covering(first, first + number, at.first_step)
    found = {}
    for name in ("span_ns", *PHASES):
        each = np.where(columns[name] == UNKNOWN, np.nan, columns[name] / number)
        found[name] = _spread(each, place, begins, ends, covers)
    low, median, high = found.pop("span_ns")
    of = {"step_ns": median, "longest_ns": _longest(columns, at, high), **{name: one[1] for name, one in found.items()}}
    return RankLine(rank=rank, low_ns=low, of=of, notes=notes or [])


def _covering(first: Integers, ends: Integers, steps: Integers) -> Integers:
    """Returns the index of the row that contains each of these steps, or -1."""
    row = np.searchsorted(first, steps, side="right") - 1
    return np.where((row >= 0) & (len(ends) > 0) & (steps < np.append(ends, 0)[row]), row, -1)


def _spread(each: Floats, place: Integers, begins: Integers, ends: Integers,
            covers: Integers) -> tuple[Floats, Floats, Floats]:
    """Returns the smallest, median and largest row of each point; where no row begins, the row that covers it."""
    if not len(each):
        nothing = np.full(len(begins), np.nan)
        return nothing, nothing, nothing
    ordered = each[np.lexsort((each, place))]  # nan goes to the end of its point
    known = np.append(0, np.cumsum(~np.isnan(each[np.argsort(place, kind="stable")])))
    count = known[ends] - known[begins]
    covered = np.where(covers >= 0, each[covers], np.nan)
    last = len(each) - 1
    low, middle, high = (np.where(count > 0, ordered[np.clip(begins + offset, 0, last)], covered)
                         for offset in (0, (count - 1) // 2, count - 1))
    return low, middle, high


def _longest(columns: Columns, at: Points, high: Floats) -> Floats:
    """Returns the longest step of each point; where that is unknown, the largest row mean."""
    longest = np.where(np.isnan(high), -np.inf, high)
    known = columns["longest_ns"] != UNKNOWN
    where = np.searchsorted(at.first_step, columns["longest_step"][known], side="right") - 1
    np.maximum.at(longest, np.maximum(where, 0), columns["longest_ns"][known])
    return np.where(np.isinf(longest), np.nan, longest)
