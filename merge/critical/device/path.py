"""The critical paths of the steps of a rank's devices, with names, and what is not on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.merge.activity.activities import Activities, Activity, ActivityLane
from distprof.merge.activity.device.commands import Commands, commands_of
from distprof.merge.activity.device.steps import Span, spans_of, step_of_commands
from distprof.merge.activity.intervals import Intervals
from distprof.merge.activity.rank_activity import host_lane
from distprof.merge.critical.critical_path import OperatorsAt
from distprof.merge.critical.device.dependencies import as_one_thread, dependencies
from distprof.merge.critical.device.graph import NEVER, device_graph
from distprof.merge.critical.device.walk import HOST, RUNNING, Link, Walk, chain_of

SCHEMA = {"rank": pl.Int64(), "device": pl.String(), "step": pl.Int64(), "kind": pl.String(), "start_ns": pl.Int64(),
          "end_ns": pl.Int64(), "phase": pl.String(), "module_path": pl.String(), "op": pl.String(),
          "stream": pl.String()}
"""Links. `op`: a kernel or copy, or the host's operator; null for other links, and outside of operators."""
OFF = {"rank": pl.Int64(), "device": pl.String(), "step": pl.Int64(), "op": pl.String(), "phase": pl.String(),
       "module_path": pl.String(), "calls": pl.Int64(), "ns": pl.Int64(), "slack_ns": pl.Int64(),
       "median_slack_ns": pl.Int64()}
"""Commands that are not on the path, by name and by the module that launched them. `slack_ns`: smallest slack, that
is, how much longer one of them alone could take before a step of the device ends later. `median_slack_ns`: median
slack. Both are null if nothing later in the timeline waits for them."""
CALLS = {"rank": pl.Int64(), "device": pl.String(), "step": pl.Int64(), "name": pl.String(), "ns": pl.Int64()}
"""Runtime calls of the host while it is on the path."""
LINES = {"rank": pl.Int64(), "device": pl.String(), "step": pl.Int64(), "file": pl.String(), "line": pl.Int64(),
         "function": pl.String(), "samples": pl.Int64()}
"""Lines of the script in which samples found the host while it was on the path."""
STEPS = {"rank": pl.Int64(), "device": pl.String(), "step": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64(),
         "is_whole": pl.Boolean(), "unsent_ratio": pl.Float64(), "working_ns": pl.Int64(), "handovers": pl.Int64(),
         "host_slack_ns": pl.Int64()}
"""Device steps. `unsent_ratio`: share of the commands in it whose launch is unknown. `working_ns`: how long the host
did not wait for the device. `handovers`: how often the path moves to another stream. `host_slack_ns`: median slack of
its launches; null if nothing later in the timeline waits for them."""
FRAMES: dict[str, dict[str, Any]] = {"steps": STEPS, "links": SCHEMA, "off": OFF, "calls": CALLS, "lines": LINES}


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePath:
    """Critical paths of the devices of some ranks; times are on the common clock."""

    steps: pl.DataFrame
    """`STEPS`."""
    links: pl.DataFrame
    """`SCHEMA`, in order of time."""
    off: pl.DataFrame
    """`OFF`."""
    calls: pl.DataFrame
    """`CALLS`."""
    lines: pl.DataFrame
    """`LINES`."""
    lost: int = 0
    """Lower bound of the number of launches whose commands are missing in the timeline."""
    launches: int = 0
    """Number of all launches."""

    def of_steps(self, steps: pl.DataFrame) -> DevicePath:
        """Returns the paths of only these rows of `steps`."""
        keys = ["rank", "device", "step"]
        return replace(self, **{name: getattr(self, name).join(steps.select(keys), on=keys, how="semi")
                                for name in FRAMES})

    @classmethod
    def joined(cls, several: Sequence[DevicePath]) -> DevicePath:
        """Joins the paths of several ranks."""
        frames = {name: pl.concat([pl.DataFrame(schema=schema), *(getattr(one, name) for one in several)])
                  for name, schema in FRAMES.items()}
        return cls(**frames, **{name: sum(getattr(one, name) for one in several)
                                for name in ("lost", "launches")})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeen:
    """What a rank's timeline shows of its host, to name the links of paths."""

    lane: ActivityLane
    """Activities of the host over time; its labels are indices in `known`."""
    known: Sequence[Activity]
    operators: OperatorsAt

    @classmethod
    def of(cls, events: pl.DataFrame) -> DeviceSeen:
        """Reads the slices of a rank's timeline."""
        activities = Activities()
        lane = host_lane(events, activities)
        return cls(lane=lane, known=activities.known, operators=OperatorsAt(events, on_device=False))

    def activities(self, times: Integers) -> list[Activity]:
        """Returns the activity of the host at each of these times."""
        known, labels = self.lane.at(times)
        began, ended = (self.lane.starts[0], self.lane.ends[-1]) if len(self.lane.starts) else (0, 0)
        return [self.known[label] if is_known else Activity("host" if began <= time < ended else "unknown")
                for is_known, label, time in zip(known.tolist(), labels.tolist(), times.tolist(), strict=True)]


def device_path(rank: int, events: pl.DataFrame, windows: pl.DataFrame, samples: pl.DataFrame | None = None) -> (
        DevicePath | None):
    """Finds the paths of all device steps of a rank; None if its timeline has no command with a launch.

    Args:
        rank: Number of the rank.
        events: Slices of its timeline.
        windows: `WINDOWS`.
        samples: `at_ns`, `file`, `line` and `function` of the samples of its thread.
    """
    commands, windows = commands_of(as_one_thread(events)), windows.sort("start_ns")
    if commands is None or not (commands.call >= 0).any():
        return None
    found, seen = dependencies(commands), DeviceSeen.of(events)
    walk, of_step = Walk(commands, found), step_of_commands(commands, windows)
    chains = [one for device in range(len(commands.devices))
              for one in _chains(walk, commands, np.where(commands.device == device, of_step, -1), device, windows)]
    graph = device_graph(commands, found, cautious=True)
    late = graph.latest(one.deadline for one in chains if one.deadline is not None)
    slack = np.where(late < NEVER, np.maximum(late - graph.at_ns, 0), NEVER)
    blocked = found.waits.blocked
    waiting = Intervals.of(found.waits.began_ns[blocked], found.waits.ended_ns[blocked])
    frames: dict[str, list[pl.DataFrame]] = {name: [pl.DataFrame(schema=schema)] for name, schema in FRAMES.items()}
    for one in chains:
        names = {"rank": rank, "device": commands.devices[one.device], "step": one.span[0]}
        for name, frame in (("steps", _step(one, commands, slack, waiting)), ("links", _named(one, commands, seen)),
                            ("off", _off(one, commands, slack, seen)), ("calls", _calls(one, commands)),
                            ("lines", _lines(one, samples))):
            frames[name].append(frame.with_columns(**{key: pl.lit(value) for key, value in names.items()}).select(
                pl.col(key).cast(kind) for key, kind in FRAMES[name].items()))
    return DevicePath(**{name: pl.concat(parts) for name, parts in frames.items()}, lost=commands.lost,
                      launches=commands.launches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The path of a step of a device."""

    device: int
    span: Span
    commands: Integers
    """Commands that the step launched."""
    links: list[Link]
    deadline: tuple[int, int] | None
    """The command that must not end later, and its end; None if the host ends the step."""


def _chains(walk: Walk, commands: Commands, step: Integers, device: int, windows: pl.DataFrame) -> Iterator[Chain]:
    spans = spans_of(commands, step, windows) if (step >= 0).any() else []
    for span in spans:
        number, _, end, is_whole = span
        mine = np.flatnonzero(step == number)
        last = int(np.flatnonzero(step == number + 1)[0]) if is_whole else int(mine[np.argmax(commands.end_ns[mine])])
        ends = int(commands.end_ns[last])
        yield Chain(device=device, span=span, commands=mine, links=chain_of(walk, commands, span, last),
                    deadline=(last, ends) if is_whole or ends >= end else None)


def _step(chain: Chain, commands: Commands, slack: Integers, waiting: Intervals) -> pl.DataFrame:
    """Returns the row of a step in `STEPS`, without rank, device and step."""
    _, start, end, is_whole = chain.span
    launches = slack[len(commands.start_ns) + chain.commands]
    known = launches[launches < NEVER]
    here = (commands.device == chain.device) & (commands.start_ns >= start) & (commands.start_ns < end)
    streams = [int(commands.stream[one.command]) for one in chain.links if one.kind in RUNNING]
    return pl.DataFrame({
        "start_ns": [start], "end_ns": [end], "is_whole": [is_whole],
        "unsent_ratio": [float((commands.call[here] < 0).mean()) if here.any() else 0.0],
        "working_ns": [end - start - int(waiting.within(start, end))],
        "handovers": [sum(one != other for one, other in pairwise(streams))],
        "host_slack_ns": [int(np.median(known)) if len(known) else None]}, schema_overrides={"host_slack_ns": pl.Int64})


def _calls(chain: Chain, commands: Commands) -> pl.DataFrame:
    """Returns the runtime calls in which the host is on the path, with their time."""
    calls, starts, ends = commands.calls, *(
        [one[place] for one in chain.links if one.kind == HOST] for place in (1, 2))
    on_chain = Intervals.of(starts, ends)
    spent = on_chain.within(calls.start_ns, calls.end_ns)
    held = np.flatnonzero(spent)
    return pl.DataFrame({"name": [calls.names[name] for name in calls.name[held].tolist()], "ns": spent[held]},
                        schema={"name": pl.String, "ns": pl.Int64}).group_by("name").agg(pl.col("ns").sum()).sort(
                            "ns", "name", descending=[True, False])


def _lines(chain: Chain, samples: pl.DataFrame | None) -> pl.DataFrame:
    """Returns the lines of the script in which the host is on the path, with the number of samples."""
    if samples is None:
        return pl.DataFrame(schema={key: LINES[key] for key in list(LINES)[3:]})
    on_chain = Intervals.of(*([one[place] for one in chain.links if one.kind == HOST] for place in (1, 2)))
    seen = samples.filter(pl.Series(on_chain.covers(samples["at_ns"].to_numpy()), dtype=pl.Boolean))
    return seen.group_by("file", "line", "function").agg(samples=pl.len())


def _named(chain: Chain, commands: Commands, seen: DeviceSeen) -> pl.DataFrame:
    """Returns links with names; those of the host are cut where its activity or operator changes."""
    others = [one for one in chain.links if one.kind != HOST]
    command = np.array([one.command for one in others], np.int64)
    of = seen.activities(commands.sent_ns[command]) if others else []
    device = _frame([one.kind for one in others], [one.start_ns for one in others], [one.end_ns for one in others], of,
                    [commands.names[commands.name[one.command]] if one.kind in RUNNING else None for one in others],
                    [commands.streams[commands.stream[one]] for one in command.tolist()])
    return pl.concat([device, _of_host([one for one in chain.links if one.kind == HOST], seen)]).sort(
        "start_ns", "end_ns")


def _of_host(links: Sequence[Link], seen: DeviceSeen) -> pl.DataFrame:
    if not links:
        return _frame([], [], [], [], [], [])
    starts, ends = (np.array([one[place] for one in links], np.int64) for place in (1, 2))
    low, high, lane = int(starts[0]), int(ends[-1]), np.concatenate((seen.lane.starts, seen.lane.ends))
    edges = np.unique(np.concatenate((starts, ends, lane[(lane > low) & (lane < high)],
                                      seen.operators.edges(low, high))))
    inside = edges[:-1] < ends[np.searchsorted(starts, edges[:-1], "right") - 1]
    begins, stops = edges[:-1][inside], edges[1:][inside]
    return _frame([HOST] * len(begins), begins, stops, seen.activities(begins), seen.operators.at(begins),
                  [None] * len(begins))


def _frame(kind: Sequence[str], starts: Any, ends: Any, did: Sequence[Activity], op: Sequence[str | None],
           stream: Sequence[str | None]) -> pl.DataFrame:
    return pl.DataFrame({"kind": kind, "start_ns": starts, "end_ns": ends, "phase": [one.kind for one in did],
                         "module_path": [one.where for one in did], "op": op, "stream": stream},
                        schema={key: SCHEMA[key] for key in list(SCHEMA)[3:]})


def _off(chain: Chain, commands: Commands, slack: Integers, seen: DeviceSeen) -> pl.DataFrame:
    """Returns the commands of a step that are not on its path."""
    on = [one.command for one in chain.links if one.kind in RUNNING]
    mine = chain.commands[~np.isin(chain.commands, on)]
    of, spare = seen.activities(commands.sent_ns[mine]) if len(mine) else [], slack[mine]
    rows = pl.DataFrame({
        "op": [commands.names[name] for name in commands.name[mine].tolist()], "phase": [one.kind for one in of],
        "module_path": [one.where for one in of], "ns": commands.end_ns[mine] - commands.start_ns[mine],
        "slack": [ns if ns < NEVER else None for ns in spare.tolist()]},
        schema={"op": pl.String, "phase": pl.String, "module_path": pl.String, "ns": pl.Int64, "slack": pl.Int64})
    return rows.group_by("op", "phase", "module_path").agg(
        calls=pl.len(), ns=pl.col("ns").sum(), slack_ns=pl.col("slack").min(),
        median_slack_ns=pl.col("slack").median()).sort("ns", "op", "phase", "module_path", descending=[
            True, False, False, False])
