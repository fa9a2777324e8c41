"""Commands of the devices of a rank, and the calls of the host that sent them or waited for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Integers
from distprof.merge.activity.intervals import Intervals
from distprof.merge.match.backend_names import RUNTIME_CATEGORIES, communicates

COMPUTE, COMMUNICATION, COPY = range(3)
"""Kinds of commands; fills of memory count as copies."""
KERNEL = "kernel"
COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
RUNTIME = RUNTIME_CATEGORIES
"""Categories of torch.profiler, in lower case."""
SYNCHRONISES = frozenset(f"{prefix}{name}" for prefix in ("cuda", "hip") for name in (
    "StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "Memcpy", "Memcpy2D", "MemcpyWithStream")) | {
        "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"}
"""Calls that return when the device is so far."""
ORDERS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")
"""Calls that make a stream wait for an event."""
GRAPHS = ("cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch")
"""Calls that send all commands of a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of the runtime, by start; times in int64 ns."""

    name: Integers
    """A number of `names`."""
    names: list[str]
    start_ns: Integers
    end_ns: Integers
    thread: Integers
    """A number for each thread."""
    synchronises: Flags
    """True for those that return when the device is so far."""
    orders: Flags
    """True for those that make a stream wait for an event."""
    sends_graph: Flags
    """True for those that send a whole graph."""

    def at(self, times: Integers, rows: Integers) -> Integers:
        """Of these values of calls those of some rows; 0 where there is no such row."""
        return np.append(times, 0)[rows]  # -1 is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Kernels, copies and fills, by start, then by when they were asked for; times in int64 ns."""

    start_ns: Integers
    end_ns: Integers
    kind: Integers
    device: Integers
    """A number for each device of `devices`."""
    stream: Integers
    """A number for each stream of `streams`."""
    call: Integers
    """The row of `calls` that sent it; -1 where the timeline has no such call."""
    calls: Calls
    devices: list[str]
    streams: list[str]
    """Their names, as the profiler gives them."""

    def where(self, held: Array) -> Commands:
        """Those for which `held` is true."""
        arrays = ("start_ns", "end_ns", "kind", "device", "stream", "call")
        return Commands(**{one.name: getattr(self, one.name)[held] if one.name in arrays else getattr(self, one.name)
                           for one in fields(self)})

    @property
    def sent_ns(self) -> Integers:
        """When the call that sent each one began; 0 where that is not known."""
        return self.calls.at(self.calls.start_ns, self.call)

    @property
    def asked_ns(self) -> Integers:
        """When the call that sent each one had returned; 0 where that is not known."""
        return self.calls.at(self.calls.end_ns, self.call)

    def during(self, kind: int) -> Intervals:
        """When commands of a kind ran."""
        held = self.kind == kind
        return Intervals.of(self.start_ns[held], self.end_ns[held])


def commands_of(events: pl.DataFrame) -> Commands | None:
    """The commands in the slices of a rank; None without any.

    Args:
        events: `name`, `category`, `start_ns`, `duration_ns`, `correlation`, and `process` and `thread`, which for
            commands are device and stream.
    """
    category = pl.col("category").str.to_lowercase()
    on_device = events.filter(category.is_in((KERNEL, *COPIES)), pl.col("duration_ns") >= 0).sort("start_ns")
    if on_device.is_empty():
        return None
    rows = events.filter(category.is_in(RUNTIME), pl.col("duration_ns") >= 0).sort("start_ns")
    calls = calls_of(rows["name"], rows["start_ns"].to_numpy(), rows["duration_ns"].to_numpy(),
                     numbered(rows["thread"])[0])
    sent = rows.select("correlation", call=pl.int_range(pl.len(), dtype=pl.Int64)).drop_nulls().unique(
        "correlation", keep="last", maintain_order=True)
    joined = on_device.select("correlation").join(sent, on="correlation", how="left", maintain_order="left")
    device, devices = numbered(on_device["process"])
    stream, streams = numbered(on_device.select(pl.concat_str("process", "thread", separator="\n"))["process"])
    starts = on_device["start_ns"].to_numpy()
    return in_order(Commands(
        start_ns=starts, end_ns=starts + on_device["duration_ns"].to_numpy(),
        kind=kinds_of(on_device["name"], on_device.select(category.eq(KERNEL))["category"].to_numpy()),
        device=device, stream=stream, call=joined["call"].fill_null(-1).to_numpy(), calls=calls, devices=devices,
        streams=[re.split(r"\s", name)[-1] for name in streams]))


def in_order(commands: Commands) -> Commands:
    """The commands by start, then by when they were asked for."""
    return commands.where(np.lexsort((commands.asked_ns, commands.start_ns)))


def calls_of(names: pl.Series, start_ns: Integers, duration_ns: Integers, thread: Integers) -> Calls:
    """Calls from their names and times, by start."""
    synchronises, orders, sends_graph = (names.is_in(list(some)).fill_null(value=False).to_numpy()
                                         for some in (SYNCHRONISES, ORDERS, GRAPHS))
    name, known = numbered(names)
    return Calls(name=name, names=known, start_ns=start_ns, end_ns=start_ns + duration_ns, thread=thread,
                 synchronises=synchronises, orders=orders, sends_graph=sends_graph)


def kinds_of(names: pl.Series, is_kernel: Flags) -> Integers:
    """Kinds of commands from their names; `is_kernel` is false for copies and fills."""
    exchanging = [name for name in names.filter(pl.Series(is_kernel)).unique().to_list() if communicates(name or "")]
    is_communication = names.is_in(exchanging).fill_null(value=False).to_numpy()
    return np.where(~is_kernel, COPY, np.where(is_communication, COMMUNICATION, COMPUTE))


def numbered(texts: pl.Series) -> tuple[Integers, list[str]]:
    """A number for each text, and the texts by number."""
    filled = texts.cast(pl.String).fill_null("")
    known = filled.unique(maintain_order=True)
    return filled.replace_strict(known, pl.int_range(len(known), eager=True), return_dtype=pl.Int64).to_numpy(), (
        known.to_list())
