"""The critical path of steps across ranks, and slack.

Slack is how much longer a module could take on a rank before a step ends later. The operators of the path are those
that ran at its times according to the timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Integers
from distprof.merge.activity.activities import Activity
from distprof.merge.activity.markers import COMMUNICATION
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.program.job import Job, labels_at, work_of
from distprof.merge.program.run_program import RunProgram
from distprof.merge.replay.chain import MOVING, NEVER, STARTING, WAKING, WORK, Chains, Link, latest_times
from distprof.merge.replay.graph import Graph
from distprof.merge.replay.order import Order, ordered


class OperatorsAt:
    """The operators of a rank by time; kernels, if the rank's activity is that of its device.

    Args:
        events: Slices of the rank's timeline.
        on_device: Whether to look up kernels instead of operators.
    """

    def __init__(self, events: pl.DataFrame, *, on_device: bool) -> None:
        category = pl.col("category").str.to_lowercase()
        apart = ~pl.any_horizontal(pl.col("name").str.starts_with(prefix) for prefix in COMMUNICATION)
        shown = events.filter(category == ("kernel" if on_device else "cpu_op"), pl.col("duration_ns") > 0, apart)
        # if several threads run operators at the same time, the one of the busiest thread counts
        busy = pl.col("duration_ns").sum().over("thread")
        shown = shown.with_columns(turn=busy.rank("dense", descending=True), thread=pl.col("thread").fill_null(""))
        shown = shown.sort("turn", "thread", "start_ns", "duration_ns", descending=[False, False, False, True])
        numbered = shown["thread"].rle_id()
        self._thread, self._names = numbered.to_numpy().astype(np.int64), shown["name"]
        self._starts = shown["start_ns"].to_numpy()
        self._ends = self._starts + shown["duration_ns"].to_numpy()
        self._parent = Nesting(self._thread, self._starts, self._ends, np.ones(len(shown), bool)).parent

    def edges(self, start_ns: int, end_ns: int) -> Integers:
        """Returns the times at which operators begin or end within a window."""
        times = np.concatenate((self._starts, self._ends))
        return times[(times > start_ns) & (times < end_ns)]

    def at(self, times: Integers) -> list[str | None]:
        """Returns the innermost operator at each time; None for none."""
        found = np.full(len(times), -1, np.int64)
        for thread in range(int(self._thread.max(initial=-1)) + 1):
            first, stop = np.searchsorted(self._thread, (thread, thread + 1))
            row = first + np.searchsorted(self._starts[first:stop], times, "right") - 1
            row = np.where(row >= first, row, -1)
            while (over := (row >= 0) & (self._ends[row] <= times)).any():
                row = np.where(over, self._parent[row], row)
            found = np.where((found < 0) & (row >= 0), row, found)
        names = self._names.gather(np.maximum(found, 0)).to_list() if len(self._names) else [None] * len(times)
        return [name if row >= 0 else None for name, row in zip(names, found.tolist(), strict=True)]


SLACK_SCHEMA = {"rank": pl.Int64(), "phase": pl.String(), "module_path": pl.String(), "step": pl.Int64(),
          "slack_ns": pl.Int64(), "work_ns": pl.Int64()}


def slack_of(program: RunProgram, job: Job, graph: Graph, order: Order, chains: Chains,
             steps: Sequence[int]) -> pl.DataFrame:
    """Returns the smallest slack of the pieces of work of each activity.

    A step ends when its last rank does. Using the slack makes neither this nor a later step of the job end later.

    Args:
        program: What ranks did.
        job: The graph of the run.
        graph: The same graph without joins that cannot be replayed.
        order: The order of that graph.
        chains: The longest chains of that graph.
        steps: Steps whose work is included.

    Returns:
        `SLACK_SCHEMA`, one row per rank, activity and step: `slack_ns` is the smallest of its pieces, `work_ns` their
        total duration.
    """
    events, deadlines = graph.events, np.full(len(graph.events), NEVER, np.int64)
    for step in np.unique(job.steps[:, 1]).tolist():
        marks = job.steps[job.steps[:, 1] == step, 3]
        deadlines[marks] = events.at_ns[marks].max()
    slack = np.maximum(latest_times(graph, order, deadlines) - chains.came_ns, 0)
    pieces = job.pieces
    chosen = np.flatnonzero(np.isin(job.step[pieces.event], steps) & (pieces.ns > 0))
    event, label = pieces.event[chosen], pieces.label[chosen]
    least = pl.DataFrame({"rank": job.ranks[events.rank[event]], "label": label, "step": job.step[event],
                          "slack_ns": slack[event], "work_ns": pieces.ns[chosen]}).group_by(
        "rank", "label", "step", maintain_order=True).agg(pl.col("slack_ns").min(), pl.col("work_ns").sum())
    known = program.activities.known
    return least.with_columns(
        phase=pl.Series([known[one].kind for one in least["label"]], dtype=pl.String),
        module_path=pl.Series([known[one].where for one in least["label"]], dtype=pl.String),
    ).select(pl.col(name).cast(kind) for name, kind in SLACK_SCHEMA.items())


UNRECORDED = "unrecorded"
"""Kind of link from the start of a step to the first event that is known of the rank on which its path begins."""
UNKNOWN = Activity("unknown")
KINDS = (WORK, MOVING, STARTING, WAKING, UNRECORDED)
"""Kinds of links of a path."""
SCHEMA = {"step": pl.Int64(), "rank": pl.Int64(), "kind": pl.String(), "start_ns": pl.Int64(), "end_ns": pl.Int64(),
          "phase": pl.String(), "module_path": pl.String(), "op": pl.String(), "collective": pl.Int64()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The critical paths of some steps."""

    steps: Sequence[int]
    durations: pl.DataFrame
    """`step`; `start_ns`: when its first rank began, or the last one ended the step before, whichever is later; and
    `end_ns`: when its last rank ended."""
    links: pl.DataFrame
    """The links of the paths, in order of time: `SCHEMA`. Work has `phase`, `module_path` and `op`, other links have
    `collective`; null if unknown."""
    ahead_ns: Mapping[int, int]
    """By rank: by how much the common clock is ahead of all these times, according to small collectives."""
    slack: pl.DataFrame
    """As `slack_of` returns it."""

    @property
    def on_common_clock(self) -> pl.DataFrame:
        """`links` on the clock of the merged trace, where they may overlap a little or have gaps."""
        ahead = pl.col("rank").replace_strict(self.ahead_ns, return_dtype=pl.Int64)
        return self.links.with_columns(pl.col("start_ns", "end_ns") + ahead)


def critical_path(program: RunProgram, job: Job, steps: Sequence[int]) -> CriticalPath:
    """Finds the critical paths of steps.

    Args:
        program: What ranks did.
        job: The graph of the run.
        steps: Steps of the graph.
    """
    graph, order = ordered(job.graph)
    chains = Chains(graph, order)
    links = [(step, *link) for step in steps for link in _chain(chains, job, step)]
    table = pl.DataFrame(links, ["step", "kind", "item", "rank", "start_ns", "end_ns"], orient="row")
    durations = table.group_by("step", maintain_order=True).agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    parts = [pl.DataFrame(schema=SCHEMA), *_of_ranks(table, program, job)]
    return CriticalPath(steps=list(steps), durations=durations, links=pl.concat(parts).sort("step", "start_ns"),
                        ahead_ns=dict(zip(job.ranks.tolist(), job.ahead_ns.tolist(), strict=True)),
                        slack=slack_of(program, job, graph, order, chains, steps))


def _chain(chains: Chains, job: Job, step: int) -> list[Link]:
    """Returns the path of a step, to the end of its last rank.

    It begins where its first rank does, or where the path of the step before ends, whichever is later: a rank that is
    late after the last collective ends its step while others are in the next one, and this time is in only one path.
    """
    marks, at = job.steps[job.steps[:, 1] == step], job.graph.events.at_ns
    before = at[job.steps[job.steps[:, 1] == step - 1, 3]]
    start, event = int(at[marks[:, 2]].min()), int(marks[np.argmax(at[marks[:, 3]]), 3])
    start = min(max(start, int(before.max(initial=start))), int(at[event]))
    found = chains.to(event, start)
    began, rank = (found[0].start_ns, found[0].rank) if found else (int(at[event]), int(job.graph.events.rank[event]))
    return [Link(UNRECORDED, -1, rank, start, began), *found] if began > start else found


def _of_ranks(table: pl.DataFrame, program: RunProgram, job: Job) -> list[pl.DataFrame]:
    """Returns links with names, one table per rank and step."""
    pieces = table.sort("start_ns").partition_by("rank", "step", as_dict=True)
    found, of_rank = dict[Any, list[pl.DataFrame]](), itemgetter(0)
    idle = job.graph.own_ns - work_of(job.graph)
    for index, keys in groupby(sorted(pieces, key=of_rank), of_rank):
        operators = _operators(program, int(job.ranks[index]))  # one rank at a time, to save memory
        for key in keys:
            found[key] = list(_named(pieces[key], program, job, operators, idle))
    return [part for key in pieces for part in found[key]]


def _operators(program: RunProgram, rank: int) -> OperatorsAt | None:
    did = program.did.get(rank)
    return None if did is None else OperatorsAt(program.timelines[rank], on_device=did.on_device)


def _named(links: pl.DataFrame, program: RunProgram, job: Job, operators: OperatorsAt | None,
           idle: Integers) -> Iterator[pl.DataFrame]:
    """Yields the links of a rank in a step with their names."""
    index, is_work = int(links["rank"][0]), pl.col("kind") == WORK
    ahead = int(job.ahead_ns[index])
    named = links.with_columns(pl.lit(int(job.ranks[index]), pl.Int64).alias("rank"))
    others, worked = named.filter(~is_work), named.filter(is_work)
    part = np.maximum(others["item"].to_numpy(), 0)
    collective = pl.Series(job.collective[part] if len(job.collective) else part)
    yield _shaped(others.with_columns(collective=pl.when(pl.col("item") >= 0).then(collective)))
    if operators is not None and len(worked):
        shifted = worked.with_columns(pl.col("start_ns", "end_ns") + ahead)
        worked = _pieces(shifted, program, operators, idle).with_columns(pl.col("start_ns", "end_ns") - ahead)
    yield _shaped(worked if "phase" in worked.columns else worked.with_columns(phase=pl.lit("unknown")))


def _shaped(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select((pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name)
                       for name, kind in SCHEMA.items())


def _pieces(links: pl.DataFrame, program: RunProgram, operators: OperatorsAt, idle: Array) -> pl.DataFrame:
    """Returns the work of a rank in a step, cut where its activity or operator changes."""
    rank, known = int(links["rank"][0]), program.activities.known
    did, starts, ends = program.did[rank], links["start_ns"].to_numpy(), links["end_ns"].to_numpy()
    # a thread that waited while another thread called an op did not work
    worked = np.clip(ends - idle[links["item"].to_numpy()], starts, ends)
    low, high = int(starts[0]), int(ends[-1])
    lane = np.concatenate((did.lane.starts, did.lane.ends))
    edges = np.unique(np.concatenate((starts, ends, worked, lane[(lane > low) & (lane < high)],
                                      operators.edges(low, high))))
    row = np.searchsorted(starts, edges[:-1], "right") - 1
    inside = edges[:-1] < ends[row]
    begins, stops, row = edges[:-1][inside], edges[1:][inside], row[inside]
    what = [UNKNOWN if is_idle else known[label] for label, is_idle in zip(
        labels_at(begins, did, program.activities).tolist(), (begins >= worked[row]).tolist(), strict=True)]
    return pl.DataFrame({
        "step": links["step"].gather(row), "rank": rank, "kind": WORK, "start_ns": begins, "end_ns": stops,
        "phase": pl.Series([one.kind for one in what], dtype=pl.String),
        "module_path": pl.Series([one.where for one in what], dtype=pl.String),
        "op": pl.Series(operators.at(begins), dtype=pl.String)})
