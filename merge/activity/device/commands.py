"""Commands of the devices of a rank, and the calls of the host that launched them or waited for them."""

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
"""Kinds of commands; memory fills count as copies."""
KERNEL = "kernel"
"""Category of kernels."""
COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
"""Categories of copies and fills."""
RUNTIME = RUNTIME_CATEGORIES
"""Categories of runtime calls in torch.profiler, in lower case."""
_SYNCHRONISES = frozenset((
    *(f"{prefix}{name}" for prefix in ("cuda", "hip", "musa") for name in (
        "StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "Memcpy", "Memcpy2D", "MemcpyWithStream")),
    "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpyHtoD", "cuMemcpyDtoH", "hipMemcpyHtoD",
    "hipMemcpyDtoH", "urQueueFinish", "urEventWait", "piQueueFinish", "piEventsWait", "zeCommandQueueSynchronize",
    "zeCommandListHostSynchronize", "zeFenceHostSynchronize", "zeEventHostSynchronize"))
"""Calls of CUDA, HIP, MUSA and oneAPI that return when the device has reached a point (synchronisations)."""
ORDERS = r"(?:cuda|hip|cu|musa)StreamWaitEvent|urEnqueueEventsWait\w*"
"""Pattern for the whole names (like the patterns below) of calls that make a stream wait for an event."""
GRAPHS = r"(?:cuda|hip|cu|musa)GraphLaunch(?:_v\d+|_pt[sd][sz])*|ur\w*CommandBuffer\w*Exp"
"""Calls that launch all commands of a graph."""
CAPTURE = tuple(rf"(?:cuda|hip|cu|musa)Stream{what}Capture\w*" for what in ("Begin", "End"))
"""Begin and end of captures: launches in between add nodes to a graph."""
OF_ONE_KERNEL = r"(?:cuda|cu|hip|musa|ur|ze|pi)\w*(?:Launch(?:Cooperative)?Kernel|KernelLaunch)(?!MultiDevice)\w*"
"""Calls that launch a single kernel."""


def synchronises(call: str) -> bool:
    """Returns True for runtime calls that return when the device has reached a point."""
    return without_version(call) in _SYNCHRONISES


def of_names(pattern: str, names: Sequence[str]) -> Flags:
    """Returns whether each name fully matches a pattern, plus a final False that stands for no call."""
    compiled = re.compile(pattern)
    return np.array([compiled.fullmatch(without_version(name)) is not None for name in names] + [False], bool)


def of_single_kernels(call: Integers, single: Flags) -> Integers:
    """Replaces by -1 calls that several commands claim although such a call launches a single kernel.

    ROCm may give kernels the correlation id of another launch, although no kernel has that launch's own id. Then it is
    unknown which kernel such a call launched.

    Args:
        call: For each command, the index of its call; -1 for none.
        single: Whether each call launches a single kernel, from `of_names`.
    """
    number = np.bincount(call[call >= 0], minlength=len(single))
    return np.where(single[call] & (number[call] > 1), -1, call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of the runtime, by start; times in int64 ns."""

    name: Integers
    """Index into `names`."""
    names: list[str]
    start_ns: Integers
    end_ns: Integers
    thread: Integers
    """Number of the thread."""
    synchronises: Flags
    """True for calls that return when the device has reached a point."""
    orders: Flags
    """True for calls that make a stream wait for an event."""
    sends_graph: Flags
    """True for calls that launch a whole graph."""
    sends_kernel: Flags
    """True for calls that launch one kernel."""

    def at(self, times: Integers, rows: Integers) -> Integers:
        """Returns the values of some rows; 0 where the row is -1."""
        return np.append(times, 0)[rows]  # -1 is the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Kernels, copies and fills, by start, then by when their launch returned; times in int64 ns."""

    start_ns: Integers
    end_ns: Integers
    kind: Integers
    name: Integers
    """Index into `names`."""
    device: Integers
    """Index into `devices`."""
    stream: Integers
    """Index into `streams`."""
    call: Integers
    """Row in `calls` of the call that launched it; -1 if the timeline has no such call."""
    calls: Calls
    names: list[str]
    devices: list[str]
    streams: list[str]
    """Names of the streams in the profiler."""
    lost: int
    """See `lost_launches`."""
    launches: int

    def where(self, held: Array) -> Commands:
        """Returns the commands for which `held` is true."""
        arrays = ("start_ns", "end_ns", "kind", "name", "device", "stream", "call")
        return Commands(**{one.name: getattr(self, one.name)[held] if one.name in arrays else getattr(self, one.name)
                           for one in fields(self)})

    @property
    def sent_ns(self) -> Integers:
        """When the call that launched each command began; 0 if not known."""
        return self.calls.at(self.calls.start_ns, self.call)

    @property
    def asked_ns(self) -> Integers:
        """When the call that launched each command had returned; 0 if not known."""
        return self.calls.at(self.calls.end_ns, self.call)

    def during(self, kind: int) -> Intervals:
        """Returns when commands of a kind ran."""
        held = self.kind == kind
        return Intervals.of(self.start_ns[held], self.end_ns[held])


def commands_of(events: pl.DataFrame) -> Commands | None:
    """Returns the commands in a rank's slices; None if there are neither commands nor calls that could launch some.

    Args:
        events: `name`, `category`, `start_ns`, `duration_ns`, `correlation`, and `process` and `thread`, which are
            device and stream for commands.
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
    """Returns a lower bound of the number of launches whose commands the timeline lacks, and the number of all
    launches.

    Commands with unknown calls may belong to such launches.

    Args:
        calls: Calls of a rank.
        call: The calls that launched its commands, -1 if not known.
    """
    begins, ends = (calls.start_ns[of_names(pattern, calls.names)[calls.name]] for pattern in CAPTURE)
    # in between, launches only add nodes to a graph
    capturing = np.searchsorted(begins, calls.start_ns, "right") > np.searchsorted(ends, calls.start_ns, "right")
    launching = (calls.sends_kernel | calls.sends_graph) & ~capturing
    without = np.count_nonzero(launching & ~np.isin(np.arange(len(launching)), call))
    return max(int(without) - int(np.count_nonzero(call < 0)), 0), int(np.count_nonzero(launching))


def in_order(commands: Commands) -> Commands:
    """Sorts commands by start, then by when their launch returned."""
    return commands.where(np.lexsort((commands.asked_ns, commands.start_ns)))


def calls_of(names: pl.Series, start_ns: Integers, duration_ns: Integers, thread: Integers) -> Calls:
    """Makes calls from their names and times, by start."""
    name, known = numbered(names)
    waits = np.array([synchronises(one) for one in known] + [False], bool)
    return Calls(name=name, names=known, start_ns=start_ns, end_ns=start_ns + duration_ns, thread=thread,
                 synchronises=waits[name], orders=of_names(ORDERS, known)[name],
                 sends_graph=of_names(GRAPHS, known)[name], sends_kernel=of_names(OF_ONE_KERNEL, known)[name])


def kinds_of(names: pl.Series, is_kernel: Flags) -> Integers:
    """Returns the kinds of commands from their names; `is_kernel` is false for copies and fills."""
    exchanging = [name for name in names.filter(pl.Series(is_kernel)).unique().to_list() if communicates(name or "")]
    is_communication = names.is_in(exchanging).fill_null(value=False).to_numpy()
    return np.where(~is_kernel, COPY, np.where(is_communication, COMMUNICATION, COMPUTE))


def numbered(texts: pl.Series) -> tuple[Integers, list[str]]:
    """Returns a number for each text, and the texts by number."""
    filled = texts.cast(pl.String).fill_null("")
    known = filled.unique(maintain_order=True)
    if filled.is_empty():
        return np.empty(0, np.int64), []
    return filled.replace_strict(known, pl.int_range(len(known), eager=True), return_dtype=pl.Int64).to_numpy(), (
        known.to_list())
