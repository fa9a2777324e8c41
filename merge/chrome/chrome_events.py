"""Chrome events of what the merge draws itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from distprof.merge.chrome.drawing import DRAWN, PROCESS, CounterValue, DrawnCollective, DrawnSlice
from distprof.merge.chrome.numbering import Lanes

FIRST_ARROW = 1 << 52
"""Ids of arrows between ranks start here; those within ranks are below, and a double holds twice as many exactly."""


def microseconds(ns: int) -> msgspec.Raw:
    """As Chrome has times, exact to the nanosecond."""
    return msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))


def slice_event(what: DrawnSlice, pid: int, tid: int, origin_ns: int,
                args: dict[str, Any] | None = None) -> dict[str, object]:
    """A slice; what lies before the origin is cut."""
    start_ns = max(what.start_ns - origin_ns, 0)
    return {"ph": "X", "cat": DRAWN, "name": what.name, "pid": pid, "tid": tid, "ts": microseconds(start_ns),
            "dur": microseconds(max(what.end_ns - origin_ns - start_ns, 0)), **({} if args is None else {"args": args})}


def collective_events(drawn: Iterable[DrawnCollective], lanes: Lanes, origin_ns: int) -> Iterator[dict[str, object]]:
    """Slices on threads of the rank's first process, with the ends of arrows behind the slices they belong to."""
    for one in drawn:
        thread = lanes.extra(one.thread)
        yield slice_event(one.slice, thread.pid, thread.tid, origin_ns, one.args)
        for part in one.parts:
            yield slice_event(part, thread.pid, thread.tid, origin_ns)
        for arrow in one.arrows:
            yield {"ph": arrow.phase, "cat": DRAWN, "name": "waited for", "id": FIRST_ARROW + arrow.number,
                   "pid": thread.pid, "tid": thread.tid, "ts": microseconds(arrow.at_ns - origin_ns),
                   **({"bp": "e"} if arrow.phase == "f" else {})}


def counter_events(samples: Sequence[CounterValue], pid: int, origin_ns: int) -> Iterator[dict[str, object]]:
    """A process of its own, above those of the ranks, with its counters."""
    if not samples:
        return
    for name, args in (("process_name", {"name": PROCESS}), ("process_sort_index", {"sort_index": -1})):
        yield {"ph": "M", "name": name, "pid": pid, "args": args}
    for sample in samples:
        yield {"ph": "C", "cat": DRAWN, "name": sample.what, "pid": pid,
               "ts": microseconds(max(sample.at_ns - origin_ns, 0)), "args": {sample.state: sample.value}}
