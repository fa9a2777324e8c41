"""Draws the communication of a job: threads of each rank, arrows from late ranks to those that waited, counters.

Jobs of a thousand ranks have a million collectives. These come in pieces. What concerns all ranks is computed on
columns of a piece, and what is drawn of a rank is put together when that rank is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from distprof.merge.chrome.drawing.arrows import arrows_between
from distprof.merge.chrome.drawing.counters import JobCounter, add_waits
from distprof.merge.chrome.drawing.drawn import DrawnCollective
from distprof.merge.chrome.drawing.rank_drawing import RankDrawing, Row
from distprof.merge.chrome.drawing.rank_rows import RankRows
from distprof.merge.clock.model import Clock
from distprof.merge.cost.collective_pieces import CollectivePieces
from distprof.merge.layout.windows import Windows
from distprof.merge.spill import Parts

TEXTS = tuple(name for name in Row._fields if name not in ("title", "lane"))
PART_ROWS = 1 << 16
"""Rows of ranks that are held at once while these are written."""


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

    rows: RankRows
    wanted: Mapping[int, DrawOptions]
    counters: Sequence[JobCounter]
    num_arrows: int
    num_threads: int
    """That communication takes on the rank where it takes most."""
    chains: Mapping[int, Sequence[DrawnCollective]] = field(default_factory=dict)
    """Pieces of the longest chains, by rank."""

    @property
    def most_threads(self) -> int:
        """Threads that this takes on a rank at most."""
        return self.num_threads + any(self.chains.get(rank) for rank in self.wanted)

    def of_rank(self, rank: int) -> RankDrawing:
        """What is drawn of a rank."""
        rows, ends = self.rows.of_rank(rank)
        return RankDrawing(rows=rows, ends=ends, min_duration_ns=self.wanted[rank].min_duration_ns,
                           more=self.chains.get(rank, ()))


def draw_collectives(pieces: CollectivePieces, clock: Clock, wanted: Mapping[int, DrawOptions],
                     origin_ns: int) -> Drawing:
    """Draws collectives.

    Args:
        pieces: All collectives.
        clock: Of the run.
        wanted: By rank; others are not drawn.
        origin_ns: The instant that becomes 0: no arrow lies before it.
    """
    steps = {rank: options.step_ns for rank, options in wanted.items()}
    places = _Places(pieces, wanted)
    num_arrows, num_rows = 0, 0
    for piece in pieces:
        shown = shown_rows(piece, wanted, num_rows)
        num_rows += len(piece)
        ends = arrows_between(shown, clock, steps, origin_ns, num_arrows)
        num_arrows += len(ends) // 2
        places.add(shown, ends)
    rows = RankRows(places.rows, places.ends, places.part_of)
    threads = rows.settle(places.note_waits)
    return Drawing(rows=rows, wanted=wanted, counters=(places.waiting, places.in_flight), num_arrows=num_arrows,
                   num_threads=threads)


def shown_rows(piece: pl.DataFrame, wanted: Mapping[int, DrawOptions], first_row: int) -> pl.DataFrame:
    """Rows that are drawn: `TEXTS`, `row`, their place among all, and what threads, arrows and counters take.

    `left_ns` is the end, or the arrival where that is not known. `come_ns`, when all were there, is null where it or
    the end is not known.
    """
    left = pl.max_horizontal("arrival_ns", "end_ns")  # of the values that are there
    found = piece.lazy().select("rank", *TEXTS).with_row_index("row", first_row).filter(
        pl.col("arrival_ns").is_not_null(), pl.col("rank").is_in(list(wanted))).with_columns(
        pl.col("row").cast(pl.Int64), left.alias("left_ns"), is_received=pl.col("op") == "recv",
        is_unsure=pl.col("unsure").fill_null(value=False),
        come_ns=pl.when(pl.col("end_ns").is_not_null()).then(pl.col("arrival_ns") + pl.col("wait_ns"))).collect()
    stays = np.ones(len(found), bool)
    starts, ends, ranks = (found[name].to_numpy() for name in ("arrival_ns", "left_ns", "rank"))
    for rank, options in wanted.items():
        if options.min_duration_ns or options.windows_ns is not None:
            mine = np.flatnonzero(ranks == rank)
            stays[mine] = ends[mine] - starts[mine] >= options.min_duration_ns
            if options.windows_ns is not None:
                stays[mine] &= options.windows_ns.meets(starts[mine], ends[mine])
    return found if stays.all() else found.filter(pl.Series(stays))


class _Places:
    """Where what is drawn goes: rows and arrows to the part of their rank, counters to that of their time."""

    def __init__(self, pieces: CollectivePieces, wanted: Mapping[int, DrawOptions]) -> None:
        """Holds nothing yet."""
        self._pieces = pieces
        self._index = {rank: index for index, rank in enumerate(sorted(wanted))}
        self._ranks_a_part = max(1, len(wanted) * PART_ROWS // max(1, pieces.num_rows))
        self.rows, self.ends = Parts(pieces.folder, "drawn"), Parts(pieces.folder, "arrows")
        self.waiting, self.in_flight = self._counter("ranks", "waiting"), self._counter("bytes", "in flight")

    def _counter(self, what: str, state: str) -> JobCounter:
        return JobCounter(what=what, state=state, edges=np.array(self._pieces.begins_ns, np.int64),
                          changes=Parts(self._pieces.folder, state.replace(" ", "-")))

    def part_of(self, rank: int) -> int:
        """Of rows and arrows."""
        return self._index[rank] // self._ranks_a_part

    def add(self, shown: pl.DataFrame, ends: pl.DataFrame) -> None:
        """Takes in the rows of a piece, and the ends of its arrows."""
        for parts, rows in ((self.rows, shown), (self.ends, ends)):
            index = rows["rank"].replace_strict(self._index, return_dtype=pl.Int64).to_numpy()
            parts.add(rows, index // self._ranks_a_part)
        moving = shown.filter(pl.col("size_bytes") != 0, pl.col("end_ns").is_not_null())
        self.in_flight.add_spans(*(column.to_numpy() for column in moving.select(
            pl.coalesce("come_ns", "arrival_ns"), "end_ns", "size_bytes").get_columns()))

    def note_waits(self, mine: pl.DataFrame) -> None:
        """Counts the waits of a rank; where waiting is not known, what takes no time is left out."""
        add_waits(self.waiting, *(column.to_numpy() for column in mine.select(
            "arrival_ns", pl.coalesce("come_ns", "arrival_ns")).get_columns()))
