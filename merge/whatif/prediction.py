"""Predicts step times with changes by a replay, beside the measured ones and those of a replay without changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Flags, Floats, Integers
from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.errors import DataError
from distprof.merge.blame.verdicts import REPLAY
from distprof.merge.execution.dependencies.first_uses import FirstUses
from distprof.merge.program.job import Job, work_of
from distprof.merge.program.run_program import RunProgram
from distprof.merge.replay.graph import Graph
from distprof.merge.replay.moved_waits import with_later_waits, with_waits_at_once
from distprof.merge.replay.order import Order, ordered
from distprof.merge.replay.replay import Relief, Replay
from distprof.merge.whatif.changes import Changes
from distprof.merge.whatif.deferral import Deferral, deferral
from distprof.merge.whatif.scaled import Bandwidth, faster, free, moved_by_bytes, scaled
from distprof.merge.whatif.stragglers import Stragglers, stragglers

SCHEMA = {"step": pl.Int64(), "rank": pl.Int64(), "measured_ns": pl.Float64(), "replayed_ns": pl.Float64(),
          "predicted_ns": pl.Float64()}
CALL_NS = 500_000
"""A host that waits for a call within this time may have waited at once: calls themselves take up to that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted times of steps, and what they are based on."""

    steps: Sequence[int]
    of_ranks: pl.DataFrame
    """`SCHEMA`, one row per step and rank."""
    work: pl.DataFrame
    """`rank`, `phase`, `module_path`, `steps`, `less_ns`: stragglers that were removed, the largest first."""
    scaled_ns: list[dict[int, float]]
    """For each scale, by rank, how long the matching work took in these steps."""
    bandwidths: list[Bandwidth]
    at_best_ns: float | None
    """Mean step time if all of each transfer depended on bandwidth; None if bandwidth is not changed."""
    deferral: Deferral | None
    """Deferred waits; None if waits are not deferred."""
    clock_ns: int
    """Uncertainty of the difference between the clocks of two ranks."""
    left_ns: float = 0.0
    """By how much a rank may still be late per step after stragglers are removed: it may be chance."""
    shifting_ns: float = 0.0
    """By how much the latest rank of a step, whichever it is, is then still late, mean over steps."""

    @property
    def of_steps(self) -> pl.DataFrame:
        """Times of the job by `step`, means over ranks."""
        return self.of_ranks.group_by("step", maintain_order=True).agg(pl.col(*list(SCHEMA)[2:]).mean())

    @property
    def gain_ns(self) -> float:
        """By how much the mean step becomes shorter."""
        return _mean(self.of_ranks["replayed_ns"]) - _mean(self.of_ranks["predicted_ns"])

    @property
    def gain_ratio(self) -> float:
        """The gain as a share of the measured mean step."""
        return self.gain_ns / self.measured_ns if self.measured_ns else 0.0

    @property
    def measured_ns(self) -> float:
        """The measured mean step."""
        return _mean(self.of_ranks["measured_ns"])

    @property
    def replay_error_ns(self) -> float:
        """Mean absolute difference of the replayed, unchanged steps of ranks from the measured ones."""
        return _mean((self.of_ranks["replayed_ns"] - self.of_ranks["measured_ns"]).abs())

    @property
    def largest_replay_error_ns(self) -> float:
        """Largest absolute difference of a replayed, unchanged step of a rank from the measured one."""
        return float(np.abs((self.of_ranks["replayed_ns"] - self.of_ranks["measured_ns"]).to_numpy()).max(initial=0))

    @property
    def gain_error_ns(self) -> float:
        """Error of the gain: that of the replay, on simulated jobs and here, that of the clocks, and the lateness that
        may be chance."""
        clock_ns = min(self.clock_ns, abs(self.gain_ns))
        return float(np.linalg.norm((REPLAY * self.gain_ns, self.replay_error_ns, clock_ns, self.left_ns)))

    @property
    def scatter_ns(self) -> float | None:
        """Standard deviation of the measured steps; None for a single step."""
        measured = self.of_steps["measured_ns"].to_numpy()
        return float(measured.std(ddof=1)) if len(measured) > 1 else None


def predict(program: RunProgram, job: Job, changes: Changes, steps: Sequence[int], *,
            coordinates: Mapping[int, Mapping[str, int]], clock_ns: int,
            uses: Mapping[int, FirstUses] = MappingProxyType({})) -> Prediction:
    """Replays a job with changes.

    Args:
        program: What ranks did.
        job: The graph of the run.
        changes: The changes.
        steps: Steps that are changed and predicted.
        coordinates: Coordinates of ranks in the device mesh, if known.
        clock_ns: Uncertainty of the difference between the clocks of two ranks.
        uses: First uses of communicated tensors, by rank, for deferred waits.

    Raises:
            UsageError: What is to be changed does not exist.
            DataError: Bandwidth is to be changed, but sizes are unknown.
    """
    late = stragglers(program, job, steps, coordinates) if changes.no_stragglers else Stragglers(
        less_ns=np.zeros(len(job.pieces.ns)), left_ns=0.0, shifting_ns=0.0)
    meant = scaled(program, job, changes.scales, steps)
    graph, order = ordered(job.graph)
    changed, best, bandwidths = _communication(program, job, graph, changes, steps)
    windows = job.steps[np.isin(job.steps[:, 1], steps)]
    less = _less(job, late.less_ns, meant, changes)
    put_off = deferral(program, job, graph, uses, steps) if changes.defer_waits else None
    replayed = _durations(Replay(graph, order), windows, np.zeros(len(less)))
    at_once = _collectives(program, job, steps) if changes.no_overlap else None
    predicted = _predicted(changed, order, windows, less, put_off, at_once)
    at = graph.events.at_ns
    of_ranks = pl.DataFrame({
        "step": windows[:, 1], "rank": job.ranks[windows[:, 0]],
        "measured_ns": (at[windows[:, 3]] - at[windows[:, 2]]).astype(float), "replayed_ns": replayed,
        "predicted_ns": predicted}, SCHEMA).sort("step", "rank")
    return Prediction(
        steps=sorted(steps), of_ranks=of_ranks, work=_fixed(program, job, late.less_ns),
        scaled_ns=[_by_rank(job, ns) for ns in meant], bandwidths=bandwidths, clock_ns=clock_ns,
        deferral=put_off, left_ns=late.left_ns, shifting_ns=late.shifting_ns,
        at_best_ns=None if best is None else float(_predicted(best, order, windows, less, put_off, at_once).mean()))


def _less(job: Job, fixed: Floats, meant: Integers, changes: Changes) -> Any:
    """Returns how much less work is in front of each event, in ns; scales apply to what removing stragglers leaves."""
    less, work = np.bincount(job.pieces.event, fixed, len(job.graph.events)), work_of(job.graph)
    left = np.divide(work - less, work, out=np.ones(len(work)), where=work > 0)
    return less + sum((1 - scale.factor) * ns * left for scale, ns in zip(changes.scales, meant, strict=True))


def _communication(program: RunProgram, job: Job, graph: Graph, changes: Changes,
                   steps: Sequence[int]) -> tuple[Graph, Graph | None, list[Bandwidth]]:
    """Returns the graph with changed communication in these steps; if bandwidth is changed, also the graph in which all
    transfer time depends on it; and the shares that depend on bandwidth."""
    if changes.free_communication:
        return _where(job, free(graph), graph, steps), None, []
    if changes.bandwidth is None:
        return graph, None, []
    moved, found = moved_by_bytes(program, job)
    changed, best = (faster(graph, np.where(_part_is_in(job, steps), ns, 0), changes.bandwidth)
                     for ns in (moved, np.clip(graph.transfer_ns, 0, None)))
    return changed, best, found


def _collectives(program: RunProgram, job: Job, steps: Sequence[int]) -> Flags:
    """Returns which parts belong to collectives that were called in one of the steps and waited for later.

    Messages are excluded: a thread that waited for each at once might deadlock.
    """
    left = _awaited_at_once(program).filter(
        pl.col("op").cast(pl.String).is_in(POINT_TO_POINT) | ~pl.col("asynchronous") | (pl.col("least_ns") <= CALL_NS))
    return _part_is_in(job, steps) & ~np.isin(job.collective, left["collective"].unique().to_numpy())


def _awaited_at_once(program: RunProgram) -> pl.DataFrame:
    """Returns the rows with `least_ns`: the shortest time from the N-th equal call of a step to its wait, over all
    steps and ranks; null if a host calls something else in between.

    In other steps, the host may have been descheduled in between.
    """
    on_device = [rank for rank, did in program.did.items() if did.on_device]
    waits_next = (pl.col("next_ns") >= pl.col("wait_start_ns")).fill_null(value=True)
    alike = ["op", "group", "group_ranks", "size_bytes"]
    return program.rows.sort("enqueue_ns").with_columns(
        next_ns=pl.col("enqueue_ns").shift(-1).over("rank"), place=pl.int_range(pl.len()).over("rank", "step", *alike),
    ).with_columns(gap_ns=pl.when(waits_next & ~pl.col("rank").is_in(on_device)).then(
        pl.col("wait_start_ns") - pl.col("enqueue_ns"))).with_columns(
        least_ns=pl.col("gap_ns").min().over(*alike, "place"))


def _predicted(graph: Graph, order: Order, windows: Integers, less: Floats, put_off: Deferral | None,
               at_once: Flags | None) -> Floats:
    """Returns the durations of steps with less work, and with waits that are deferred or come at once."""
    if at_once is not None:
        graph, place = with_waits_at_once(graph, at_once)
        moved = np.zeros(len(graph.events))
        moved[place] = less
    elif put_off is not None and len(put_off.later.event):
        graph, place = with_later_waits(graph, less, put_off.later)
        moved = np.zeros(len(less))
    else:
        return _durations(Replay(graph, order), windows, less)
    graph, order = ordered(graph)
    windows = np.column_stack((windows[:, :2], place[windows[:, 2:]]))
    return _durations(Replay(graph, order), windows, moved)


def _durations(replay: Replay, windows: Integers, less: Floats) -> Floats:
    event = np.flatnonzero(less)
    times = replay.times([[Relief(event=event, ns=less[event])]])[:, 0]
    places = np.searchsorted(replay.marks, windows[:, 2:])
    return times[places[:, 1]] - times[places[:, 0]]


def _part_is_in(job: Job, steps: Sequence[int]) -> Flags:
    """Returns which parts were called in one of the steps."""
    found, events = np.zeros(len(job.graph.parts), bool), job.graph.events
    calls = np.flatnonzero(events.part >= 0)
    found[events.part[calls[np.isin(job.step[calls], steps)]]] = True
    return found


def _where(job: Job, changed: Graph, graph: Graph, steps: Sequence[int]) -> Graph:
    """Returns a graph with the changed communication times in these steps, and the original ones elsewhere."""
    inside, in_step = _part_is_in(job, steps), np.isin(job.step, steps)
    return replace(graph, transfer_ns=np.where(inside, changed.transfer_ns, graph.transfer_ns),
                   latency_ns=np.where(inside, changed.latency_ns, graph.latency_ns),
                   wake_ns=np.where(in_step, changed.wake_ns, graph.wake_ns))


def _fixed(program: RunProgram, job: Job, fixed: Floats) -> pl.DataFrame:
    some = np.flatnonzero(fixed > 0)
    event, known = job.pieces.event[some], program.activities.known
    what = [known[label] for label in job.pieces.label[some].tolist()]
    return pl.DataFrame({
        "rank": job.ranks[job.graph.events.rank[event]],
        "phase": pl.Series([one.kind for one in what], dtype=pl.String),
        "module_path": pl.Series([one.where for one in what], dtype=pl.String), "step": job.step[event],
        "less_ns": fixed[some]}).group_by("rank", "phase", "module_path").agg(
        steps=pl.col("step").n_unique(), less_ns=pl.col("less_ns").sum()).sort(
        "less_ns", "rank", "phase", "module_path", descending=[True, False, False, False])


def _by_rank(job: Job, ns: Integers) -> dict[int, float]:
    total = np.bincount(job.graph.events.rank, ns, len(job.ranks))
    return {int(job.ranks[index]): float(total[index]) for index in np.flatnonzero(total)}


def _mean(values: pl.Series) -> float:
    found = values.to_numpy()
    if not len(found):
        raise DataError("no step can be predicted")
    return float(found.mean())
