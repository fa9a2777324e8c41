"""Selects which of many ranks to replay: those that may delay the job, and those that others would wait for next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Floats, Integers
from distprof.contract.tables import MODULES
from distprof.merge.blame.candidates import MOST_RANKS
from distprof.merge.blame.peers import lowest_met
from distprof.merge.blame.verdicts import WORTH_A_WORD
from distprof.merge.chance import median_of_others
from distprof.merge.cost.joined_run import JoinedRun
from distprof.merge.run.joined_calls import JoinedCalls
from distprof.merge.run.tables import NAMES, read_table

SENDS, RECEIVES = 1, 2
"""Codes of the direction of a message: the rank sends it, or receives it; 0 for collectives."""
MOST_REPLAYED = 640
"""Approximate largest number of ranks that are replayed."""
MOST_CALLS = 800_000
"""Approximate largest number of calls of the ranks that are replayed."""
MORE = 1
"""Components without suspects that are replayed in addition to one per component with suspects."""
SOME = 64
"""Number of peers whose timers a late rank is compared with."""
AT_ONCE = 512
"""Ranks processed at a time: their results are small compared to the temporary arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Ranks that ran the same program, and their work."""

    ranks: Integers
    """Numbers of the ranks, ascending."""
    work: Floats
    """Time in which each rank did not wait for others in each step; ns, shape (ranks, steps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCut:
    """What the steps of all ranks show without a replay."""

    steps: Sequence[int]
    """Steps that are compared: those that most ranks have. Only ranks that have all of them take part."""
    peers: Sequence[Peers]
    num_ranks: int
    chosen: Sequence[int]
    """Ranks that are replayed, ascending: those with most work beyond that of their peers, the ranks that they meet
    repeatedly, and likewise those that others would wait for next."""

    def peers_of(self, rank: int) -> list[int]:
        """Returns the rank, followed by the `SOME` peers closest to the median work."""
        by_median, _ = self._ordered(rank)
        return [rank, *by_median[:SOME].tolist()]

    def near(self, rank: int) -> list[int]:
        """Returns peers of a rank: alternately those closest to the median work and those with least work."""
        both = np.stack(self._ordered(rank), axis=1).reshape(-1)[:4 * SOME]
        return list(dict.fromkeys(both.tolist()))

    def _ordered(self, rank: int) -> tuple[Integers, Integers]:
        """Returns the peers of a rank twice: closest to the median work first, and least work first."""
        mine = next((one for one in self.peers if (one.ranks == rank).any()), None)
        if mine is None:
            return (np.empty(0, np.int64),) * 2
        whole = mine.work.mean(axis=1)
        order = np.argsort(whole, kind="stable")
        order = order[mine.ranks[order] != rank]
        by_median = order[np.argsort(np.abs(whole[order] - np.median(whole)), kind="stable")]
        return mine.ranks[by_median], mine.ranks[order]


def first_cut(many: JoinedRun, steps: Sequence[int]) -> FirstCut:
    """Compares all ranks.

    Args:
        many: Joined calls and steps of the ranks.
        steps: Steps that count.
    """
    joined = many.calls
    durations = _durations(many, joined, steps)
    ranks, kept = (durations[name].unique().sort().to_numpy() for name in ("rank", "step"))
    if not len(ranks):
        return FirstCut(steps=(), peers=(), num_ranks=0, chosen=())
    row = _places(joined.ranks, ranks)
    waited = _waited(joined, row, kept, len(ranks))
    window = durations.sort("rank", "step")["duration_ns"].to_numpy().reshape(len(ranks), len(kept))
    work = np.maximum(window - waited, 0).astype(float)
    coordinates = {rank.number: rank.coordinates for rank in many.run.ranks}
    programs = list(_programs(joined, row, [coordinates.get(rank) for rank in ranks.tolist()], _modules(many, ranks)))
    peers = [Peers(ranks=ranks[rows], work=work[rows]) for rows in programs]
    suspects = _suspects([rows for rows in programs if len(rows) > 1], work, WORTH_A_WORD * float(window.mean()))
    chosen = _Neighbours(joined, row, kept).of(suspects)
    return FirstCut(steps=kept.tolist(), peers=peers, num_ranks=len(ranks), chosen=np.sort(ranks[chosen]).tolist())


def _durations(many: JoinedRun, joined: JoinedCalls, steps: Sequence[int]) -> pl.DataFrame:
    """Returns the durations of the steps that most ranks have, of the ranks that have all of these."""
    windows = many.steps.lazy().select("rank", "step", "duration_ns").filter(
        pl.col("step").is_in(list(steps)), pl.col("rank").is_in(joined.ranks)).unique(["rank", "step"]).collect()
    per_step = windows.group_by("step").len().filter(pl.col("len") > windows["rank"].n_unique() / 2)
    return windows.filter(pl.col("step").is_in(per_step["step"].implode())).filter(
        pl.len().over("rank") == len(per_step))


def _places(values: Array, among: Integers) -> Array:
    """Returns the index of each value in ascending numbers, -1 if absent. The numbers are small: they index a table."""
    if not len(among) or not len(values):
        return np.full(len(values), -1, np.int32)
    last = int(among[-1]) + 1
    table = np.full(last + 1, -1, np.int32)
    table[among] = np.arange(len(among))
    return table[np.where((values < 0) | (values > last), last, values)]


def _waited(joined: JoinedCalls, row: Array, steps: Integers, num_ranks: int) -> Integers:
    """Returns how long each rank waited in each step."""
    found = np.zeros((num_ranks, len(steps)), np.int64)
    rank, step = row[joined.waits["rank"]], _places(joined.waits["step"], steps)
    held = (rank >= 0) & (step >= 0)
    found[rank[held], step[held]] = joined.waits["blocked_ns"][held]
    return found


def _suspects(programs: Sequence[Integers], work: Floats, least_ns: float) -> Integers:
    """Returns the rows of the ranks with the largest excess over their peers, of at least `least_ns` per step."""
    rows = np.concatenate([*programs, np.empty(0, np.int64)]).astype(np.int64)
    if not len(rows):
        return rows
    beyond = np.concatenate([work[own].mean(axis=1) - median_of_others(work[own].mean(axis=1)) for own in programs])
    order = np.argsort(-beyond, kind="stable")[:MOST_RANKS]
    return rows[order[beyond[order] >= least_ns]]


# --- who ran the same program -----------------------------------------------------------------------------------------


def _modules(many: JoinedRun, ranks: Integers) -> Array:
    """Returns a hash of the modules of each rank, equal if the modules are equal; 0 if none are known."""
    each = read_table(many.run, MODULES.only("rank", "module_path"), lambda rows: rows.group_by("rank").agg(
        pl.col("module_path").cast(pl.String).hash().sum()), NAMES).rows
    row, found = _places(each["rank"].to_numpy(), ranks), np.zeros(len(ranks), np.uint64)
    found[row[row >= 0]] = each["module_path"].to_numpy()[row >= 0]
    return found


def _programs(joined: JoinedCalls, row: Array, coordinates: Sequence[Mapping[str, int] | None],
              modules: Array) -> Iterator[Any]:
    """Yields sets of comparable ranks: equally many calls in groups of equal sizes, in the same pipeline stage."""
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
            # ranks that send messages are known to do the same only if their stage or modules are known
            alone = (named or -1 - at) if stage is None and mine[:, 0].any() else None
            found[stage, alone, mine.tobytes()].append(at)
    return (np.array(sorted(rows)) for rows in found.values())


def _most_calls(joined: JoinedCalls) -> tuple[Integers, Integers, Integers]:
    """Returns the rank, the meeting and the largest number of calls per step, for each meeting of each rank."""
    change = np.flatnonzero(np.diff(joined.cell_rank, prepend=-1))
    bounds = [*change[::AT_ONCE].tolist(), len(joined.cell_rank)]
    found = [_most_calls_of(joined, slice(first, stop)) for first, stop in pairwise(bounds)]
    if not found:
        return (np.empty(0, np.int64),) * 3
    rank, meeting, calls = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rank, meeting, calls


def _most_calls_of(joined: JoinedCalls, cells: slice) -> tuple[Integers, Integers, Integers]:
    """Does the same for the cells of some ranks."""
    size = len(joined.meetings)
    pairs, place = np.unique(joined.cell_rank[cells].astype(np.int64) * size + joined.cell_meeting[cells],
                             return_inverse=True)
    calls = np.zeros(len(pairs), np.int64)
    np.maximum.at(calls, place.reshape(-1), joined.sequence_calls[joined.cell_sequence[cells]])
    return *np.divmod(pairs, size), calls


# --- who has to be replayed with whom ---------------------------------------------------------------------------------


class _Neighbours:
    """Finds components: ranks that meet in small groups or send each other messages, such as a replica of the model.
    Large groups connect components; a replay of a few components keeps what all of them wait for."""

    def __init__(self, joined: JoinedCalls, row: Array, steps: Integers) -> None:
        self._row = row[joined.cell_rank]
        self._num_ranks, self._num_steps = int(row.max(initial=-1)) + 1, len(steps)
        self._sizes = np.array([one.num_ranks for one in joined.meetings], np.int64)
        self._step, self._joined = _places(joined.cell_step, steps), joined
        calls = np.bincount(self._row[self._row >= 0], joined.sequence_calls[joined.cell_sequence[self._row >= 0]])
        self._room = int(max(min(MOST_REPLAYED, MOST_CALLS / max(calls.mean() if len(calls) else 1, 1)), 8))

    def of(self, suspects: Integers) -> Integers:
        """Returns the rows of the ranks that are replayed."""
        if self._num_ranks <= self._room or not len(suspects):
            return np.arange(self._num_ranks if len(suspects) else 0)
        component, largest = self._components()
        members = np.argsort(component, kind="stable")
        bounds = np.searchsorted(component[members], np.arange(int(component.max()) + 2))
        found = dict[int, None]()
        for number in self._in_order(component, suspects, largest):
            mine = members[bounds[number]:bounds[number + 1]].tolist()
            if len(found) + len(mine) <= self._room:
                found |= dict.fromkeys(mine)
        return np.array(list(found or dict.fromkeys(suspects.tolist())))

    def _components(self) -> tuple[Any, int]:
        """Returns the component number of each rank, and the largest size of the groups that connect components. The
        size is as large as possible while two components fit into the replay."""
        best = np.arange(self._num_ranks), 0
        key = self._joined.cell_meeting.astype(np.int64) * self._num_ranks + self._row
        meeting, rank = np.divmod(np.unique(key[self._row >= 0]), self._num_ranks)
        for size in np.unique(self._sizes).tolist():
            held = self._sizes[meeting] <= size
            lowest = lowest_met(meeting[held], rank[held], self._num_ranks)
            component = np.unique(lowest, return_inverse=True)[1].reshape(-1)
            if 2 * np.bincount(component).max() > self._room:
                break
            best = component, size
        return best

    def _in_order(self, component: Integers, suspects: Integers, largest: int) -> list[int]:
        """Orders components: alternately one with suspects and one that the others would wait for next, which has the
        least waits in larger groups."""
        cells = (self._row >= 0) & (self._step >= 0) & (self._sizes[self._joined.cell_meeting] > largest)
        least = np.full((int(component.max()) + 1) * self._num_steps, np.inf)
        of_rank = np.bincount(self._row[cells] * self._num_steps + self._step[cells], self._joined.waited_ns[cells],
                              self._num_ranks * self._num_steps)
        np.minimum.at(least, np.repeat(component, self._num_steps) * self._num_steps
                      + np.tile(np.arange(self._num_steps), self._num_ranks), of_rank)
        waits = least.reshape(-1, self._num_steps)
        of_suspects = list(dict.fromkeys(component[suspects].tolist()))
        others = np.ones(len(waits), bool)
        others[of_suspects] = False
        order = np.argsort(waits[others].mean(axis=1), kind="stable")
        first = np.flatnonzero(others)[order].tolist()
        pairs = [one for pair in zip(of_suspects, first, strict=False) for one in pair]
        return list(dict.fromkeys([*pairs, *of_suspects, *first[:len(of_suspects) + MORE]]))
