"""What is drawn of communication, by rank: rows with their threads, and the ends of arrows, a few ranks at a time."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl

from distprof.merge.chrome.drawing.drawn import PROCESS
from distprof.merge.chrome.drawing.rank_drawing import NO_ENDS, Row
from distprof.merge.spill import Parts

KEY = ("group", "group_description")
ORDER = ("rank", "arrival_ns", "collective", "row")
"""Of the rows in a part."""


class RankRows:
    """Rows of ranks in parts, of which one is held: ranks are written one after the other."""

    def __init__(self, rows: Parts, ends: Parts, part_of: Callable[[int], int]) -> None:
        """Holds nothing yet.

        Args:
            rows: As `shown_rows` gives them.
            ends: Of arrows, as `arrows_between` gives them.
            part_of: The part of a rank in both.
        """
        self._rows, self._ends, self._part_of = rows, ends, part_of
        self._held: tuple[int, dict[int, pl.DataFrame], dict[int, pl.DataFrame]] | None = None

    def settle(self, note: Callable[[pl.DataFrame], None]) -> int:
        """Gives rows their threads, when all are there.

        Args:
            note: Gets the rows of each rank, by arrival.

        Returns:
            Threads of the rank that has most.
        """
        most = 0
        for part in self._rows.numbers:
            threaded = []
            for mine in self._rows.take(part).sort(ORDER).partition_by("rank", maintain_order=True):
                note(mine)
                threaded.append(with_threads(mine))
                most = max(most, threaded[-1].select("title", "lane").n_unique())
            self._rows.add(pl.concat(threaded), part)
        return most

    def of_rank(self, rank: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """`rows` and `ends` of a `RankDrawing`."""
        part = self._part_of(rank)
        if self._held is None or self._held[0] != part:
            self._held = None  # before the next is read
            self._held = part, _by_rank(self._rows.read(part)), _by_rank(self._ends.read(part))
        rows, ends = (side.get(rank) for side in self._held[1:])
        if rows is None:
            return pl.DataFrame(schema=dict.fromkeys(Row._fields, pl.Null)), NO_ENDS
        return self._as_texts(rows), NO_ENDS if ends is None else _in_place(ends, rows)

    @staticmethod
    def _as_texts(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(pl.col(pl.Categorical).cast(pl.String)).select(Row._fields)


def _in_place(ends: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    places = rows.select("row").with_row_index("place")
    return ends.join(places, on="row", how="inner").select(NO_ENDS.columns).sort("place", "number")


def _by_rank(rows: pl.DataFrame) -> dict[int, pl.DataFrame]:
    return {} if rows.is_empty() else {
        int(key[0]): mine for key, mine in rows.partition_by("rank", as_dict=True, maintain_order=True).items()}


def with_threads(mine: pl.DataFrame) -> pl.DataFrame:
    """The rows of a rank, by arrival, with `title` and `lane` of the thread that each is drawn on."""
    keys = mine.select(KEY).unique(maintain_order=True)
    titles = list(_titles(list(keys.iter_rows())))
    named = keys.with_columns(title=pl.Series(titles, dtype=pl.String), number=pl.int_range(pl.len()))
    found = mine.join(named, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    starts, ends = (found[name].to_numpy() for name in ("arrival_ns", "left_ns"))
    ends = np.maximum(ends, starts + 1)  # what begins when another ends stands behind it
    lanes = list(_lanes(found["number"].to_list(), starts.tolist(), ends.tolist()))
    return found.drop("number").with_columns(lane=pl.Series(lanes, dtype=pl.Int64))


def _titles(keys: Sequence[tuple[str | None, str | None]]) -> Iterator[str]:
    """Names of threads, one for each group of a rank."""
    names: dict[str, set[str | None]] = defaultdict(set)
    for group, description in keys:
        names[_described(group, description)].add(group)
    for group, description in keys:
        title = _described(group, description)
        yield " ".join(filter(None, (PROCESS, title, "" if len(names[title]) == 1 else group)))


def _described(group: str | None, description: str | None) -> str:
    return description if description and description != "undefined" else group or ""


def _lanes(titles: list[int], starts: list[int], ends: list[int]) -> Iterator[int]:
    """0, or the number of the thread beside that of the group where something else is there already."""
    lanes: dict[int, list[tuple[int, int]]] = defaultdict(list)  # end and number of each
    for title, start, end in zip(titles, starts, ends, strict=True):
        free = lanes[title]
        number = heapq.heappop(free)[1] if free and free[0][0] <= start else len(free)
        heapq.heappush(free, (end, number))
        yield number

