"""Draws the queues of devices: a counter for each stream, of commands that the host sent and that have not begun."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.merge.chrome.drawing.drawn import CounterValue
from distprof.merge.chrome.rank_plan import RankPlan
from distprof.merge.operators.timeline.rank_timeline import read_timeline
from distprof.merge.run.run_model import Rank
from distprof.merge.waits.queues import queue_depths


def queue_values(plan: RankPlan) -> Iterator[CounterValue]:
    """The counters of a rank after each change, on the common clock: its trace is read once more."""
    timeline = read_timeline(Rank(number=plan.rank, folder=plan.trace.path.parent, trace=plan.trace))
    windows = plan.selection.windows_ns
    for stream, at_ns, depth in queue_depths(timeline):
        if windows is not None:
            kept = windows.meets(at_ns, at_ns)
            at_ns, depth = at_ns[kept], depth[kept]
        device, _, number = stream.partition(" ")
        for when, commands in zip(plan.clock.to_common(at_ns).tolist(), depth.tolist(), strict=True):
            yield CounterValue(f"queue GPU {device} stream {number}", "commands", when, commands)
