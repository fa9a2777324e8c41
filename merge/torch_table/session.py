"""What torch.profiler makes its tables from: the slices that it counts, allocations, and when the session began.

Python stacks of slices as torch.profiler has them: what a session with `verbose=True` wrote of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from distprof.arrays import Integers
from distprof.merge.activity.markers import AUTOGRAD
from distprof.merge.operators.timeline.memory_changes import ChangesRead, MemoryChanges
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import (
    OPERATOR,
    PYTHON,
    RUNTIME,
    RankTimeline,
    Wanted,
    read_timeline,
)
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


UNSEEN_FRAMES = (("autograd/__init__", "_make_grads"), ("autograd/__init__", "backward"), ("torch/tensor", "backward"),
          ("_internal/common_utils", "prof_callable"), ("_internal/common_utils", "prof_func_call"),
          ("_internal/common_utils", "prof_meth_call"))
"""Frames that have both texts are left out by torch."""
Stack = tuple[str, ...]


class TorchStacks:
    """The stack of each slice, innermost frame first."""

    def __init__(self, timeline: RankTimeline, nesting: Nesting, launcher: Integers, in_order: Integers) -> None:
        """Finds them.

        Args:
            timeline: With calls of Python, and what `read_session` asks for.
            nesting: Of its slices, those that count for the one around them with it.
            launcher: What launched each slice of a device.
            in_order: Rows that torch counts, in its order.
        """
        self._frames: list[tuple[str, int]] = [("", 0)]  # a frame, and the stack around it; 0 is the empty one
        self._numbers: dict[tuple[str, int], int] = {}
        self.number = np.zeros(len(timeline.name), np.int64)
        """Of a stack, a slice; 0 for none."""
        if not (timeline.more[STACK] >= 0).any():
            return
        self._written(timeline)
        inside = self._of_python(timeline)
        for rows, parents in nesting.downwards():
            rows, parents = (some[(parents >= 0) & (timeline.type[rows] == RUNTIME)] for some in (rows, parents))
            self.number[rows] = inside[rows] = inside[parents]
        self._of_backward(timeline, nesting, in_order)
        self.number = np.where(launcher >= 0, self.number[launcher], self.number)

    def innermost(self, num_frames: int) -> tuple[list[Stack], Integers]:
        """Stacks without outer frames, each once, the empty one first; and the number among them of each slice."""
        found, short = dict[Stack, int](), list[int]()
        for number in range(len(self._frames)):
            stack, at = list[str](), number
            while at and len(stack) < num_frames:
                frame, at = self._frames[at]
                stack.append(frame)
            short.append(found.setdefault(tuple(stack), len(found)))
        return list(found), np.array(short, np.int64)[self.number]

    def _within(self, frame: str, around: int) -> int:
        if any(all(text in frame for text in texts) for texts in UNSEEN_FRAMES):
            return around
        number = self._numbers.setdefault((frame, around), len(self._frames))
        if number == len(self._frames):
            self._frames.append((frame, around))
        return number

    def _written(self, timeline: RankTimeline) -> None:
        texts = timeline.more[STACK]
        of_text = np.zeros(len(timeline.texts) + 1, np.int64)
        for text in np.unique(texts[texts >= 0]).tolist():
            for frame in reversed(timeline.texts[text].split(";")[:-1]):
                of_text[text] = self._within(frame, int(of_text[text]))
        self.number = of_text[texts]

    def _of_python(self, timeline: RankTimeline) -> Integers:
        """A call has the frame of the call around it, and its stack; returns the stack in which all that it does is."""
        rows = np.flatnonzero((timeline.type == PYTHON) & (timeline.more[PYTHON_ID] != NONE))
        rows = rows[np.argsort(timeline.more[PYTHON_ID][rows], kind="stable")]
        of_call, found = dict[int, int](), self.number.copy()
        columns = (timeline.more[PYTHON_ID][rows], timeline.more[PYTHON_PARENT][rows], timeline.name[rows])
        for row, number, parent, name in zip(rows.tolist(), *(column.tolist() for column in columns), strict=True):
            self.number[row] = of_call.get(parent, 0)
            found[row] = of_call[number] = self._within(timeline.names[name], of_call.get(parent, 0))
        return found

    def _of_backward(self, timeline: RankTimeline, nesting: Nesting, in_order: Integers) -> None:
        """What a function of autograd does has the stack of the operator that made its node, or none."""
        function = _functions(timeline, nesting)
        forward, threads = dict[tuple[int, int], int](), _threads(timeline, function)
        rows = in_order[(function[in_order] < 0) & (timeline.sequence[in_order] != NONE)]
        for row, sequence, thread in zip(rows.tolist(), timeline.sequence[rows].tolist(),
                                         timeline.thread[rows].tolist(), strict=True):
            forward.setdefault((sequence, thread), int(self.number[row]))
        inside = np.flatnonzero(function >= 0)
        around = function[inside]
        keys = zip(timeline.sequence[around].tolist(), timeline.more[FORWARD_THREAD][around].tolist(), strict=True)
        self.number[inside] = [forward.get((sequence, threads.get(thread, -1)), 0) for sequence, thread in keys]


def _functions(timeline: RankTimeline, nesting: Nesting) -> Integers:
    """Row of the function of autograd that each slice is or lies in; -1 for none."""
    numbers = {name: number for number, name in enumerate(timeline.names)}
    inner = np.array([numbers.get(name.removeprefix(AUTOGRAD), -1) if name.startswith(AUTOGRAD) else -1
                      for name in timeline.names] or [-1])
    found = np.full(len(timeline.name), -1, np.int64)
    for rows, parents in nesting.downwards():
        begins = (timeline.type[rows] == OPERATOR) & (parents >= 0) & (
            inner[timeline.name[parents]] == timeline.name[rows])
        found[rows] = np.where(begins, rows, np.where(parents >= 0, found[parents], -1))
    return found


def _threads(timeline: RankTimeline, function: Integers) -> dict[int, int]:
    """torch's number of a thread -> ours: the one that has the most of the sequence numbers it is said to have."""
    forward = np.flatnonzero((function < 0) & (timeline.sequence != NONE) & (timeline.more[FORWARD_THREAD] <= 0))
    of_thread = {thread: np.unique(timeline.sequence[forward[timeline.thread[forward] == thread]])
                 for thread in np.unique(timeline.thread[forward]).tolist()}
    backward = np.flatnonzero(timeline.more[FORWARD_THREAD] > 0)
    said, found = timeline.more[FORWARD_THREAD][backward], dict[int, int]()
    for number in np.unique(said).tolist():
        wanted = np.unique(timeline.sequence[backward[said == number]])
        common = {thread: len(np.intersect1d(wanted, held)) for thread, held in of_thread.items()}
        if common:
            found[number] = max(common, key=lambda thread: common[thread])
    return found
