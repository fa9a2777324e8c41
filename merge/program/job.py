"""A run as a graph that can be replayed, and the work in it, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from distprof.arrays import Floats, Integers
from distprof.merge.activity.activities import Activities, Activity
from distprof.merge.activity.rank_activity import RankActivity
from distprof.merge.program.parts import ops_of, parts_of
from distprof.merge.program.waits import Waits, skew_of, unseen_ns, waits_of
from distprof.merge.replay.graph import CALL, MARK, WAIT, Events, Graph, linked

NEEDED = ("collective", "rank", "op", "group", "num_ranks", "peer", "enqueue_ns", "arrival_ns", "end_ns",
          "timed_by")
"""Columns of `MERGED_COLLECTIVES` that are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Pieces of work by event and activity; several may have the same event and activity."""

    event: Integers
    label: Integers
    """Number of the activity."""
    ns: Integers


def pieces_of(graph: Graph, ranks: Integers, did: Mapping[int, RankActivity], activities: Activities,
              ahead: Integers) -> Pieces:
    """Splits the work before each event by activity. Times of `did` are `ahead` of those of the graph."""
    events, own = graph.events, work_of(graph)
    unknown = activities.number(Activity("unknown"))
    timed = np.isin(ranks, list(did))[events.rank] if len(events) else np.zeros(0, bool)
    plain = np.flatnonzero(~timed & (own > 0))
    found = [(plain, np.full(len(plain), unknown), own[plain])]
    for index, number in enumerate(ranks.tolist()):
        if number in did:
            first, stop = np.searchsorted(events.rank, [index, index + 1])
            found.append(_of_rank(first, events.at_ns[first:stop] + ahead[index], own[first:stop], did[number],
                                    activities))
    event, label, ns = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Pieces(event=event, label=label, ns=ns)


def work_of(graph: Graph) -> Integers:
    """Returns the time before each event in which the thread did not wait. Calls of other threads may be inside a
    wait."""
    events, own = graph.events, graph.own_ns
    if not len(events):
        return own
    origin = int(events.began_ns.min())
    # keeps a minimum over all later events within its rank
    base = events.rank * (int(events.at_ns.max()) - origin + 1) - origin
    began = np.minimum(events.began_ns, events.at_ns) + base
    waits_from = np.minimum.accumulate(began[::-1])[::-1] - base
    before = events.at_ns - own
    is_wait = events.kind == WAIT
    return np.where(is_wait, own, np.clip(waits_from - before, 0, own))


def _of_rank(first: int, at: Integers, own: Integers, did: RankActivity,
             activities: Activities) -> tuple[Integers, Integers, Integers]:
    """Splits the work of one rank, whose first event is `first`. Work follows the previous event; a wait follows
    work."""
    starts = np.concatenate((at[:1], at[:-1]))
    ends = starts + own
    edges = np.concatenate((starts, ends, did.lane.starts, did.lane.ends))
    edges = np.unique(edges[(edges >= starts[0]) & (edges <= ends[-1])])
    event = np.searchsorted(starts, edges[:-1], "right") - 1
    # of events at one instant, the last one has the work that follows
    inside = edges[:-1] < ends[event]
    return first + event[inside], labels_at(edges[:-1], did, activities)[inside], np.diff(edges)[inside]


def labels_at(times: Integers, did: RankActivity, activities: Activities) -> Integers:
    """Returns the activity numbers at these times: the host's where none is known, unknown where nothing was
    recorded."""
    known, label = did.lane.at(times)
    host, unknown = activities.number(Activity("host")), activities.number(Activity("unknown"))
    began, ended = (did.lane.starts[0], did.lane.ends[-1]) if len(did.lane.starts) else (0, 0)
    return np.where(known, label, np.where((times >= began) & (times < ended), host, unknown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The graph of a run, its steps and the work of its threads."""

    graph: Graph
    ranks: Integers
    """Number of each rank, by index."""
    step: Integers
    """Step of each event, and of the work before it. -1 if none."""
    position: Integers
    """Number of calls of the step before each event."""
    op: Integers
    """Number for the op and the group size of each part; negative for messages of two ranks."""
    collective: Integers
    """Number of the collective of each part."""
    pieces: Pieces
    misses_waits: Floats
    """Fraction of the waits of each rank that only other ranks show."""
    unseen_ns: Integers
    """How long each part was in flight without a known wait, if waits may have been overlooked; else 0."""
    steps: Integers
    """Rank index, step, and the indices of the events at its start and end; shape (steps of ranks, 4)."""
    ahead_ns: Integers
    """How far times of each rank on the common clock are ahead of those of the graph."""


def job_of(rows: pl.DataFrame, did: Mapping[int, RankActivity], windows: pl.DataFrame,
           activities: Activities) -> Job:
    """Links what ranks did with the collectives in which they met.

    Args:
        rows: `MERGED_COLLECTIVES`.
        did: What ranks did, for those that have a timeline.
        windows: `rank`, `step`, `start_ns`, `end_ns` of the steps of ranks.
        activities: Numbers of activities; new ones are added.
    """
    table = _known(rows, {rank: one for rank, one in did.items() if one.on_device})
    waits = waits_of(table, did)
    return _linked(table, waits, did, windows, activities)


def _known(rows: pl.DataFrame, on_device: Mapping[int, RankActivity]) -> pl.DataFrame:
    """Returns rows with known times, by rank and call. On a device, the time of a call is when the device was ready."""
    more = [name for name in ("wait_start_ns", "wait_end_ns") if name in rows.columns]
    found = rows.lazy().select(*NEEDED, *more).with_columns(pl.col("enqueue_ns").fill_null(pl.col("arrival_ns")))
    found = found.filter(pl.all_horizontal(pl.col("enqueue_ns", "arrival_ns", "end_ns").is_not_null()))
    called = pl.when(pl.col("rank").is_in(list(on_device))).then(pl.coalesce("ready_ns", "arrival_ns")).otherwise(
        pl.min_horizontal("enqueue_ns", "arrival_ns"))
    ready = _ready(on_device).lazy()
    known = found.join(ready, on=("rank", "collective"), how="left", maintain_order="left").with_columns(
        called.alias("enqueue_ns")).drop("ready_ns").collect()
    rank, enqueue = known["rank"].to_numpy(), known["enqueue_ns"].to_numpy()
    return known[by_rank_and_time(rank, enqueue, np.zeros(len(known), np.int64))]


def _ready(on_device: Mapping[int, RankActivity]) -> pl.DataFrame:
    """Returns `ready_ns` by rank and collective, except for those that a rank calls twice, such as messages to
    itself."""
    parts = [pl.DataFrame({"rank": np.full(len(one.collectives), rank), "collective": one.collectives,
                           "ready_ns": one.ready_ns}) for rank, one in on_device.items()]
    schema = {"rank": pl.Int64(), "collective": pl.Int64(), "ready_ns": pl.Int64()}
    return pl.concat([pl.DataFrame(schema=schema), *parts]).unique(("rank", "collective"), keep="none")


def by_rank_and_time(rank: Integers, at: Integers, turn: Integers) -> Integers:
    """Returns the order of events by rank, time, and, at the same time, by their turn, 0 to 7. Where all are equal, the
    order remains."""
    span = int(np.ptp(at)) + 1 if len(at) else 1
    if int(rank.max(initial=0) + 1) * span >= 2 ** 59:
        return np.lexsort((turn, at, rank))
    return np.argsort((rank * span + (at - at.min(initial=np.iinfo(np.int64).max))) * 8 + turn, kind="stable")


def _linked(table: pl.DataFrame, waits: Waits, did: Mapping[int, RankActivity],
            windows: pl.DataFrame, activities: Activities) -> Job:
    # a rank without collectives, or that was killed, is not known to meet the others
    ranks = np.unique(table["rank"].to_numpy())
    windows = _apart(windows.filter(pl.col("rank").is_in(ranks.tolist())))
    ahead = skew_of(table, waits, ranks)
    if ahead.any():
        table, waits, windows = _shifted(table, waits, windows, dict(zip(ranks.tolist(), ahead.tolist(), strict=True)))
    events, step_of_mark = _events(table, waits, windows, ranks)
    op = ops_of(table)
    parts, leads = parts_of(table, op)
    graph = linked(events, parts, leads)
    marks = _marks(events, step_of_mark)
    step, position = _steps(events, marks)
    return Job(graph=graph, ranks=ranks, step=step, position=position, op=op,
               collective=table["collective"].to_numpy(),
               pieces=pieces_of(graph, ranks, did, activities, ahead),
               misses_waits=_share_missed(events, waits, len(ranks)), unseen_ns=unseen_ns(table, waits, did),
               steps=marks, ahead_ns=ahead)


def _apart(windows: pl.DataFrame) -> pl.DataFrame:
    """Returns the steps that take time, without those that begin before the previous one has ended."""
    ordered = windows.filter(pl.col("end_ns") > pl.col("start_ns")).sort("rank", "start_ns")
    before = pl.col("end_ns").cum_max().shift().over("rank")
    return ordered.filter(before.is_null() | (pl.col("start_ns") >= before))


def _shifted(table: pl.DataFrame, waits: Waits, windows: pl.DataFrame,
             ahead: Mapping[int, int]) -> tuple[pl.DataFrame, Waits, pl.DataFrame]:
    """Corrects all times by how far the clocks of their ranks are ahead."""
    by_row, by_window = (frame["rank"].replace_strict(ahead, return_dtype=pl.Int64) for frame in (table, windows))
    less = by_row.gather(waits.row).to_numpy()
    times = [name for name in table.columns if name.endswith("_ns")]
    return (table.with_columns(pl.col(times) - by_row),
            replace(waits, begin_ns=waits.begin_ns - less, end_ns=waits.end_ns - less),
            windows.with_columns(pl.col("start_ns", "end_ns") - by_window))


def _events(table: pl.DataFrame, waits: Waits, windows: pl.DataFrame,
            ranks: Integers) -> tuple[Events, Integers]:
    """Returns all events, and, for marks, twice the step number (plus 1 at its end); -1 for other events."""
    rank, enqueue = np.searchsorted(ranks, table["rank"].to_numpy()), table["enqueue_ns"].to_numpy()
    row, begin, end = waits.row, waits.begin_ns, np.maximum(waits.end_ns, enqueue[waits.row])
    stepping, start, stop, step = (windows[name].to_numpy() for name in ("rank", "start_ns", "end_ns", "step"))
    stepping = np.searchsorted(ranks, stepping)
    # a rank begins with a mark, so that none of its runs begins with a wait
    first = np.full(len(ranks), np.iinfo(np.int64).max)
    for who, when in ((rank, enqueue), (stepping, start), (rank[row], begin)):
        np.minimum.at(first, who, when)
    everybody = np.arange(len(ranks))
    at = np.concatenate((first, stop, start, enqueue, end))
    who = np.concatenate((everybody, stepping, stepping, rank, rank[row]))
    sizes = (len(ranks) + 2 * len(step), len(rank), len(row))
    kind = np.repeat([MARK, CALL, WAIT], sizes)
    part = np.concatenate((np.full(sizes[0], -1), np.arange(len(rank)), row))
    mark = np.concatenate((np.full(len(ranks), -1), 2 * step + 1, 2 * step, np.full(len(rank) + len(row), -1)))
    began = np.concatenate((at[:sizes[0] + sizes[1]], np.minimum(begin, end)))
    # at one instant, a step ends before the next one begins, its events come after that, and a wait ends before a call
    turn = np.repeat([0, 1, 2, 4, 5], (len(ranks), len(step), len(step), len(rank), len(row)))
    turn[(kind == WAIT) & (began < at)] = -1
    order = by_rank_and_time(who, at, turn + 1)
    return Events(rank=who[order], kind=kind[order], part=part[order], began_ns=began[order],
                  at_ns=at[order]), mark[order]


def _share_missed(events: Events, waits: Waits, num_ranks: int) -> Floats:
    caller = np.zeros(int(waits.row.max(initial=-1)) + 1, np.int64)
    is_wait = events.kind == WAIT
    caller[events.part[is_wait]] = events.rank[is_wait]
    number = np.bincount(caller[waits.row], minlength=num_ranks)
    return np.bincount(caller[waits.row], waits.missed, num_ranks) / np.maximum(number, 1)


def _steps(events: Events, marks: Integers) -> tuple[Integers, Integers]:
    """Returns the step of each event, and the number of calls before it in the step; `marks` is from `_marks`."""
    begins, ends = marks[:, 2], marks[:, 3]
    # events after a begin, up to its end, and those up to the next begin
    sizes = np.diff(np.stack((begins + 1, ends + 1), axis=1).reshape(-1), append=len(events), prepend=0)
    steps = np.full(len(sizes), -1)
    steps[1::2] = marks[:, 1]
    is_call = events.kind == CALL
    before = np.cumsum(is_call) - is_call
    first = np.zeros(len(sizes), np.int64)
    first[1::2] = before[begins]
    return np.repeat(steps, sizes), before - np.repeat(first, sizes)


def _marks(events: Events, mark: Integers) -> Integers:
    """Returns the steps of ranks; see `Job.steps`."""
    begins, ends = np.flatnonzero((mark >= 0) & (mark % 2 == 0)), np.flatnonzero((mark >= 0) & (mark % 2 == 1))
    # steps do not overlap: each begin is followed by its end
    return np.stack((events.rank[begins], mark[begins] // 2, begins, ends), axis=1)
