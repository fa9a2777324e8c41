"""When memory of tensors was allocated and freed, out of the profiler's instants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from distprof.units import size

DEVICES = {0: "cpu", 1: "cuda"}
"""torch's number of a type of device -> name."""


@dataclass(slots=True, kw_only=True)
class Lifetime:
    """One piece of memory."""

    address: int
    num_bytes: int
    device: str
    process: Any
    thread: Any
    start_ns: int
    end_ns: int | None = None
    """None: it was alive at the end."""


def device_of(args: dict[str, Any]) -> str:
    """`cpu`, `cuda:0`."""
    name = DEVICES.get(args.get("Device Type", -1), f"device {args.get('Device Type')}")
    return name if args.get("Device Id", -1) < 0 else f"{name}:{args['Device Id']}"


def lifetimes(instants: Iterable[tuple[int, dict[str, Any]]]) -> list[Lifetime]:
    """Pieces of memory that were allocated, in the order of their allocation.

    Args:
        instants: Time and event of each `[memory]`. What was freed and never allocated is of before.
    """
    found, alive = list[Lifetime](), dict[tuple[str, int], Lifetime]()
    for at_ns, event in sorted(instants, key=lambda one: one[0]):
        args = event.get("args", {})
        device, address, change = device_of(args), int(args.get("Addr", 0)), int(args.get("Bytes", 0))
        before = alive.pop((device, address), None)
        if before is not None:
            before.end_ns = at_ns
        if change > 0:
            one = Lifetime(address=address, num_bytes=change, device=device, process=event.get("pid"),
                           thread=event.get("tid"), start_ns=at_ns)
            alive[device, address] = one
            found.append(one)
    return found


def slices(found: Iterable[Lifetime], end_ns: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """An asynchronous slice for each."""
    for number, one in enumerate(found):
        common = {"cat": "TensorLifetime", "name": f"{size(one.num_bytes)} on {one.device}", "pid": one.process,
                  "tid": one.thread, "id": number}
        args = {"address": one.address, "bytes": one.num_bytes, "device": one.device, "freed": one.end_ns is not None}
        yield one.start_ns, {"ph": "b", **common, "args": args}
        yield end_ns if one.end_ns is None else one.end_ns, {"ph": "e", **common}


def counters(instants: Iterable[tuple[int, dict[str, Any]]], every: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Bytes allocated on each device, at each of so many changes."""
    for number, (at_ns, event) in enumerate(instants):
        args = event.get("args", {})
        if number % every == 0 and "Total Allocated" in args:
            yield at_ns, {"ph": "C", "name": f"{device_of(args)}_alloc_mem", "pid": event.get("pid"), "tid": 0,
                          "args": {"bytes": args["Total Allocated"]}}
