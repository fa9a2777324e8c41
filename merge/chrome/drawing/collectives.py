"""Draws the communication of a job: threads of each rank, arrows from late ranks to those that waited, counters.

Jobs of a thousand ranks have a million collectives, which come in pieces. What concerns all ranks is computed on
columns of a piece, and the drawing of a rank is assembled when that rank is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.merge.activity.intervals import Intervals
from distprof.merge.chrome.drawing.drawn import CounterValue, DrawnCollective
from distprof.merge.chrome.drawing.rank_drawing import RankDrawing, RankRows, Row
from distprof.merge.clock.model import Clock
from distprof.merge.cost.measured_parts import CollectivePieces
from distprof.merge.layout.event_selection import Windows
from distprof.merge.spill import Parts

TEXTS = tuple(name for name in Row._fields if name not in ("title", "lane"))
PART_ROWS = 1 << 16
"""Rows of ranks that are held at once while these are written."""
SHORTEST_NS, LONG_NS, SHARE = 10_000, 100_000, 0.01
"""A wait gets an arrow if it is longer than the first, and at least as long as the second or this share of its step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawOptions:
    """What is drawn of a rank."""

    windows_ns: Windows | None = None
    """Time windows on the common clock; None: all."""
    min_duration_ns: int = 0
    step_ns: Mapping[int, int] = field(default_factory=dict)
    """Step -> its duration in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What is drawn of a job."""

    rows: RankRows
    wanted: Mapping[int, DrawOptions]
    counters: Sequence[JobCounter]
    num_arrows: int
    num_threads: int
    """Maximum number of threads that communication takes on a rank."""
    chains: Mapping[int, Sequence[DrawnCollective]] = field(default_factory=dict)
    """Rank -> pieces of critical paths."""

    @property
    def most_threads(self) -> int:
        """Maximum number of threads that the drawing takes on a rank."""
        return self.num_threads + max((len({one.thread for one in self.chains.get(rank, ())}) for rank in self.wanted),
                                      default=0)

    def of_rank(self, rank: int) -> RankDrawing:
        """Returns what is drawn of a rank."""
        rows, ends = self.rows.of_rank(rank)
        return RankDrawing(rows=rows, ends=ends, min_duration_ns=self.wanted[rank].min_duration_ns,
                           more=self.chains.get(rank, ()))


def draw_collectives(pieces: CollectivePieces, clock: Clock, wanted: Mapping[int, DrawOptions],
                     origin_ns: int) -> Drawing:
    """Draws collectives.

    Args:
        pieces: All collectives.
        clock: Clock of the run.
        wanted: Rank -> options; other ranks are not drawn.
        origin_ns: The time that becomes 0; no arrow starts before it.
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
    """Returns the rows that are drawn: `TEXTS`, `row`, their index among all, and what threads, arrows and counters
    need.

    `left_ns` is the end, or the arrival if the end is unknown. `come_ns`, when all ranks had arrived, is null if that
    or the end is unknown.
    """
    left = pl.max_horizontal("arrival_ns", "end_ns")  # ignores nulls
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
    """Assigns what is drawn to parts: rows and arrows by rank, counters by time."""

    def __init__(self, pieces: CollectivePieces, wanted: Mapping[int, DrawOptions]) -> None:
        """Starts empty."""
        self._pieces = pieces
        self._index = {rank: index for index, rank in enumerate(sorted(wanted))}
        self._ranks_a_part = max(1, len(wanted) * PART_ROWS // max(1, pieces.num_rows))
        self.rows, self.ends = Parts(pieces.folder, "drawn"), Parts(pieces.folder, "arrows")
        self.waiting, self.in_flight = self._counter("ranks", "waiting"), self._counter("bytes", "in flight")

    def _counter(self, what: str, state: str) -> JobCounter:
        return JobCounter(what=what, state=state, edges=np.array(self._pieces.begins_ns, np.int64),
                          changes=Parts(self._pieces.folder, state.replace(" ", "-")))

    def part_of(self, rank: int) -> int:
        """Returns the part of a rank's rows and arrows."""
        return self._index[rank] // self._ranks_a_part

    def add(self, shown: pl.DataFrame, ends: pl.DataFrame) -> None:
        """Adds the rows of a piece, and the ends of its arrows."""
        for parts, rows in ((self.rows, shown), (self.ends, ends)):
            index = rows["rank"].replace_strict(self._index, return_dtype=pl.Int64).to_numpy()
            parts.add(rows, index // self._ranks_a_part)
        moving = shown.filter(pl.col("size_bytes") != 0, pl.col("end_ns").is_not_null())
        self.in_flight.add_spans(*(column.to_numpy() for column in moving.select(
            pl.coalesce("come_ns", "arrival_ns"), "end_ns", "size_bytes").get_columns()))

    def note_waits(self, mine: pl.DataFrame) -> None:
        """Counts the waits of a rank; if waiting is unknown, it counts as taking no time."""
        add_waits(self.waiting, *(column.to_numpy() for column in mine.select(
            "arrival_ns", pl.coalesce("come_ns", "arrival_ns")).get_columns()))


def arrows_between(shown: pl.DataFrame, clock: Clock, steps: Mapping[int, Mapping[int, int]], origin_ns: int,
                   first_number: int) -> pl.DataFrame:
    """Returns both ends of all arrows between rows.

    Args:
        shown: Rows that are drawn, from `shown_rows`; collectives must be complete.
        clock: Clock of the run.
        steps: Rank -> step -> its duration in ns.
        origin_ns: No arrow starts before it.
        first_number: Number of the first arrow.

    Returns:
        A row per end: the `rank` and `row` that it belongs to, `number` (equal for both ends of an arrow, in the order
        of
        the rows that wait), `at_ns` on the common clock, and `is_start`.
    """
    places = np.arange(len(shown))
    sources = _last_to_come(shown)
    ranks, arrivals, left, come = (column.to_numpy() for column in shown.select(
        "rank", "arrival_ns", "left_ns", pl.coalesce("come_ns", "arrival_ns")).get_columns())
    waits = come - arrivals
    has = (sources >= 0) & ~shown["is_unsure"].to_numpy() & (ranks != ranks[sources]) & (waits > SHORTEST_NS)
    targets = places[has]
    enough = np.maximum(_worth_it(shown[targets], steps), _unsure(ranks[targets], ranks[sources[targets]], clock))
    targets = targets[waits[targets] >= enough]
    late = sources[targets]
    # viewers find the slices by time: both ends must lie within one, and the arrow must not point back in time
    starts = np.maximum(arrivals[late], come[targets]) + 1
    ends = starts + 1
    fits = (ends < left[targets]) & (starts < left[late]) & (starts >= origin_ns)
    return _numbered(shown, targets[fits], late[fits], starts[fits], first_number)


def _last_to_come(shown: pl.DataFrame) -> Any:
    """Returns per row (int64) the index of the last rank's row in its collective, -1 if that is not drawn."""
    is_last = ~shown["is_received"] & (shown["rank"] == shown["late_rank"]).fill_null(value=False)
    collectives = shown["collective"].to_numpy()
    collectives = collectives - collectives.min(initial=np.iinfo(np.int64).max)
    found = np.full(collectives.max(initial=-1) + 1, -1)
    places = np.flatnonzero(is_last.to_numpy())
    found[collectives[places]] = places
    return found[collectives]


def _worth_it(waiting: pl.DataFrame, steps: Mapping[int, Mapping[int, int]]) -> Integers:
    """Returns per row (int64) the shortest wait in ns that is shown."""
    keys = waiting.select("rank", "step").unique()
    limits = [LONG_NS if (took := steps[rank].get(step)) is None else min(LONG_NS, int(np.ceil(SHARE * took)))
              for rank, step in keys.iter_rows()]
    known = keys.with_columns(limit=pl.Series(limits, dtype=pl.Int64))
    return waiting.join(known, on=("rank", "step"), how="left", nulls_equal=True,
                        maintain_order="left")["limit"].to_numpy()


def _unsure(ranks: Integers, others: Integers, clock: Clock) -> Integers:
    """Returns per row (int64) how long a wait must be to exceed the uncertainty between the clocks of the two ranks."""
    pairs, which = np.unique(np.stack([np.minimum(ranks, others), np.maximum(ranks, others)]), axis=1,
                             return_inverse=True)
    limits = [clock.pair_uncertainty_ns(pair) for pair in pairs.T.tolist()]
    return np.array([np.iinfo(np.int64).max if limit is None else limit + 1 for limit in limits],
                    np.int64)[which.reshape(-1)]


def _numbered(shown: pl.DataFrame, targets: Integers, late: Integers, starts: Integers,
              first_number: int) -> pl.DataFrame:
    order = np.argsort(shown["row"].to_numpy()[targets])
    at = np.append(late[order], targets[order])
    number = len(targets)
    return pl.DataFrame({
        "rank": shown["rank"].to_numpy()[at], "row": shown["row"].to_numpy()[at],
        "number": first_number + np.tile(np.arange(number), 2), "at_ns": np.append(starts[order], starts[order] + 1),
        "is_start": np.repeat((True, False), number)})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounter:
    """A counter stored by its changes, of which a job of a thousand ranks has millions."""

    what: str
    state: str
    changes: Parts
    """`at_ns`, on the common clock, and `change`, in any order within a part; parts are ordered in time."""
    edges: Integers
    """int64, ascending: where the parts begin, except for the first."""

    def add(self, at_ns: Integers, changes: Integers) -> None:
        """Adds changes, int64."""
        self.changes.add(pl.DataFrame({"at_ns": at_ns, "change": changes}),
                         np.searchsorted(self.edges, at_ns, side="right"))

    def add_spans(self, starts: Integers, ends: Integers, amounts: Integers) -> None:
        """Adds amounts, each from a start to an end in ns."""
        self.add(np.append(starts, ends), np.append(amounts, -amounts))

    def __iter__(self) -> Iterator[CounterValue]:
        """Yields its values, each valid from its time on."""
        value = 0
        for part in self.changes.numbers:
            rows = self.changes.read(part).group_by("at_ns").agg(pl.col("change").sum()).filter(
                pl.col("change") != 0).sort("at_ns")
            for at_ns, change in rows.iter_rows():
                value += change
                yield CounterValue(self.what, self.state, at_ns, value)


def add_waits(counter: JobCounter, starts: Integers, ends: Integers) -> None:
    """Adds the waits of a rank, int64 ns; simultaneous waits in several collectives count once."""
    every = Intervals.of(starts, ends)
    counter.add_spans(every.starts, every.ends, np.ones(len(every.starts), np.int64))
