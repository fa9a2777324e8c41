"""What torch.profiler makes its tables from: the slices that it counts, allocations, and when the session began."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from distprof.merge.operators.timeline.memory_changes import ChangesRead, MemoryChanges
from distprof.merge.operators.timeline.rank_timeline import OPERATOR, RankTimeline, Wanted, read_timeline
from distprof.merge.run.run_model import Rank
from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.scanned_columns import NONE

UNSEEN = ("profiler::_record_function_enter", "profiler::_record_function_enter_new", "profiler::_record_function_exit",
          "aten::is_leaf", "aten::output_nr", "aten::_version")
"""Operators that torch leaves out."""
OVERLOAD = re.compile(r"^(\w+::\w+)\.\w+$")
"""The name of an operator with that of its overload."""
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
    changes: MemoryChanges
    """Of memory; none in sessions without `profile_memory=True`."""


class _Events(ChangesRead):
    """Reads when the session began as well."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[int] = []

    def take(self, scanner: Scanner) -> None:
        super().take(scanner)
        times = scanner.column("ts_ns")
        spans = [number for number, text in enumerate(scanner.categories.texts()) if text == SPAN]
        self.began += times[np.isin(scanner.column("category"), spans) & (times != NONE)].tolist()


def read_session(rank: Rank) -> TorchSession:
    """Reads the trace of a rank.

    Args:
        rank: It has one.

    Raises:
        DataError: It is no trace.
    """
    events = _Events()
    wanted = Wanted(python=True, integers=(FORWARD_THREAD, PYTHON_ID, PYTHON_PARENT), texts=(STACK, INPUTS))
    timeline = _without_overloads(read_timeline(rank, events, wanted))
    unseen = [number for number, name in enumerate(timeline.names) if name in UNSEEN]
    timeline = timeline.where(~np.isin(timeline.name, unseen))
    first = int(timeline.start_ns.min()) if len(timeline.start_ns) else timeline.base_ns
    return TorchSession(timeline=timeline, began_ns=min(events.began) + timeline.base_ns if events.began else first,
                        changes=events.changes(timeline.base_ns))


def _without_overloads(timeline: RankTimeline) -> RankTimeline:
    """With `aten::add` for `aten::add.Tensor`, as sessions with `capture_overload_names` write it."""
    of_operators = set(np.unique(timeline.name[timeline.type == OPERATOR]).tolist())
    names = [OVERLOAD.sub(r"\1", name) if number in of_operators else name
             for number, name in enumerate(timeline.names)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    renamed = np.array([numbers[name] for name in names], np.int64)
    return replace(timeline, names=list(numbers), name=renamed[timeline.name])
