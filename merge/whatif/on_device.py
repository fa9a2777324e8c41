"""Predicts the steps of a rank's devices with changes, by a replay of its commands, launches and waits.

The order of launches and all dependencies stay; the durations of commands, and of the host's work between launches,
change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Floats, Integers
from distprof.contract.passes import ARRIVALS
from distprof.errors import UsageError
from distprof.merge.activity.device.commands import COMMUNICATION, Commands, commands_of
from distprof.merge.activity.device.steps import spans_of, step_of_commands
from distprof.merge.activity.intervals import NOTHING, Intervals
from distprof.merge.critical.device.dependencies import as_one_thread, dependencies
from distprof.merge.critical.device.graph import HOST, DeviceGraph, device_graph
from distprof.merge.critical.device.path import DeviceSeen
from distprof.merge.program.run_program import RunProgram
from distprof.merge.whatif.changes import Changes, Scale
from distprof.merge.whatif.prediction import SCHEMA, Prediction
from distprof.merge.whatif.scaled import all_within, check_scale, fitting, labels_of, within
from distprof.units import spans


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReplay:
    """What a rank's devices and its host did, as a graph that can be replayed."""

    rank: int
    commands: Commands
    step: Integers
    """Step of each command; -1 for none."""
    graph: DeviceGraph
    seen: DeviceSeen
    operators: pl.DataFrame
    """Slices of the host's operators."""
    windows: pl.DataFrame
    """Steps of the host: `step`, `start_ns`, `end_ns`."""
    borders: list[tuple[int, int, int]]
    """Device steps with a known end: number, first command, first command of the next step."""

    @property
    def names(self) -> list[str]:
        """Names of operators and commands."""
        return [*self.operators["name"].unique().to_list(), *self.commands.names]

    def lengths(self, times: Floats) -> list[float]:
        """Returns the durations of the steps in `borders`, given the times at which commands begin."""
        return [float(times[last] - times[first]) for _, first, last in self.borders]


def rank_replay(rank: int, events: pl.DataFrame, windows: pl.DataFrame) -> RankReplay | None:
    """Makes the graph of a rank; None if its timeline has no complete device step.

    Args:
        rank: Number of the rank.
        events: Slices of its timeline.
        windows: Steps of its host: `step`, `start_ns`, `end_ns`.
    """
    commands, windows = commands_of(as_one_thread(events)), windows.sort("start_ns")
    if commands is None or not (commands.call >= 0).any():
        return None
    step = step_of_commands(commands, windows)
    borders = list(_borders(commands, step, windows.with_columns(is_marked=pl.lit(value=True))))
    if not borders:
        return None
    return RankReplay(rank=rank, commands=commands, step=step, seen=DeviceSeen.of(events), windows=windows,
                      graph=device_graph(commands, dependencies(commands)), borders=borders,
                      operators=events.filter(pl.col("category").str.to_lowercase() == "cpu_op"))


def _borders(commands: Commands, step: Integers, windows: pl.DataFrame) -> Iterator[tuple[int, int, int]]:
    for device in range(len(commands.devices)):
        mine = np.where(commands.device == device, step, -1)
        for number, _, _, is_whole in spans_of(commands, mine, windows) if (mine >= 0).any() else ():
            if is_whole:
                first, last = (int(np.flatnonzero(mine == one)[0]) for one in (number, number + 1))
                yield number, first, last


def predict_on_devices(program: RunProgram, changes: Changes, wanted: Sequence[int]) -> Prediction | None:
    """Replays what devices did; None if no device step is complete.

    Args:
        program: What ranks did.
        changes: Only scales and free communication are applied.
        wanted: Steps that are changed and predicted; if empty, those that count.

    Raises:
        UsageError: There is no such step, or what is to be changed does not exist.
    """
    counted, windows = set(program.traced), program.windows.filter(pl.col("pass") != ARRIVALS)
    found = [one for one in (rank_replay(rank, program.timelines[rank], windows.filter(pl.col("rank") == rank).select(
        "step", "start_ns", "end_ns")) for rank in program.timelines) if one is not None]
    there = sorted({number for one in found for number, _, _ in one.borders})
    if not there:
        return None
    for step in wanted:
        if step not in there:
            raise UsageError(f"no step {step}; --step can be {spans(there)}")
    steps = sorted(set(wanted)) or [step for step in there if step in counted] or there
    for scale in changes.scales:
        check_scale(scale, [one.rank for one in found], steps, [what for one in found for what in one.seen.known],
                    lambda: [name for one in found for name in one.names])
    rows, scaled_ns = list[tuple[int, int, float, float, float]](), [dict[int, float]() for _ in changes.scales]
    for one in found:
        took, after = one.graph.took_ns.astype(float), one.graph.after_ns.astype(float)
        for by_rank, ns in zip(scaled_ns, _apply(one, changes, steps, took, after), strict=True):
            if ns:
                by_rank[one.rank] = ns
        rows += _rows(one, steps, took, after)
    for scale, by_rank in zip(changes.scales, scaled_ns, strict=True):
        if not by_rank:
            raise UsageError(f"--scale {scale.text!r} matches no work in steps {spans(steps)}")
    return Prediction(steps=steps, of_ranks=pl.DataFrame(rows, schema=SCHEMA, orient="row").sort("step", "rank"),
                      work=pl.DataFrame(schema={"rank": pl.Int64, "phase": pl.String, "module_path": pl.String,
                                                "steps": pl.Int64, "less_ns": pl.Int64}),
                      scaled_ns=scaled_ns, bandwidths=[], at_best_ns=None, deferral=None, clock_ns=0)


def _rows(one: RankReplay, steps: Sequence[int], took: Floats, after: Floats) -> (
        list[tuple[int, int, float, float, float]]):
    graph, number = one.graph, len(one.commands.start_ns)
    usual = graph.took_ns[:number].astype(float)
    measured, replayed, predicted = (one.lengths(begins) for begins in (
        graph.at_ns[:number] - graph.origin_ns - usual, graph.times(graph.took_ns, graph.after_ns)[:number] - usual,
        graph.times(took, after)[:number] - took[:number]))
    return [(border[0], one.rank, *lengths) for border, lengths in zip(
        one.borders, zip(measured, replayed, predicted, strict=True), strict=True) if border[0] in steps]


def _apply(one: RankReplay, changes: Changes, steps: Sequence[int], took: Floats, after: Floats) -> list[float]:
    """Changes `took` and `after` of a rank in place. Returns how long the work that matches each scale took, in ns."""
    number, found = len(one.commands.start_ns), list[float]()
    free, taken = np.ones(number, bool), NOTHING
    chosen = np.isin(one.step, list(steps))
    if changes.free_communication:
        talks = chosen & (one.commands.kind == COMMUNICATION)
        took[:number][talks], free = 0, free & ~talks
    before, rows = one.graph.sources[:, HOST], np.arange(len(took))
    on_host = np.flatnonzero((rows >= number) & (before >= 0))
    starts = one.graph.at_ns[before[on_host]]
    ends = starts + one.graph.after_ns[on_host, HOST]
    for scale in changes.scales:
        if not within(scale.rank, one.rank):
            found.append(0.0)
            continue
        mine = free & chosen & all_within(scale.step, one.step) & _commands_meant(one, scale)
        times = (_host_meant(one, scale) & _in_steps(one, scale, steps)) - taken
        spent: Array = times.within(starts, ends)
        found.append(float(took[:number][mine].sum() + spent.sum()))
        took[:number][mine] *= scale.factor
        after[on_host, HOST] += (scale.factor - 1) * spent
        free, taken = free & ~mine, taken | times
    return found


def _in_steps(one: RankReplay, scale: Scale, steps: Sequence[int]) -> Intervals:
    held = one.windows.filter(pl.col("step").is_in(list(steps)))
    held = held.filter(pl.Series(all_within(scale.step, held["step"].to_numpy()), dtype=pl.Boolean))
    return Intervals.of(held["start_ns"].to_numpy(), held["end_ns"].to_numpy())


def _host_meant(one: RankReplay, scale: Scale) -> Intervals:
    """Returns the times at which the host did matching work, whatever its device did."""
    found = one.seen.lane.intervals(labels_of(scale, one.seen.known))
    if not scale.needs_timeline:
        return Intervals.of(one.windows["start_ns"].to_numpy(), one.windows["end_ns"].to_numpy())
    return found if scale.op is None else _inside(one, scale) if scale.phase is None and scale.module is None else (
        found & _inside(one, scale))


def _inside(one: RankReplay, scale: Scale) -> Intervals:
    """Returns the times at which the host was in matching operators."""
    names = one.operators["name"].unique().to_list()
    named = one.operators.filter(pl.col("name").is_in(fitting(scale.op or "*", names)))
    starts = named["start_ns"].to_numpy()
    return Intervals.of(starts, starts + named["duration_ns"].to_numpy())


def _commands_meant(one: RankReplay, scale: Scale) -> Flags:
    """Returns which commands were launched by matching work, or have a matching name."""
    commands, found = one.commands, one.commands.call >= 0
    if scale.phase is not None or scale.module is not None:
        known, labels = one.seen.lane.at(commands.sent_ns)
        found = found & known & np.isin(labels, labels_of(scale, one.seen.known))
    if scale.op is not None:
        named = np.isin(commands.name, [place for place, name in enumerate(commands.names)
                                        if fitting(scale.op, [name])])
        found = found & (named | _inside(one, scale).covers(commands.sent_ns))
    return np.asarray(found, bool)
