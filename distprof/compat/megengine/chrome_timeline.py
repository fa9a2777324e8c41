"""The Chrome trace of a profiled region: events of the selected topics, and the clock for comparing files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from distprof.compat.megengine.memory_flow import Lifetime, counters, lifetimes, slices
from distprof.contract.passes import Topic
from distprof.contract.tables import COMPILE_SLICE_END
from distprof.process.identity import Identity

DEFAULT = Topic.OPERATOR | Topic.SCOPE
READS = frozenset(("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"))
"""Operators that return a tensor's value to the script."""
BLOCKING = READS | {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"}
"""Operators that make the host wait, because their results depend on values."""
BLOCKING_CALLS = ("Synchronize", "cudaMemcpy")
"""Occur in names of runtime calls that wait; `cudaMemcpyAsync` does not wait."""
BY_CATEGORY = {
    "kernel": Topic.OPERATOR, "gpu_memcpy": Topic.OPERATOR, "gpu_memset": Topic.OPERATOR, "fwdbwd": Topic.OPERATOR,
    "cuda_runtime": Topic.COMMAND, "cuda_driver": Topic.COMMAND, "ac2g": Topic.COMMAND | Topic.OPERATOR,
    "user_annotation": Topic.SCOPE, "gpu_user_annotation": Topic.SCOPE}


def topics_of(category: str, name: str) -> Topic:
    """Returns the topics of a torch.profiler event; an empty one if no topic shows it."""
    if name.endswith(COMPILE_SLICE_END):
        return Topic.SHAPE_INFER
    found = BY_CATEGORY.get(category, Topic(0))
    if category == "cpu_op":
        found = Topic.OPERATOR
        found |= Topic.TENSOR_PROP if name in READS else Topic(0)
        found |= Topic.SYNC if name in BLOCKING else Topic(0)
    if category in ("cuda_runtime", "cuda_driver") and _waits(name):
        found |= Topic.SYNC
    return found


def wanted(event: dict[str, Any], topic: Topic) -> bool:
    """Returns whether one of the topics shows an event; an arrow requires the topics of both its ends."""
    found = topics_of(str(event.get("cat", "")), str(event.get("name", "")))
    return bool(found) and (found & topic == found if event.get("ph") in ("s", "f") else bool(found & topic))


def _waits(name: str) -> bool:
    return any(part in name for part in BLOCKING_CALLS) and "Async" not in name


MEMORY_EVENT = "[memory]"
KEPT = ("deviceProperties", "host_name", "displayTimeUnit")
"""Top-level keys of Kineto's trace that are kept."""
Timed = Iterator[tuple[int, dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How to write a timeline."""

    topic: Topic
    align_time: bool
    """Whether times are since the epoch, rather than since the start."""
    show_operator_name: bool
    """False to call each operator `Operator`."""
    with_backtrace: bool
    sample_rate: int
    """The memory counter has one of this number of changes; 0: all changes, if the topic MEMORY is on."""


class Recorded:
    """Kineto's trace of a region."""

    def __init__(self, text: bytes, start_ns: int, end_ns: int) -> None:
        """Reads the trace; `start_ns` and `end_ns` are since the epoch."""
        self._trace: dict[str, Any] = msgspec.json.decode(text)
        self.start_ns, self.end_ns = start_ns, end_ns

    def lifetimes(self) -> list[Lifetime]:
        """Returns the allocations of tensors."""
        return lifetimes(self._memory())

    def chrome_timeline(self, look: Look) -> bytes:
        """Returns a trace for Chrome, Perfetto, `distprof merge` and `distprof ops`."""
        zero_ns = 0 if look.align_time else self.start_ns
        identity = Identity.read()
        return msgspec.json.encode({
            **{key: self._trace[key] for key in KEPT if key in self._trace}, "schemaVersion": 1,
            "baseTimeNanoseconds": zero_ns,
            "distributedInfo": {"rank": identity.rank, "world_size": identity.world_size},
            # the time of ts 0, by which merge_trace_events aligns files
            "metadata": {"localTime": str(zero_ns), "startTime": str(self.start_ns)},
            "traceEvents": [*self._names(), *(_at(event, at_ns - zero_ns) for at_ns, event in self._events(look))]})

    def _names(self) -> Iterator[dict[str, Any]]:
        for event in self._trace["traceEvents"]:
            if event.get("ph") == "M":
                yield {key: value for key, value in event.items() if key != "ts"}

    def _events(self, look: Look) -> Timed:
        for at_ns, event in self._timed():
            if wanted(event, look.topic) or (look.with_backtrace and event.get("cat") == "python_function"):
                is_renamed = not look.show_operator_name and event.get("cat") == "cpu_op"
                yield at_ns, event | {"name": "Operator"} if is_renamed else event
        if Topic.TENSOR_LIFETIME in look.topic:
            yield from slices(self.lifetimes(), self.end_ns)
        if Topic.MEMORY in look.topic or look.sample_rate:
            yield from counters(self._memory(), look.sample_rate or 1)

    def _memory(self) -> list[tuple[int, dict[str, Any]]]:
        return [(at_ns, event) for at_ns, event in self._timed() if event.get("name") == MEMORY_EVENT
                and event.get("ph") == "i"]

    def _timed(self) -> Timed:
        base_ns = int(self._trace.get("baseTimeNanoseconds", 0))
        for event in self._trace["traceEvents"]:
            if event.get("ph") != "M" and "ts" in event:
                yield base_ns + round(event["ts"] * 1000), event


def _at(event: dict[str, Any], ns: int) -> dict[str, Any]:
    # as text: a double cannot represent nanoseconds since the epoch
    sign, ns = ("-" if ns < 0 else ""), abs(ns)
    return event | {"ts": msgspec.Raw(f"{sign}{ns // 1000}.{ns % 1000:03d}".encode())}
