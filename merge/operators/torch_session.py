"""What torch.profiler makes its tables from: the slices that it counts, allocations, and when the session began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.operators.rank_timeline import RankTimeline, Wanted, read_timeline
from distprof.merge.run.run_model import Rank
from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.scanned_columns import NONE

MEMORY, OUT_OF_MEMORY = "[memory]", "[OutOfMemory]"
UNSEEN = ("profiler::_record_function_enter", "profiler::_record_function_enter_new", "profiler::_record_function_exit",
          "aten::is_leaf", "aten::output_nr", "aten::_version")
"""Operators that torch leaves out."""
SPAN = b"Trace"
"""Category of the slice that begins with the session."""
STACK, INPUTS, FORWARD_THREAD, PYTHON_ID, PYTHON_PARENT = (
    "Call stack", "Concrete Inputs", "Fwd thread id", "Python id", "Python parent id")
"""Keys of `args`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSession:
    """A session of torch.profiler."""

    timeline: RankTimeline
    """With calls of Python, and the keys above."""
    began_ns: int
    """Ns since the epoch: the zero of its doubles."""
    time_ns: Any
    """Of each change of memory; likewise."""
    num_bytes: Any
    """Below zero where it was freed."""
    device_type: Any
    """torch's number."""
    is_change: Any
    """False where an allocation failed."""


class _Events:
    """What else is collected while a trace is scanned."""

    keys = ("Bytes", "Device Type")

    def __init__(self) -> None:
        self.began: list[int] = []
        self._parts: list[Any] = []

    def take(self, scanner: Scanner) -> None:
        times = scanner.column("ts_ns")
        names = {text.decode("utf-8", "replace"): number for number, text in enumerate(scanner.names.texts())}
        for name in (MEMORY, OUT_OF_MEMORY):
            rows = np.flatnonzero((scanner.column("name") == names.get(name, -2)) & (times != NONE))
            self._parts.append(np.stack([times[rows], *(scanner.integers[key][rows] for key in self.keys),
                                         np.full(len(rows), name == MEMORY)]))
        spans = [number for number, text in enumerate(scanner.categories.texts()) if text == SPAN]
        self.began += times[np.isin(scanner.column("category"), spans) & (times != NONE)].tolist()

    def columns(self) -> Any:
        found = np.concatenate([np.empty((4, 0), np.int64), *self._parts], axis=1)
        return found[:, found[1] != NONE]


def read_session(rank: Rank) -> TorchSession:
    """Reads the trace of a rank.

    Args:
        rank: It has one.

    Raises:
        DataError: It is no trace.
    """
    events = _Events()
    wanted = Wanted(python=True, integers=(FORWARD_THREAD, PYTHON_ID, PYTHON_PARENT), texts=(STACK, INPUTS))
    timeline = read_timeline(rank, events, wanted)
    unseen = [number for number, name in enumerate(timeline.names) if name in UNSEEN]
    timeline = timeline.where(~np.isin(timeline.name, unseen))
    first = int(timeline.start_ns.min()) if len(timeline.start_ns) else timeline.base_ns
    time_ns, num_bytes, device_type, is_change = events.columns()
    return TorchSession(timeline=timeline, began_ns=min(events.began) + timeline.base_ns if events.began else first,
                        time_ns=time_ns + timeline.base_ns, num_bytes=num_bytes, device_type=device_type,
                        is_change=is_change.astype(bool))
