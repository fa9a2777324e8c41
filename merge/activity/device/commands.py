"""Commands of the devices of a rank, and the calls of the host that sent them or waited for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Integers
from distprof.merge.activity.intervals import Intervals
from distprof.merge.match.backend_names import RUNTIME_CATEGORIES, communicates
from distprof.merge.scan.made_events import without_version

COMPUTE, COMMUNICATION, COPY = range(3)
"""Kinds of commands; fills of memory count as copies."""
KERNEL = "kernel"
COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
RUNTIME = RUNTIME_CATEGORIES
"""Categories of torch.profiler, in lower case."""
_SYNCHRONISES = frozenset((
    *(f"{prefix}{name}" for prefix in ("cuda", "hip", "musa") for name in (
        "StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "Memcpy", "Memcpy2D", "MemcpyWithStream")),
    "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpyHtoD", "cuMemcpyDtoH", "hipMemcpyHtoD",
    "hipMemcpyDtoH", "urQueueFinish", "urEventWait", "piQueueFinish", "piEventsWait", "zeCommandQueueSynchronize",
    "zeCommandListHostSynchronize", "zeFenceHostSynchronize", "zeEventHostSynchronize"))
"""Calls of CUDA, HIP, MUSA and oneAPI that return when the device is so far."""
ORDERS = r"(?:cuda|hip|cu|musa)StreamWaitEvent|urEnqueueEventsWait\w*"
"""Calls that make a stream wait for an event; a pattern for whole names, as the next ones."""
GRAPHS = r"(?:cuda|hip|cu|musa)GraphLaunch(?:_v\d+|_pt[sd][sz])*|ur\w*CommandBuffer\w*Exp"
"""Calls that send all commands of a graph."""
CAPTURE = tuple(rf"(?:cuda|hip|cu|musa)Stream{what}Capture\w*" for what in ("Begin", "End"))
"""Calls between which launches make a graph."""
OF_ONE_KERNEL = r"(?:cuda|cu|hip|musa|ur|ze|pi)\w*(?:Launch(?:Cooperative)?Kernel|KernelLaunch)(?!MultiDevice)\w*"
"""Calls that send a single kernel."""


def synchronises(call: str) -> bool:
    """True for calls of a runtime that return when the device is so far."""
    return without_version(call) in _SYNCHRONISES


def of_names(pattern: str, names: Sequence[str]) -> Flags:
    """Whether each name of a call fits one of the patterns, and one value more, false, for no call."""
    compiled = re.compile(pattern)
    return np.array([compiled.fullmatch(without_version(name)) is not None for name in names] + [False], bool)


def of_single_kernels(call: Integers, single: Flags) -> Integers:
    """The calls that sent commands, -1 where several have one that sends a single kernel.

    ROCm may give kernels the correlation id of another launch, while no kernel has that of their own: which one such a
    call did send is not known.

    Args:
        call: For each command, the place of the call; -1 for none.
        single: Whether each call sends a single kernel, `of_names`.
    """
    number = np.bincount(call[call >= 0], minlength=len(single))
    return np.where(single[call] & (number[call] > 1), -1, call)


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
    sends_kernel: Flags
    """True for those that send one kernel."""

    def at(self, times: Integers, rows: Integers) -> Integers:
        """Of these values of calls those of some rows; 0 where there is no such row."""
        return np.append(times, 0)[rows]  # -1 is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Kernels, copies and fills, by start, then by when they were asked for; times in int64 ns."""

    start_ns: Integers
    end_ns: Integers
    kind: Integers
    name: Integers
    """A number of `names`."""
    device: Integers
    """A number for each device of `devices`."""
    stream: Integers
    """A number for each stream of `streams`."""
    call: Integers
    """The row of `calls` that sent it; -1 where the timeline has no such call."""
    calls: Calls
    names: list[str]
    devices: list[str]
    streams: list[str]
    """Their names, as the profiler gives them."""
    lost: int
    """See `lost_launches`."""
    launches: int

    def where(self, held: Array) -> Commands:
        """Those for which `held` is true."""
        arrays = ("start_ns", "end_ns", "kind", "name", "device", "stream", "call")
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
    """The commands in the slices of a rank; None without any, and without calls that could have sent some.

    Args:
        events: `name`, `category`, `start_ns`, `duration_ns`, `correlation`, and `process` and `thread`, which for
            commands are device and stream.
    """
    category = pl.col("category").str.to_lowercase()
    on_device = events.filter(category.is_in((KERNEL, *COPIES)), pl.col("duration_ns") >= 0).sort("start_ns")
    rows = events.filter(category.is_in(RUNTIME), pl.col("duration_ns") >= 0).sort("start_ns")
    if on_device.is_empty() and rows.is_empty():
        return None
    calls = calls_of(rows["name"], rows["start_ns"].to_numpy(), rows["duration_ns"].to_numpy(),
                     numbered(rows["thread"])[0])
    sent = rows.select("correlation", call=pl.int_range(pl.len(), dtype=pl.Int64)).filter(
        pl.col("correlation") > 0).unique("correlation", keep="last", maintain_order=True)
    joined = on_device.select("correlation").join(sent, on="correlation", how="left", maintain_order="left")
    device, devices = numbered(on_device["process"])
    name, names = numbered(on_device["name"])
    stream, streams = numbered(on_device.select(pl.concat_str("process", "thread", separator="\n"))["process"])
    starts = on_device["start_ns"].to_numpy()
    call = of_single_kernels(joined["call"].fill_null(-1).to_numpy(), np.append(calls.sends_kernel, False))
    lost, launches = lost_launches(calls, call)
    return in_order(Commands(
        start_ns=starts, end_ns=starts + on_device["duration_ns"].to_numpy(),
        kind=kinds_of(on_device["name"], on_device.select(category.eq(KERNEL))["category"].to_numpy()),
        name=name, device=device, stream=stream, call=call, lost=lost, launches=launches, calls=calls, names=names,
        devices=devices,
        streams=[re.split(r"\s", name)[-1] for name in streams]))


def lost_launches(calls: Calls, call: Integers) -> tuple[int, int]:
    """How many calls at least launch something that the timeline lacks, and how many launch kernels or graphs at all.

    Commands whose call is not known may be of such calls.

    Args:
        calls: Of a rank.
        call: The calls that sent its commands, -1 where that is not known.
    """
    begins, ends = (calls.start_ns[of_names(pattern, calls.names)[calls.name]] for pattern in CAPTURE)
    # between the two, launches only make nodes of a graph
    capturing = np.searchsorted(begins, calls.start_ns, "right") > np.searchsorted(ends, calls.start_ns, "right")
    launching = (calls.sends_kernel | calls.sends_graph) & ~capturing
    without = np.count_nonzero(launching & ~np.isin(np.arange(len(launching)), call))
    return max(int(without) - int(np.count_nonzero(call < 0)), 0), int(np.count_nonzero(launching))


def in_order(commands: Commands) -> Commands:
    """The commands by start, then by when they were asked for."""
    return commands.where(np.lexsort((commands.asked_ns, commands.start_ns)))


def calls_of(names: pl.Series, start_ns: Integers, duration_ns: Integers, thread: Integers) -> Calls:
    """Calls from their names and times, by start."""
    name, known = numbered(names)
    waits = np.array([synchronises(one) for one in known] + [False], bool)
    return Calls(name=name, names=known, start_ns=start_ns, end_ns=start_ns + duration_ns, thread=thread,
                 synchronises=waits[name], orders=of_names(ORDERS, known)[name],
                 sends_graph=of_names(GRAPHS, known)[name], sends_kernel=of_names(OF_ONE_KERNEL, known)[name])


def kinds_of(names: pl.Series, is_kernel: Flags) -> Integers:
    """Kinds of commands from their names; `is_kernel` is false for copies and fills."""
    exchanging = [name for name in names.filter(pl.Series(is_kernel)).unique().to_list() if communicates(name or "")]
    is_communication = names.is_in(exchanging).fill_null(value=False).to_numpy()
    return np.where(~is_kernel, COPY, np.where(is_communication, COMMUNICATION, COMPUTE))


def numbered(texts: pl.Series) -> tuple[Integers, list[str]]:
    """A number for each text, and the texts by number."""
    filled = texts.cast(pl.String).fill_null("")
    known = filled.unique(maintain_order=True)
    if filled.is_empty():
        return np.empty(0, np.int64), []
    return filled.replace_strict(known, pl.int_range(len(known), eager=True), return_dtype=pl.Int64).to_numpy(), (
        known.to_list())
