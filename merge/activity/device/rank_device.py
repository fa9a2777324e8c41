"""What the devices of one rank did in its steps, and what each stream waited for between its commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.merge.activity.activities import Activity, ActivityLane
from distprof.merge.activity.device.commands import COMMUNICATION, COMPUTE, COPY, Commands
from distprof.merge.activity.device.steps import (
    HANDOVER_NS,
    LATENCY_NS,
    OUTSIDE,
    SCHEMA,
    Idleness,
    Pauses,
    Span,
    asked_of,
    idleness_of,
    parts_of_spans,
    pauses_of,
    spans_of,
    step_of_commands,
    synchronisations,
)
from distprof.merge.activity.intervals import NOTHING, Intervals
from distprof.merge.match.backend_names import may_communicate

AWAITED = {COMMUNICATION: "for_communication", COPY: "for_copy", COMPUTE: "for_kernel"}
"""Kind of a command that a stream waits for -> name of the wait."""
EARLY_NS = 1000
"""A command may begin this much before its launch, because clocks of host and device differ."""
WHILE = ("running", "host", "sync", *AWAITED.values(), "latency", "unshown", "unsent")
"""What a stream does. for_...: it waits for a command of another stream, of this kind; the others are as for
devices."""
STREAMS = {"rank": pl.Int64, "device": pl.String, "stream": pl.String, "step": pl.Int64, "commands": pl.Int64,
           **{f"{one}_ns": pl.Int64 for one in WHILE}}
"""Columns of streams. The rest of a step is before the first command of the stream or after its last."""


def streams_of(commands: Commands, step: Integers, spans: list[Span]) -> list[dict[str, Any]]:
    """Returns a row per stream and step, for streams that have commands in the timeline.

    Args:
        commands: All commands of one device.
        step: Their `step_of_commands`.
        spans: Steps of the device.
    """
    starts, ends = (np.array([span[place] for span in spans], np.int64) for place in (1, 2))
    synchronising, found = synchronisations(commands), list[dict[str, Any]]()
    for stream in np.unique(commands.stream).tolist():
        mine = commands.stream == stream
        sets = _while_of(commands.where(mine), commands, synchronising)
        times = {f"{name}_ns": one.within(starts, ends).tolist() for name, one in sets.items()}
        found += [{"stream": commands.streams[stream], "step": span[0],
                   "commands": int(np.count_nonzero(step[mine] == span[0])),
                   **{name: values[place] for name, values in times.items()}} for place, span in enumerate(spans)]
    return found


def _while_of(mine: Commands, every: Commands, synchronising: Intervals) -> dict[str, Intervals]:
    pauses = pauses_of(mine)
    asked, known = asked_of(mine, pauses)
    # a call that returns after its command had ended was blocked by what the command waited for
    sent = np.where(mine.end_ns[pauses.behind] <= asked, mine.sent_ns[pauses.behind], asked)
    late, since = (np.where(known, np.clip(times, pauses.starts, pauses.ends), pauses.starts)
                   for times in (asked, sent))
    awaited = np.where(known & _was_ordered(mine, pauses), last_ended(every, since, pauses.ends), -1)
    late = np.where(awaited >= 0, since, late)
    done = np.where(awaited >= 0, every.end_ns[awaited], late)
    held = np.select([~known, (awaited >= 0) | (pauses.ends - late <= LATENCY_NS)], ["unsent", "latency"], "unshown")
    host = Intervals.of(pauses.starts[known], late[known])
    sets = {"running": Intervals.of(mine.start_ns, mine.end_ns), "host": host - synchronising,
            "sync": host & synchronising}
    sets |= {name: Intervals.of(done[held == name], pauses.ends[held == name])
             for name in ("latency", "unshown", "unsent")}
    for kind, name in AWAITED.items():
        chosen = (awaited >= 0) & (every.kind[awaited] == kind)
        sets[name] = Intervals.of(late[chosen], done[chosen])
    return sets


def last_ended(every: Commands, since: Integers, until: Integers) -> Integers:
    """Returns the command that ended last in each of these times, shortly before their end; -1 for none."""
    order = np.argsort(every.end_ns, kind="stable")
    place = np.searchsorted(every.end_ns[order], until, "right") - 1
    last = order[np.maximum(place, 0)]
    ended = every.end_ns[last]
    return np.where((place >= 0) & (ended > since) & (until - ended <= HANDOVER_NS), last, -1)


def _was_ordered(mine: Commands, pauses: Pauses) -> Any:
    """Returns whether a stream was made to wait between the launches around each pause, or one call launched both."""
    orders = mine.calls.start_ns[mine.calls.orders]  # by start, like all calls
    before, behind = mine.sent_ns[pauses.before], mine.sent_ns[pauses.behind]
    found = np.searchsorted(orders, behind) > np.searchsorted(orders, before)
    return found | (mine.call[pauses.before] == mine.call[pauses.behind])


DOING = {"rank": pl.Int64, "device": pl.String, "step": pl.Int64, "kind": pl.String, "where": pl.String,
         "idle_ns": pl.Int64}
"""What the host did while a device was idle because of it, as in `Activity`; both null if no slice tells."""
CALLS = {"rank": pl.Int64, "device": pl.String, "step": pl.Int64, "name": pl.String, "idle_ns": pl.Int64}
"""Calls of the runtime in which hosts were while a device was idle because of them."""
LINES = {"rank": pl.Int64, "device": pl.String, "step": pl.Int64, "file": pl.String, "line": pl.Int64,
         "function": pl.String, "samples": pl.Int64}
"""Lines of the script in which samples found the host while a device was idle because of it."""
ALIKE = {"rank": pl.Int64, "device": pl.String, "name": pl.String, "calls": pl.Int64, "time_ns": pl.Int64}
"""Kernels that look like communication but count as computing, within steps or not."""
WINDOWS = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "is_marked": pl.Boolean}
"""Steps of the host; `is_marked` is false if the whole trace counts as one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """What devices did; ranks without a device have no rows."""

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
    alike: pl.DataFrame
    """`ALIKE`."""

    @classmethod
    def joined(cls, several: Sequence[DeviceSteps]) -> DeviceSteps:
        """Joins the frames of several ranks."""
        return cls(**{name: pl.concat([pl.DataFrame(schema=schema), *(getattr(one, name) for one in several)])
                      for name, schema in FRAMES.items()})

    def of_steps(self, steps: Sequence[int]) -> DeviceSteps:
        """Returns only some steps."""
        chosen = pl.col("step").is_in(list(steps))
        return replace(self, **{name: getattr(self, name).filter(chosen) for name in FRAMES
                                if name not in ("outside", "alike")})

    def of_ranks(self, ranks: Sequence[int]) -> DeviceSteps:
        """Returns only some ranks."""
        chosen = pl.col("rank").is_in(list(ranks))
        return DeviceSteps(**{name: getattr(self, name).filter(chosen) for name in FRAMES})


FRAMES: dict[str, dict[str, Any]] = {"steps": SCHEMA, "outside": OUTSIDE, "streams": STREAMS, "doing": DOING,
                                     "calls": CALLS, "lines": LINES, "alike": ALIKE}
"""Name of each frame of `DeviceSteps` -> its schema."""
NO_DEVICES = DeviceSteps.joined(())


@dataclass(frozen=True, slots=True, kw_only=True)
class OnHost:
    """What the host did at the same time."""

    lane: ActivityLane | None = None
    """None if it is not considered."""
    known: Sequence[Activity] = ()
    """Activities by label of the lane."""
    waits: Intervals = NOTHING
    """When the rank was in a collective and another rank was not."""
    messages: Intervals = NOTHING
    """The part of `waits` in sends and receives."""
    samples: pl.DataFrame | None = None
    """`at_ns`, `file`, `line` and `function` of samples of the rank's thread; None if there are none."""


def device_steps(rank: int, commands: Commands, windows: pl.DataFrame, host: OnHost) -> DeviceSteps:
    """Determines what the devices of a rank did in its steps.

    Args:
        rank: Number of the rank.
        commands: Commands of all its devices.
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
        frames["outside"].append({**names, **_outside(mine, of_step), **_lost(commands, number)})
        frames["streams"] += [{**names, **row} for row in streams_of(mine, of_step, spans)]
        frames["doing"] += [{**names, **row} for row in _doing(spans, idleness, host)]
        frames["calls"] += [{**names, **row} for row in _calls(mine, spans, idleness)]
        frames["lines"] += [{**names, **row} for row in _lines(spans, idleness, host)]
        frames["alike"] += [{**names, **row} for row in _alike(mine)]
    if commands.lost and not commands.devices:
        frames["outside"].append({"rank": rank, "device": None, **_outside(commands, step), **_lost(commands, 0)})
    return DeviceSteps(**{name: pl.DataFrame(frames[name], schema=schema, orient="row")
                          for name, schema in FRAMES.items()})


def _steps(commands: Commands, step: Integers, spans: Sequence[Span], idleness: Idleness, host: OnHost) -> (
        Iterator[dict[str, Any]]):
    parts = {name: values.tolist() for name, values in parts_of_spans(
        commands, idleness, list(spans), host.waits, host.messages).items()}
    for place, (number, start, end, is_whole) in enumerate(spans):
        yield {"step": number, "start_ns": start, "device_step_ns": end - start, "is_whole": is_whole,
               "commands": int(np.count_nonzero(step == number)),
               **{name: values[place] for name, values in parts.items()}}


def _alike(commands: Commands) -> Iterator[dict[str, Any]]:
    is_computing = commands.kind == COMPUTE
    for number in np.unique(commands.name[is_computing]).tolist():
        if may_communicate(commands.names[number]):
            chosen = is_computing & (commands.name == number)
            yield {"name": commands.names[number], "calls": int(np.count_nonzero(chosen)),
                   "time_ns": int((commands.end_ns - commands.start_ns)[chosen].sum())}


def _outside(commands: Commands, step: Integers) -> dict[str, int]:
    took, unsent = commands.end_ns - commands.start_ns, commands.call < 0
    outside, ahead_ns = ~unsent & (step < 0), np.where(unsent, 0, commands.sent_ns - commands.start_ns)
    early = ahead_ns > EARLY_NS
    return {"unsent": int(unsent.sum()), "unsent_ns": int(took[unsent].sum()), "outside": int(outside.sum()),
            "outside_ns": int(took[outside].sum()), "early": int(early.sum()),
            "early_ns": int(ahead_ns[early].max(initial=0))}


def _lost(commands: Commands, device: int) -> dict[str, int]:
    return {"lost": commands.lost, "launches": commands.launches} if device == 0 else {"lost": 0, "launches": 0}


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
