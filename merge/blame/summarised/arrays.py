"""What summaries of ranks say of their work and waits, as arrays over all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.mesh import DATA_PARALLEL
from distprof.contract.rank_summary import COMMUNICATION
from distprof.contract.tables import MODULES
from distprof.merge.activity.activities import Activity
from distprof.merge.levels.joined_arrivals import JoinedArrivals
from distprof.merge.levels.level_run import LevelRun

SENDS, RECEIVES = 1, 2
AT_ONCE = 512
"""Ranks that are worked on at once: what is kept of them is small beside what it is made of."""
SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads numbers over all of 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Ranks that ran the same program, and their work."""

    rows: Any
    """Their places in `RankArrays.ranks`, ascending."""
    labels: Sequence[Activity]
    work: Any
    """ns; shape (peers, steps, labels)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stood:
    """Waits of ranks in a step: a value each rank, step and group, or other side of messages."""

    row: Any
    """Place of the rank."""
    step: Any
    """Place of the step."""
    where: Any
    """Number of the group; place of the rank that a message came from."""
    ns: Any
    calls: Any
    """How many there were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankArrays:
    """All ranks whose summaries have the steps that count."""

    ranks: Any
    """Their numbers, ascending."""
    steps: Sequence[int]
    peers: Sequence[Peers]
    in_groups: Stood
    for_messages: Stood
    step_ns: Any
    """Mean duration of a step, of each rank."""
    replica: Any
    """Number of the replica of the model that each rank is in; one each where places in the mesh are not known."""
    windows: pl.DataFrame
    """`WINDOW` of these ranks and steps."""
    left_out: Sequence[int]
    """Ranks with a summary that lacks steps or communication."""


WINDOW = ("rank", "step", "duration_ns", "samples", "elements", "cpu_ns", "run_queue_ns")
"""Columns of `STEPS` that are looked at."""


def rank_arrays(level: LevelRun) -> RankArrays:
    """Takes the ranks that have every step that most have.

    Args:
        level: With what ranks spent on all kinds of activities.
    """
    windows = level.steps.lazy().select(WINDOW).filter(
        pl.col("step").is_in([*level.traced, *level.arrivals])).collect()
    joined = level.joined
    windows = windows.filter(pl.col("rank").is_in(joined.ranks)).unique(["rank", "step"])
    # a rank that ended early has fewer
    per_step = windows.group_by("step").len().filter(pl.col("len") > windows["rank"].n_unique() / 2)
    steps = np.sort(per_step["step"].to_numpy())
    windows = windows.filter(pl.col("step").is_in(steps)).filter(pl.len().over("rank") == len(steps))
    means = windows.group_by("rank").agg(pl.col("duration_ns").mean()).sort("rank")
    ranks = means["rank"].to_numpy()
    places = {rank.number: rank.coordinates for rank in level.run.ranks}
    coordinates = [places.get(rank) for rank in ranks.tolist()]
    row = _places(joined.ranks, ranks)
    # what needs much for a while comes before what is kept
    programs = list(_programs(joined, row, coordinates, _modules(level, ranks)))
    in_groups, for_messages = _in_groups(joined, row, steps), _for_messages(joined, row, ranks, steps)
    spent = _Spent(joined, row, steps)
    del joined
    level.let_go()
    return RankArrays(
        ranks=ranks, steps=steps.tolist(), peers=[spent.of(rows) for rows in programs],
        in_groups=in_groups, for_messages=for_messages,
        step_ns=means["duration_ns"].to_numpy(), replica=_replicas(coordinates), windows=windows,
        left_out=sorted({rank.number for rank in level.run.ranks} - set(ranks.tolist())))


def _places(values: Any, among: Any) -> Any:
    """Where each of some numbers is among others, which ascend; -1: nowhere. Ranks and steps are small numbers."""
    if not len(among) or not len(values):
        return np.full(len(values), -1, np.int32)
    table = np.full(max(int(among[-1]), int(values.max())) + 2, -1, np.int32)
    table[among] = np.arange(len(among))
    return table[np.maximum(values, -1)]


def _replicas(coordinates: Sequence[Mapping[str, int] | None]) -> Any:
    names = [f"rank {row}" if known is None else str([known.get(axis) for axis in DATA_PARALLEL])
             for row, known in enumerate(coordinates)]
    return np.unique(names, return_inverse=True)[1].reshape(-1) if names else np.empty(0, np.int64)


class _Spent:
    """What ranks spent their steps on."""

    def __init__(self, joined: JoinedArrivals, row: Any, steps: Any) -> None:
        rank = joined.spent["rank"]
        self._order = None if (rank[:-1] <= rank[1:]).all() else np.argsort(rank, kind="stable")
        self._bounds = np.searchsorted(rank, np.arange(len(joined.ranks) + 1, dtype=rank.dtype), sorter=self._order)
        self._index = np.flatnonzero(row >= 0)
        self._step, self._activity, self._ns = (joined.spent[name] for name in ("step", "activity", "ns"))
        self._steps, self._known = steps, [Activity(one.kind, one.module_path) for one in joined.activities]
        self._is_work = np.array([one.kind != COMMUNICATION for one in joined.activities], bool)

    def of(self, rows: Any) -> Peers:
        """Of peers, by their ascending places."""
        blocks = [rows[first:first + AT_ONCE] for first in range(0, len(rows), AT_ONCE)]
        used = np.zeros(len(self._known), bool)
        for block in blocks:
            used[self._held(block)[2]] = True
        label, labels = np.cumsum(used) - 1, [self._known[number] for number in np.flatnonzero(used).tolist()]
        work = np.zeros((len(rows), len(self._steps), len(labels)))
        for number, block in enumerate(blocks):
            row, step, activity, ns = self._held(block)
            shape = (len(block), *work.shape[1:])
            place = (row * shape[1] + step) * shape[2] + label[activity]
            first = number * AT_ONCE
            work[first:first + len(block)] = np.bincount(place, ns, int(np.prod(shape))).reshape(shape)
        return Peers(rows=rows, labels=labels, work=work)

    def _held(self, rows: Any) -> tuple[Any, Any, Any, Any]:
        """Row, step, activity and ns of the work of a few ranks in steps that count."""
        index = self._index[rows]
        first = self._bounds[index]
        counts = self._bounds[index + 1] - first
        at = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        if self._order is not None:
            at = self._order[at]
        step, activity = _places(self._step[at], self._steps), self._activity[at]
        held = (step >= 0) & self._is_work[activity]
        return (np.repeat(np.arange(len(rows)), counts)[held], step[held], activity[held],
                self._ns[at[held]].astype(float))


def _modules(level: LevelRun, ranks: Any) -> Any:
    """A number of the modules of each rank, equal for those that have the same; 0 where none are known."""
    assert level.run.summaries is not None
    table = level.run.summaries.tables[MODULES.file]
    row, path = _places(table.rank, ranks), table.columns["module_path"].astype(np.uint64)
    found = np.zeros(len(ranks), np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(found, row[row >= 0], ((path + np.uint64(1)) * SPREAD)[row >= 0] ** np.uint64(3))
    return found


def _programs(joined: JoinedArrivals, row: Any, coordinates: Sequence[Mapping[str, int] | None],
              modules: Any) -> Iterator[Any]:
    """Ranks that can be compared: with as many calls in groups of the same sizes, in one stage of the pipeline."""
    sender = np.array([-1 if one.sender is None else one.sender for one in joined.meetings], np.int64)
    sizes = np.array([one.num_ranks for one in joined.meetings], np.int64)
    rank, meeting, calls = _most_calls(joined)
    way = np.where(sender[meeting] < 0, 0, np.where(sender[meeting] == joined.ranks[rank], SENDS, RECEIVES))
    order = np.lexsort((calls, sizes[meeting], way, rank))
    code = np.stack((way, sizes[meeting], calls), axis=1)[order]
    bounds = np.searchsorted(rank[order], np.arange(len(joined.ranks) + 1))
    found: dict[Hashable, list[int]] = defaultdict(list)
    for index, (first, stop) in enumerate(pairwise(bounds.tolist())):
        if (at := int(row[index])) >= 0:
            stage, mine, named = (coordinates[at] or {}).get("pp"), code[first:stop], int(modules[at])
            # of those that send messages, only a stage or modules that are known say who does the same
            alone = (named or -1 - at) if stage is None and mine[:, 0].any() else None
            found[stage, alone, mine.tobytes()].append(at)
    return (np.array(sorted(rows)) for rows in found.values())


def _most_calls(joined: JoinedArrivals) -> tuple[Any, Any, Any]:
    """Rank, meeting and the most calls in a step, of each meeting of each rank."""
    change = np.flatnonzero(np.diff(joined.cell_rank, prepend=-1))
    bounds = [*change[::AT_ONCE].tolist(), len(joined.cell_rank)]
    found = [_most_calls_of(joined, slice(first, stop)) for first, stop in pairwise(bounds)]
    if not found:
        return (np.empty(0, np.int64),) * 3
    rank, meeting, calls = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rank, meeting, calls


def _most_calls_of(joined: JoinedArrivals, cells: slice) -> tuple[Any, Any, Any]:
    """Of the cells of a few ranks."""
    size = len(joined.meetings)
    pairs, place = np.unique(joined.cell_rank[cells].astype(np.int64) * size + joined.cell_meeting[cells],
                             return_inverse=True)
    calls = np.zeros(len(pairs), np.int64)
    np.maximum.at(calls, place.reshape(-1), joined.sequence_calls[joined.cell_sequence[cells]])
    return *np.divmod(pairs, size), calls


def _in_groups(joined: JoinedArrivals, row: Any, steps: Any) -> Stood:
    digests = [one.group.digest for one in joined.meetings]
    group = np.unique(digests, return_inverse=True)[1].reshape(-1) if digests else np.empty(0, np.int64)
    counts = np.array([not one.is_message and one.num_ranks > 1 for one in joined.meetings], bool)
    return _stood(joined, row[joined.cell_rank], steps, group, counts[joined.cell_meeting])


def _for_messages(joined: JoinedArrivals, row: Any, ranks: Any, steps: Any) -> Stood:
    sender, receiver = (np.array([-1 if at is None else at for at in every], np.int64) for every in (
        [one.sender for one in joined.meetings], [one.receiver for one in joined.meetings]))
    received = receiver[joined.cell_meeting] == joined.ranks[joined.cell_rank]
    return _stood(joined, row[joined.cell_rank], steps, _places(sender, ranks), received)


def _stood(joined: JoinedArrivals, row: Any, steps: Any, where: Any, wanted: Any) -> Stood:
    """Cells that are wanted, of ranks and steps that count."""
    step, where = _places(joined.cell_step, steps), where[joined.cell_meeting]
    held = np.flatnonzero(wanted & (row >= 0) & (step >= 0) & (where >= 0))
    return Stood(row=row[held].astype(np.int64), step=step[held], where=where[held], ns=joined.waited_ns[held],
                 calls=joined.sequence_calls[joined.cell_sequence[held]])
