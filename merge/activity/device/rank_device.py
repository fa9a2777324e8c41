"""What the devices of one rank did in its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from distprof.merge.activity.activities import Activity, ActivityLane
from distprof.merge.activity.device.commands import Commands
from distprof.merge.activity.device.idleness import Idleness, idleness_of
from distprof.merge.activity.device.steps import (
    OUTSIDE,
    SCHEMA,
    Span,
    parts_of_spans,
    spans_of,
    step_of_commands,
)
from distprof.merge.activity.device.streams import STREAMS, streams_of
from distprof.merge.activity.intervals import NOTHING, Intervals

DOING = {"rank": pl.Int64, "device": pl.String, "step": pl.Int64, "kind": pl.String, "where": pl.String,
         "idle_ns": pl.Int64}
"""What the host did while a device was idle because of it: `Activity`; both null where no slice tells."""
CALLS = {"rank": pl.Int64, "device": pl.String, "step": pl.Int64, "name": pl.String, "idle_ns": pl.Int64}
"""Calls of the runtime that hosts were in while a device was idle because of them."""
LINES = {"rank": pl.Int64, "device": pl.String, "step": pl.Int64, "file": pl.String, "line": pl.Int64,
         "function": pl.String, "samples": pl.Int64}
"""Lines of the script in which samples found the host while a device was idle because of it."""
WINDOWS = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "is_marked": pl.Boolean}
"""Steps of the host; `is_marked` is false where a whole trace counts as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """What devices did; nothing of ranks without one."""

    steps: pl.DataFrame
    """`SCHEMA`."""
    outside: pl.DataFrame
    """`OUTSIDE`."""
    streams: pl.DataFrame
    """`STREAMS`."""
    doing: pl.DataFrame
    """`DOING`."""
    calls: pl.DataFrame
    """`CALLS`."""
    lines: pl.DataFrame
    """`LINES`."""

    @classmethod
    def joined(cls, several: Sequence[DeviceSteps]) -> DeviceSteps:
        """Those of several ranks."""
        return cls(**{name: pl.concat([pl.DataFrame(schema=schema), *(getattr(one, name) for one in several)])
                      for name, schema in FRAMES.items()})

    def of_steps(self, steps: Sequence[int]) -> DeviceSteps:
        """Some steps alone."""
        chosen = pl.col("step").is_in(list(steps))
        return replace(self, **{name: getattr(self, name).filter(chosen) for name in FRAMES if name != "outside"})

    def of_ranks(self, ranks: Sequence[int]) -> DeviceSteps:
        """Some ranks alone."""
        chosen = pl.col("rank").is_in(list(ranks))
        return DeviceSteps(**{name: getattr(self, name).filter(chosen) for name in FRAMES})


FRAMES: dict[str, dict[str, Any]] = {"steps": SCHEMA, "outside": OUTSIDE, "streams": STREAMS, "doing": DOING,
                                     "calls": CALLS, "lines": LINES}
NO_DEVICES = DeviceSteps.joined(())


@dataclass(frozen=True, slots=True, kw_only=True)
class OnHost:
    """What the host did meanwhile."""

    lane: ActivityLane | None = None
    """None where that is not looked at."""
    known: Sequence[Activity] = ()
    """Its labels are places in here."""
    waits: Intervals = NOTHING
    """When the rank was in a collective and another one was not."""
    messages: Intervals = NOTHING
    """The part of it in sends and receives."""
    samples: pl.DataFrame | None = None
    """`at_ns`, `file`, `line` and `function` of samples of its thread; None without any."""


def device_steps(rank: int, commands: Commands, windows: pl.DataFrame, host: OnHost) -> DeviceSteps:
    """What the devices of a rank did in its steps.

    Args:
        rank: Its number.
        commands: All of its devices.
        windows: `WINDOWS`.
        host: What its host did.
    """
    windows = windows.sort("start_ns")
    step, is_marked = step_of_commands(commands, windows), bool(windows["is_marked"].all())
    frames: dict[str, list[dict[str, Any]]] = {name: [] for name in FRAMES}
    for number, device in enumerate(commands.devices):
        chosen = commands.device == number
        mine, of_step = commands.where(chosen), step[chosen]
        names = {"rank": rank, "device": device}
        spans = spans_of(mine, of_step, windows)
        idleness = idleness_of(mine, max((span[2] for span in spans), default=0))
        frames["steps"] += [{**names, "is_marked": is_marked, **row}
                            for row in _steps(mine, of_step, spans, idleness, host)]
        frames["outside"].append({**names, **_outside(mine, of_step)})
        frames["streams"] += [{**names, **row} for row in streams_of(mine, of_step, spans)]
        frames["doing"] += [{**names, **row} for row in _doing(spans, idleness, host)]
        frames["calls"] += [{**names, **row} for row in _calls(mine, spans, idleness)]
        frames["lines"] += [{**names, **row} for row in _lines(spans, idleness, host)]
    return DeviceSteps(**{name: pl.DataFrame(frames[name], schema=schema, orient="row")
                          for name, schema in FRAMES.items()})


def _steps(commands: Commands, step: Any, spans: Sequence[Span], idleness: Idleness, host: OnHost) -> (
        Iterator[dict[str, Any]]):
    parts = {name: values.tolist() for name, values in parts_of_spans(
        commands, idleness, list(spans), host.waits, host.messages).items()}
    for place, (number, start, end, is_whole) in enumerate(spans):
        yield {"step": number, "start_ns": start, "device_step_ns": end - start, "is_whole": is_whole,
               "commands": int(np.count_nonzero(step == number)),
               **{name: values[place] for name, values in parts.items()}}


def _outside(commands: Commands, step: Any) -> dict[str, int]:
    took, unsent = commands.end_ns - commands.start_ns, commands.call < 0
    outside = ~unsent & (step < 0)
    return {"unsent": int(unsent.sum()), "unsent_ns": int(took[unsent].sum()), "outside": int(outside.sum()),
            "outside_ns": int(took[outside].sum())}


def _doing(spans: Sequence[Span], idleness: Idleness, host: OnHost) -> Iterator[dict[str, Any]]:
    late = idleness.causes["host"]
    if host.lane is None:
        return
    lane = host.lane.within(late)
    for number, start, end, _ in spans:
        spent = lane.split(start, end)
        rest = int(late.within(start, end)) - sum(spent.values())
        found = [(host.known[label], ns) for label, ns in spent.items()]
        yield from ({"step": number, "kind": one.kind, "where": one.where, "idle_ns": ns} for one, ns in found)
        if rest:
            yield {"step": number, "kind": None, "where": None, "idle_ns": rest}


def _calls(commands: Commands, spans: Sequence[Span], idleness: Idleness) -> Iterator[dict[str, Any]]:
    late, calls = idleness.causes["host"], commands.calls
    starts, ends = (np.array([span[place] for span in spans], np.int64) for place in (1, 2))
    for number, name in enumerate(calls.names):
        held = calls.name == number
        spent = (Intervals.of(calls.start_ns[held], calls.end_ns[held]) & late).within(starts, ends).tolist()
        yield from ({"step": span[0], "name": name, "idle_ns": ns} for span, ns in zip(spans, spent, strict=True) if ns)


def _lines(spans: Sequence[Span], idleness: Idleness, host: OnHost) -> Iterator[dict[str, Any]]:
    if host.samples is None or host.samples.is_empty():
        return
    late = idleness.causes["host"]
    seen = host.samples.filter(pl.Series(late.covers(host.samples["at_ns"].to_numpy()), dtype=pl.Boolean))
    for number, start, end, _ in spans:
        here = seen.filter(pl.col("at_ns").is_between(start, end, closed="left"))
        yield from ({"step": number, **row} for row in here.group_by("file", "line", "function").agg(
            samples=pl.len()).to_dicts())
