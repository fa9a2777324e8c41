"""Draws the communication of a job: who stands on which thread, arrows from late ranks to those that waited, counters.

A job of a thousand ranks has a million collectives, so that what concerns all ranks is computed on columns, and what is
drawn of a rank is put together when that rank is written.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from distprof.merge.chrome.drawing.arrows import Arrows, arrows_between
from distprof.merge.chrome.drawing.counters import JobCounter, in_flight, waiting
from distprof.merge.chrome.drawing.drawn import PROCESS, DrawnCollective
from distprof.merge.chrome.drawing.rank_drawing import RankDrawing, Row
from distprof.merge.clock.model import Clock
from distprof.merge.layout.windows import Windows
from distprof.merge.run.group_ranks import COLUMN
from distprof.units import spans

KEY = ("rank", "group", "group_description")
TEXTS = tuple(name for name in Row._fields if name not in ("title", "lane"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawOptions:
    """What of a rank is drawn."""

    windows_ns: Windows | None = None
    """On the common clock; None: all."""
    min_duration_ns: int = 0
    step_ns: Mapping[int, int] = field(default_factory=dict)
    """How long each step took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What is drawn of a job."""

    rows: pl.DataFrame
    """`MERGED_COLLECTIVES`."""
    shown: pl.DataFrame
    """`row`, the place in `rows`, `rank`, and of the thread `title`, a place in `titles`, and `lane`; by rank."""
    titles: Sequence[str]
    arrows: Arrows
    """Their ends are places in `shown`."""
    wanted: Mapping[int, DrawOptions]
    group_ranks: pl.DataFrame
    """As they are shown, by what they are in `rows`."""
    counters: Sequence[JobCounter]
    places: Mapping[int, slice]
    """Rank -> its rows in `shown`."""
    chains: Mapping[int, Sequence[DrawnCollective]] = field(default_factory=dict)
    """Pieces of the longest chains, by rank."""

    @property
    def most_threads(self) -> int:
        """Threads that this takes on the rank where it takes most."""
        threads = Counter(self.shown.select("rank", "title", "lane").unique()["rank"])
        return max((threads[rank] + bool(self.chains.get(rank)) for rank in self.wanted), default=0)

    def of_rank(self, rank: int) -> RankDrawing:
        """What is drawn of a rank."""
        place = self.places.get(rank, slice(0, 0))
        mine = self.shown[place]
        coded = self.rows[mine["row"]].join(
            self.group_ranks, on=COLUMN, how="left", nulls_equal=True, maintain_order="left")
        rows = coded.drop(COLUMN).rename({"shown_ranks": COLUMN}).with_columns(
            pl.col(pl.Categorical).cast(pl.String), mine["lane"],
            title=pl.Series([self.titles[number] for number in mine["title"].to_list()], dtype=pl.String))
        return RankDrawing(rows=rows.select(Row._fields), arrows=list(self.arrows.of(place.start, place.stop)),
                               min_duration_ns=self.wanted[rank].min_duration_ns, more=self.chains.get(rank, ()))


def draw_collectives(rows: pl.DataFrame, clock: Clock, wanted: Mapping[int, DrawOptions], origin_ns: int) -> Drawing:
    """Draws collectives.

    Args:
        rows: `MERGED_COLLECTIVES`, its texts and lists of ranks as categories.
        clock: Of the run.
        wanted: By rank; others are not drawn.
        origin_ns: The instant that becomes 0: no arrow lies before it.
    """
    rows = rows.select("rank", *TEXTS)
    shown = _shown(rows, wanted)
    places = _places(shown)
    titles, title = _titles(shown)
    lane = _lanes(title, shown, places.values())
    steps = {rank: options.step_ns for rank, options in wanted.items()}
    return Drawing(
        rows=rows, shown=shown.select("row", "rank", pl.Series("title", title), pl.Series("lane", lane)), titles=titles,
        wanted=wanted, arrows=arrows_between(shown, clock, steps, origin_ns), group_ranks=_shown_ranks(rows[COLUMN]),
        counters=list(_counters(shown, places.values())), places=places)


def _shown(rows: pl.DataFrame, wanted: Mapping[int, DrawOptions]) -> pl.DataFrame:
    """Rows that are drawn, by rank and arrival: `row`, the place in `rows`, and what threads, arrows and counters take.

    `left_ns` is the end, or the arrival where that is not known. `come_ns`, when all were there, is null where it or
    the end is not known.
    """
    left = pl.max_horizontal("arrival_ns", "end_ns")  # of the values that are there
    found = rows.lazy().with_row_index("row").filter(
        pl.col("arrival_ns").is_not_null(), pl.col("rank").is_in(list(wanted))).select(
        "row", *KEY, "collective", "step", "arrival_ns", "end_ns", "late_rank", "size_bytes", left.alias("left_ns"),
        is_received=pl.col("op") == "recv", is_unsure=pl.col("unsure").fill_null(value=False),
        come_ns=pl.when(pl.col("end_ns").is_not_null()).then(pl.col("arrival_ns") + pl.col("wait_ns")),
    ).sort("rank", "arrival_ns", "collective", "row").collect()
    starts, ends = (found[name].to_numpy() for name in ("arrival_ns", "left_ns"))
    stays = np.ones(len(found), bool)
    for rank, mine in _places(found).items():
        options = wanted[rank]
        stays[mine] = ends[mine] - starts[mine] >= options.min_duration_ns
        if options.windows_ns is not None:
            stays[mine] &= options.windows_ns.meets(starts[mine], ends[mine])
    return found if stays.all() else found.filter(pl.Series(stays))


def _places(shown: pl.DataFrame) -> dict[int, slice]:
    """The rows of each rank, which stand together."""
    ranks, firsts = np.unique(shown["rank"].to_numpy(), return_index=True)
    ends = [*firsts.tolist(), len(shown)][1:]
    return {rank: slice(first, end) for rank, first, end in zip(ranks.tolist(), firsts.tolist(), ends, strict=True)}


def _titles(shown: pl.DataFrame) -> tuple[list[str], Any]:
    """Names of threads, one for each group of a rank; and which each row has."""
    keys = shown.select(KEY).unique(maintain_order=True)
    names: dict[tuple[int, str], set[str | None]] = defaultdict(set)
    for rank, group, description in keys.iter_rows():
        names[rank, _described(group, description)].add(group)
    titles = dict[str, int]()
    numbers = []
    for rank, group, description in keys.iter_rows():
        title = _described(group, description)
        is_one = len(names[rank, title]) == 1
        whole = " ".join(filter(None, (PROCESS, title, "" if is_one else group)))
        numbers.append(titles.setdefault(whole, len(titles)))
    numbered = keys.with_columns(title=pl.Series(numbers, dtype=pl.Int32))
    found = shown.select(KEY).join(numbered, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    return list(titles), found["title"].to_numpy()


def _described(group: str | None, description: str | None) -> str:
    return description if description and description != "undefined" else group or ""


def _lanes(titles: Any, shown: pl.DataFrame, places: Iterable[slice]) -> Any:
    """int32 a row: 0, or the number of the thread beside that of the group where something else is there already."""
    starts, ends = (shown[name].to_numpy() for name in ("arrival_ns", "left_ns"))
    ends = np.maximum(ends, starts + 1)  # what begins when another ends stands behind it
    found = np.zeros(len(shown), np.int32)
    for mine in places:
        found[mine] = list(_lanes_of_rank(titles[mine].tolist(), starts[mine].tolist(), ends[mine].tolist()))
    return found


def _lanes_of_rank(titles: list[int], starts: list[int], ends: list[int]) -> Iterator[int]:
    lanes: dict[int, list[tuple[int, int]]] = defaultdict(list)  # end and number of each
    for title, start, end in zip(titles, starts, ends, strict=True):
        free = lanes[title]
        number = heapq.heappop(free)[1] if free and free[0][0] <= start else len(free)
        heapq.heappush(free, (end, number))
        yield number


def _counters(shown: pl.DataFrame, places: Iterable[slice]) -> Iterator[JobCounter]:
    """How many ranks wait, and the bytes of those that move theirs; where waiting is not known, that are in it."""
    starts, come = (column.to_numpy() for column in shown.select(
        "arrival_ns", pl.coalesce("come_ns", "arrival_ns")).get_columns())  # what takes no time is left out
    yield waiting((starts[mine], come[mine]) for mine in places)
    moving = shown.filter(pl.col("size_bytes") != 0, pl.col("end_ns").is_not_null())
    yield in_flight(*(column.to_numpy() for column in moving.select(
        pl.coalesce("come_ns", "arrival_ns"), "end_ns", "size_bytes").get_columns()))


def _shown_ranks(groups: pl.Series) -> pl.DataFrame:
    """Ranks of groups as they are shown, `0-3`, once a group."""
    known = groups.unique()
    texts = [None if text is None else spans(sorted(map(int, text.split(",")))) for text in known.cast(pl.String)]
    return pl.DataFrame({COLUMN: known, "shown_ranks": pl.Series(texts, dtype=pl.String)})


