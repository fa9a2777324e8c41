"""A session of torch.profiler, from which it makes its tables: the counted slices, allocations, and the start time.

Python stacks of slices are those that a session with `verbose=True` wrote.
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
"""An operator's name with its overload name."""
SPAN = b"Trace"
"""Category of the slice that begins with the session."""
STACK, INPUTS, FORWARD_THREAD, PYTHON_ID, PYTHON_PARENT = (
    "Call stack", "Concrete Inputs", "Fwd thread id", "Python id", "Python parent id")
"""Keys of `args`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSession:
    """A session of torch.profiler."""

    timeline: RankTimeline
    """Slices, including Python calls, with the keys above."""
    began_ns: int
    """Start in ns since the epoch: time 0 of torch's doubles."""
    changes: MemoryChanges
    """Memory changes; empty without `profile_memory=True`."""


class _Events(ChangesRead):
    """Also reads when the session began."""

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
        rank: A rank with a trace.

    Raises:
        DataError: The file is not a trace.
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
    """Replaces names like `aten::add.Tensor`, which sessions with `capture_overload_names` write, by `aten::add`."""
    of_operators = set(np.unique(timeline.name[timeline.type == OPERATOR]).tolist())
    names = [OVERLOAD.sub(r"\1", name) if number in of_operators else name
             for number, name in enumerate(timeline.names)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    renamed = np.array([numbers[name] for name in names], np.int64)
    return replace(timeline, names=list(numbers), name=renamed[timeline.name])


UNSEEN_FRAMES = (("autograd/__init__", "_make_grads"), ("autograd/__init__", "backward"), ("torch/tensor", "backward"),
          ("_internal/common_utils", "prof_callable"), ("_internal/common_utils", "prof_func_call"),
          ("_internal/common_utils", "prof_meth_call"))
"""torch leaves out frames that contain both texts of a pair."""
Stack = tuple[str, ...]


class TorchStacks:
    """The stack of each slice, innermost frame first."""

    def __init__(self, timeline: RankTimeline, nesting: Nesting, launcher: Integers, in_order: Integers) -> None:
        """Finds the stacks.

        Args:
            timeline: Slices, including Python calls, with what `read_session` asks for.
            nesting: Nesting of the slices.
            launcher: The slice that launched each device slice.
            in_order: Rows that torch counts, in its order.
        """
        self._frames: list[tuple[str, int]] = [("", 0)]  # frame, number of the outer stack; 0: empty
        self._numbers: dict[tuple[str, int], int] = {}
        self.number = np.zeros(len(timeline.name), np.int64)
        """Number of each slice's stack; 0 for none."""
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
        """Returns the distinct stacks of inner frames, the empty one first, and the index of each slice's stack."""
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
        """Gives Python calls the stacks of their callers; returns the stack of what is inside each slice."""
        rows = np.flatnonzero((timeline.type == PYTHON) & (timeline.more[PYTHON_ID] != NONE))
        rows = rows[np.argsort(timeline.more[PYTHON_ID][rows], kind="stable")]
        of_call, found = dict[int, int](), self.number.copy()
        columns = (timeline.more[PYTHON_ID][rows], timeline.more[PYTHON_PARENT][rows], timeline.name[rows])
        for row, number, parent, name in zip(rows.tolist(), *(column.tolist() for column in columns), strict=True):
            self.number[row] = of_call.get(parent, 0)
            found[row] = of_call[number] = self._within(timeline.names[name], of_call.get(parent, 0))
        return found

    def _of_backward(self, timeline: RankTimeline, nesting: Nesting, in_order: Integers) -> None:
        """Slices inside an autograd function get the stack of the operator that created its node, or none."""
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
    """Returns the row of the autograd function that each slice is or lies in; -1 for none."""
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
    """Maps torch's thread numbers to ours: to the thread with the most of the sequence numbers attributed to it."""
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
