"""Graphs that were captured while the profiler recorded, and which of them a replay is one of.

While a graph is captured, the profiler sees operators and launches, but no kernels; of a replay it sees one call and
the kernels. If the launches are of the same kinds as the commands of the replay, in the same order, and name the same
kernels where they name any (ROCm), they belong together one by one. Without names, calls of an operator with the same
shapes must also have launched the same kernels.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from distprof.arrays import Integers
from distprof.merge.activity.device.commands import CAPTURE, OF_ONE_KERNEL, of_names
from distprof.merge.activity.markers import STEP
from distprof.merge.operators.shapes import WANTED
from distprof.merge.operators.timeline.device_times import operator_around
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import (
    ANNOTATION,
    KERNEL,
    MEMCPY,
    MEMSET,
    NUM_HOST,
    OPERATOR,
    RUNTIME,
    RankTimeline,
    Wanted,
    read_timeline,
    with_modules,
)
from distprof.merge.run.run_model import Rank
from distprof.merge.scan.trace_file import TraceFile

KERNEL_NAME = "kernel"
"""Key of the name of the launched kernel, in traces of ROCm."""
COPIES = ((r"(?:cuda|cu|hip|musa)Memcpy\w*", MEMCPY), (r"(?:cuda|cu|hip|musa)Memset\w*", MEMSET))
MOST_LOST = 0.01
"""Largest fraction of the commands of a graph that may be missing at the end of a replay."""
LEAST_ALIKE = 0.9
"""Smallest fraction of commands that are the usual ones of their operators and shapes."""
Commands = tuple[tuple[int, str | None], ...]
"""Type and name of each command of a graph; the name is None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A graph that was captured while the profiler recorded."""

    timeline: RankTimeline
    launches: Integers
    """Rows of the calls that added a command, in order."""
    around: Integers
    """Rows of these calls, and of operators and annotations around them."""
    commands: Commands
    callers: Sequence[tuple[str, int, int] | None]
    """The operator that added each command, the number of its shapes, and which of its commands it is; None if no
    operator did."""

    @property
    def is_named(self) -> bool:
        """Whether the name of each kernel is known."""
        return all(name is not None for kind, name in self.commands if kind == KERNEL)

    @property
    def operators(self) -> tuple[object, ...]:
        """Name and shapes of the operators that added the commands."""
        return tuple(None if one is None else (one[0], self.timeline.texts[one[1]] if one[1] >= 0 else None)
                     for one in self.callers)


def read_captures(path: Path) -> Sequence[Capture]:
    """Returns the captures in a trace.

    Raises:
        DataError: It is not a trace.
    """
    try:
        about = path.stat()
    except OSError:  # reading it says why
        return _read_captures(path, 0, 0)
    return _read_captures(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _read_captures(path: Path, _mtime_ns: int, _size: int) -> Sequence[Capture]:
    rank = Rank(number=0, folder=path.parent, trace=TraceFile(path=path))
    wanted = Wanted(modules=True, texts=(*WANTED, KERNEL_NAME))
    return captures_in(with_modules(read_timeline(rank, wanted=wanted)))


def captures_in(timeline: RankTimeline) -> list[Capture]:
    """Returns the captures in a timeline, in order of their begins."""
    calls = np.flatnonzero(timeline.type == RUNTIME)
    calls = calls[np.argsort(timeline.start_ns[calls], kind="stable")]
    names = timeline.name[calls]
    begins, ends = (calls[of_names(pattern, timeline.names)[names]] for pattern in CAPTURE)
    if not len(begins):
        return []
    kinds = _kinds_of_calls(timeline.names)[names]
    adds = calls[(kinds >= 0) & ~np.isin(timeline.correlation[calls], timeline.correlation[timeline.type >= NUM_HOST])]
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    operator = operator_around(timeline, nesting)
    found = list[Capture]()
    for begin in begins.tolist():
        over = ends[(timeline.thread[ends] == timeline.thread[begin]) & (ends > begin)]
        if len(over):
            inside = (timeline.start_ns[adds] >= timeline.end_ns[begin]) & (
                timeline.start_ns[adds] < timeline.start_ns[over.min()])
            found.append(_capture(timeline, nesting.parent, adds[inside], operator[adds[inside]]))
    return [one for one in found if len(one.launches)]


def _kinds_of_calls(names: Sequence[str]) -> Integers:
    """Returns the type of the command that a call with each name launches; -1 for other calls."""
    kinds = np.full(len(names) + 1, -1, np.int64)
    for pattern, kind in ((OF_ONE_KERNEL, KERNEL), *COPIES):
        kinds[of_names(pattern, names)] = kind
    return kinds


def _capture(timeline: RankTimeline, parent: Integers, rows: Integers, operators: Integers) -> Capture:
    kinds = _kinds_of_calls(timeline.names)[timeline.name[rows]]
    told = timeline.more.get(KERNEL_NAME)
    names = [None] * len(rows) if told is None else [timeline.texts[text] if text >= 0 else None
                                                     for text in told[rows].tolist()]
    around, outer = set(rows.tolist()), parent[rows]
    while len(outer := np.unique(outer[outer >= 0])):
        around |= set(outer.tolist())
        outer = parent[outer]
    kept = np.array(sorted(around), np.int64)
    is_step = np.array([name.startswith(STEP) for name in timeline.names], bool)
    kept = kept[np.isin(kept, rows) | (np.isin(timeline.type[kept], (OPERATOR, ANNOTATION))
                                       & ~is_step[timeline.name[kept]])]
    return Capture(timeline=timeline, launches=rows, around=kept, callers=_callers(timeline, operators.tolist()),
                   commands=tuple(zip(kinds.tolist(), names, strict=True)))


def _callers(timeline: RankTimeline, operators: Sequence[int]) -> list[tuple[str, int, int] | None]:
    numbers, found = Counter[int](), list[tuple[str, int, int] | None]()
    for one in operators:
        found.append(None if one < 0 else (timeline.names[timeline.name[one]], int(timeline.shapes[one]), numbers[one]))
        numbers[one] += 1
    return found


def fitting(captures: Sequence[Capture], replayed: Commands) -> Sequence[Capture]:
    """Returns the captures that a replay may be of; none if these are unlike each other.

    Args:
        captures: Captures, in order of their begins.
        replayed: The commands of the replay, all with their names.
    """
    found = [one for one in captures if _fits(one.commands, replayed) and _is_usual(one, replayed)]
    found = [one for one in found if len(one.commands) == len(replayed)] or found
    return found if len({one.operators for one in found}) == 1 else ()


def _is_usual(capture: Capture, replayed: Commands) -> bool:
    """Returns whether operators that are called several times mostly have the same commands each time."""
    if capture.is_named:
        return True
    seen = defaultdict[object, Counter[object]](Counter)
    for caller, command in zip(capture.callers, replayed, strict=False):
        seen[caller][command] += 1
    usual = sum(commands.most_common(1)[0][1] for caller, commands in seen.items() if caller is not None)
    return usual >= LEAST_ALIKE * sum(commands.total() for caller, commands in seen.items() if caller is not None)


def _fits(captured: Commands, replayed: Commands) -> bool:
    """Returns whether a replay is one of a capture; of named commands, the profiler may have lost the last few."""
    lost = len(captured) - len(replayed)
    if lost and not (0 < lost <= MOST_LOST * len(captured) and all(
            name is not None or kind != KERNEL for kind, name in captured)):
        return False
    return all(one[0] == other[0] and (one[1] is None or other[1] is None or one[1] == other[1])
               for one, other in zip(captured, replayed, strict=False))
