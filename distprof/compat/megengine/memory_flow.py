"""Allocations of tensors, and a drawing of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

from distprof.units import duration, size

DEVICES = {0: "cpu", 1: "cuda"}
"""torch's number of a device type -> name."""


@dataclass(slots=True, kw_only=True)
class Lifetime:
    """One allocation."""

    address: int
    num_bytes: int
    device: str
    process: Any
    thread: Any
    start_ns: int
    end_ns: int | None = None
    """None if it was still allocated at the end."""


def device_of(args: dict[str, Any]) -> str:
    """Returns the device of an event, like `cpu` or `cuda:0`."""
    name = DEVICES.get(args.get("Device Type", -1), f"device {args.get('Device Type')}")
    return name if args.get("Device Id", -1) < 0 else f"{name}:{args['Device Id']}"


def lifetimes(instants: Iterable[tuple[int, dict[str, Any]]]) -> list[Lifetime]:
    """Returns allocations, in order.

    Args:
        instants: Time and event of each `[memory]`. Memory that is freed without having been allocated is ignored, as
            it is older.
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
    """Yields an asynchronous slice for each allocation."""
    for number, one in enumerate(found):
        common = {"cat": "TensorLifetime", "name": f"{size(one.num_bytes)} on {one.device}", "pid": one.process,
                  "tid": one.thread, "id": number}
        args = {"address": one.address, "bytes": one.num_bytes, "device": one.device, "freed": one.end_ns is not None}
        yield one.start_ns, {"ph": "b", **common, "args": args}
        yield end_ns if one.end_ns is None else one.end_ns, {"ph": "e", **common}


def counters(instants: Iterable[tuple[int, dict[str, Any]]], every: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the bytes allocated on a device, at one of `every` changes."""
    for number, (at_ns, event) in enumerate(instants):
        args = event.get("args", {})
        if number % every == 0 and "Total Allocated" in args:
            yield at_ns, {"ph": "C", "name": f"{device_of(args)}_alloc_mem", "pid": event.get("pid"), "tid": 0,
                          "args": {"bytes": args["Total Allocated"]}}


NS_PER_PIXEL, BYTES_PER_PIXEL, GAP = 100_000, 1_000_000, 4.0
THINNEST = 0.2
"""Minimum width and height of a rectangle, in pixels."""
GREYS = ((0, "#f0f0f0"), (100_000, "#d0d0d0"), (1_000_000, "#b0b0b0"), (10_000_000, "#909090"),
         (100_000_000, "#606060"), (1_000_000_000, "#303030"))
"""Colours of rectangles, and the lifetimes in ns from which they apply."""
NAMESPACE = "urn:distprof:tag"


def memory_flow(found: Sequence[Lifetime], start_ns: int, end_ns: int) -> str:
    """Returns an SVG file; attributes `tag:...` of a rectangle describe its tensor."""
    tops, height = _rows(found)
    width = max((end_ns - start_ns) / NS_PER_PIXEL, 1.0)
    body = "\n".join(_rectangles(found, tops, start_ns, end_ns))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:tag="{NAMESPACE}" width="{width:.1f}" '
            f'height="{height:.1f}" tag:start="{start_ns}" tag:end="{end_ns}">\n{body}\n</svg>\n')


def _rectangles(found: Sequence[Lifetime], tops: Sequence[float], start_ns: int, end_ns: int) -> Iterator[str]:
    for number, (one, top) in enumerate(zip(found, tops, strict=True)):
        until = end_ns if one.end_ns is None else one.end_ns
        lived = until - one.start_ns
        tags = {"type": "tensor", "name": f"tensor {number}", "address": hex(one.address), "size": size(one.num_bytes),
                "bytes": str(one.num_bytes), "produced": duration(one.start_ns - start_ns),
                "erased": "" if one.end_ns is None else duration(one.end_ns - start_ns), "duration": duration(lived),
                "group": one.device}
        colour = next(grey for least, grey in reversed(GREYS) if max(lived, 0) >= least)
        yield (f'<rect x="{(one.start_ns - start_ns) / NS_PER_PIXEL:.2f}" y="{top:.2f}" '
               f'width="{max(lived / NS_PER_PIXEL, THINNEST):.2f}" '
               f'height="{max(one.num_bytes / BYTES_PER_PIXEL, THINNEST):.2f}" fill="{colour}" '
               + " ".join(f"tag:{name}={quoteattr(text)}" for name, text in tags.items()) + "/>")


def _rows(found: Sequence[Lifetime]) -> tuple[list[float], float]:
    """Returns the upper edge of each rectangle, and the total height. Unused addresses take at most a few pixels."""
    tops, bottom, device, behind = [0.0] * len(found), 0.0, "", 0
    for number in sorted(range(len(found)), key=lambda one: (found[one].device, found[one].address)):
        one = found[number]
        if one.device != device:
            device, behind, bottom = one.device, one.address, bottom + GAP
        gap = one.address - behind
        if gap > 0:
            bottom += min(gap / BYTES_PER_PIXEL, GAP)
            behind = one.address
        tops[number] = bottom + gap / BYTES_PER_PIXEL if gap < 0 else bottom
        end = one.address + one.num_bytes
        if end > behind:
            bottom, behind = bottom + (end - behind) / BYTES_PER_PIXEL, end
    return tops, bottom + GAP
