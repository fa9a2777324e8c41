"""Brings the kernels of a replayed graph to the operators that launched them when the graph was captured.

For the profiler, a replay is one call of the runtime. While the graph was captured, it saw operators and launches, but
no kernels. If these launches are of the same kinds as the commands of the replay, in the same order, and name the same
kernels where they name any (ROCm), they belong together one by one. Without names, calls of an operator with the same
shapes must also have launched the same kernels. Then copies of the slices around the launches are placed inside the
replay; these take no time on the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from distprof.arrays import Integers
from distprof.merge.activity.device.commands import CAPTURE, GRAPHS, OF_ONE_KERNEL, of_names
from distprof.merge.activity.markers import STEP
from distprof.merge.operators.shapes import WANTED
from distprof.merge.operators.timeline.device_times import launches, operator_around
from distprof.merge.operators.timeline.nesting import Nesting, in_order
from distprof.merge.operators.timeline.rank_timeline import (
    ANNOTATION,
    ARRAYS,
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
from distprof.merge.scan.scanned_columns import NONE
from distprof.merge.scan.trace_file import TraceFile

KERNEL_NAME = "kernel"
"""Key of the name of the launched kernel, in traces of ROCm."""
COPIES = ((r"(?:cuda|cu|hip|musa)Memcpy\w*", MEMCPY), (r"(?:cuda|cu|hip|musa)Memset\w*", MEMSET))
MOST_LOST = 0.01
"""Largest fraction of the commands of a graph that may be missing at the end of a replay."""
FIRST_ID, FIRST_NODE = 1 << 60, 1 << 50
"""Correlation ids and sequence numbers of copied slices begin here, where no others are."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """What became of the launches of graphs in a timeline."""

    launched: int = 0
    """Number of launches of graphs with at least one command."""
    found: int = 0
    """Number of those whose capture was found."""


NO_REPLAYS = Replays()


@lru_cache(maxsize=8)
def read_captures(path: Path) -> Sequence[Capture]:
    """Returns the captures in a trace.

    Raises:
        DataError: It is not a trace.
    """
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


def with_captured(timeline: RankTimeline, captures: Sequence[Capture]) -> tuple[RankTimeline, Integers, Replays]:
    """Adds copies of captured slices to replays.

    If several captures fit a number of replays that is a multiple of theirs, they take turns: parts of a model that are
    alike are captured, and replayed, in the same order.

    Args:
        timeline: The slices of a rank.
        captures: Those of other traces; those of the timeline itself are looked for.

    Returns:
        The timeline, the row of the launch for each slice that is such a copy (-1 for others), and how many replays
        there are.
    """
    replays = _replays(timeline)
    captures = [*captures, *(captures_in(timeline) if replays else ())]
    of_kind = defaultdict[tuple[int, Commands], list[tuple[int, Integers]]](list)
    """Replays with the same number of streams and the same commands. The order among streams may differ from that of
    the capture, which shows only if kernels have names."""
    for launch, commands in replays:
        of_kind[len(np.unique(timeline.thread[commands])), _commands(timeline, commands)].append((launch, commands))
    pairs = [(capture, *replay) for (streams, kind), some in of_kind.items() for capture, replay in zip(
        _in_turn([one for one in _fitting(captures, kind) if streams == 1 or one.is_named], len(some)), some,
        strict=False)]
    counts = Replays(launched=len(replays), found=len(pairs))
    if not pairs:
        return timeline, np.full(len(timeline.name), -1), counts
    return (*_Copies(timeline).of(sorted(pairs, key=lambda pair: pair[1])), counts)


def _replays(timeline: RankTimeline) -> list[tuple[int, Integers]]:
    """Returns the launches of graphs, each with the rows of its commands in the order in which they ran."""
    graphs = of_names(GRAPHS, timeline.names)
    calls = np.flatnonzero((timeline.type == RUNTIME) & graphs[timeline.name])
    if not len(calls):
        return []
    commands = np.flatnonzero(timeline.type >= NUM_HOST)
    launch = launches(timeline, commands, calls)
    order = np.lexsort((timeline.start_ns[commands], launch))
    order = order[launch[order] >= 0]
    rows, first = np.unique(launch[order], return_index=True)
    return list(zip(rows.tolist(), np.split(commands[order], first[1:]), strict=True))


def _commands(timeline: RankTimeline, rows: Integers) -> Commands:
    return tuple((kind, timeline.names[name] if kind == KERNEL else None)
                 for kind, name in zip(timeline.type[rows].tolist(), timeline.name[rows].tolist(), strict=True))


def _fitting(captures: Sequence[Capture], replayed: Commands) -> Sequence[Capture]:
    """Returns the captures that a replay may be of; none if these are unlike each other."""
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


def _in_turn(fitting: Sequence[Capture], number: int) -> Sequence[Capture]:
    if not fitting:
        return ()
    return [*fitting] * (number // len(fitting)) if number % len(fitting) == 0 else [fitting[0]] * number


class _Copies:
    """Copies captured slices into replays of a timeline."""

    def __init__(self, timeline: RankTimeline) -> None:
        self._timeline = timeline
        self._names, self._texts = [*timeline.names], [*timeline.texts]
        self._begins: dict[int, tuple[int, int]] = {}
        """By timeline with captures: where its names and its texts begin among all."""
        self._num_threads, self._last_id = len(timeline.threads), FIRST_ID
        self._parts: list[dict[str, Integers]] = []

    def of(self, pairs: Sequence[tuple[Capture, int, Integers]]) -> tuple[RankTimeline, Integers]:
        """Returns the timeline with a copy of each capture in its replay, and the launch of each slice."""
        correlation = self._timeline.correlation.copy()
        for capture, launch, commands in pairs:
            ids = np.arange(self._last_id, self._last_id + len(commands))
            correlation[commands], self._last_id = ids, self._last_id + len(commands)
            self._parts.append(self._part(capture, launch, ids))
        own = {name: getattr(self._timeline, name) for name in ARRAYS} | dict(self._timeline.more)
        own["correlation"] = correlation
        found = {name: np.concatenate([values, *(part[name] for part in self._parts)]) for name, values in own.items()}
        order = in_order(found["thread"], found["start_ns"], found["duration_ns"])
        arrays: dict[str, Any] = {name: values[order] for name, values in found.items()}
        more = {key: arrays.pop(key) for key in self._timeline.more}
        added = self._num_threads - len(self._timeline.threads)
        timeline = replace(self._timeline, **arrays, more=more, names=self._names, texts=self._texts,
                           threads=[*self._timeline.threads, *[""] * added])
        replay = np.concatenate([np.full(len(self._timeline.name), -1), *(
            np.full(len(part["name"]), launch) for part, (_, launch, _) in zip(self._parts, pairs, strict=True))])
        now = np.argsort(order)  # where each slice is now
        return timeline, np.where(replay >= 0, now[replay], -1)[order]

    def _part(self, capture: Capture, launch: int, ids: Integers) -> dict[str, Integers]:
        source, rows = capture.timeline, capture.around
        names, texts = self._offsets(source)
        threads, thread = np.unique(source.thread[rows], return_inverse=True)
        start, end = _ranks(source.start_ns[rows], source.end_ns[rows])
        correlation = np.full(len(rows), NONE)
        correlation[np.searchsorted(rows, capture.launches[:len(ids)])] = ids
        sequence = source.sequence[rows]
        unknown = np.full(len(rows), -1)

        def text(values: Integers | None) -> Integers:
            return unknown if values is None else np.where(values[rows] >= 0, values[rows] + texts, -1)

        part: dict[str, Any] = {
            "name": source.name[rows] + names, "type": source.type[rows], "thread": thread + self._num_threads,
            "start_ns": self._timeline.start_ns[launch] + start, "duration_ns": end - start,
            "external": np.full(len(rows), NONE), "correlation": correlation,
            "sequence": np.where((sequence == NONE) | (sequence < 0), sequence, sequence + FIRST_NODE),
            "copied": np.full(len(rows), NONE), "shapes": text(source.shapes), "dtypes": text(source.dtypes),
            "place": unknown, **{key: text(source.more.get(key)) for key in self._timeline.more}}
        self._num_threads += len(threads)
        return part

    def _offsets(self, source: RankTimeline) -> tuple[int, int]:
        if source is self._timeline:
            return 0, 0
        if id(source) not in self._begins:
            self._begins[id(source)] = len(self._names), len(self._texts)
            self._names += source.names
            self._texts += source.texts
        return self._begins[id(source)]


def _ranks(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Returns times that nest like these, from 0 on, one ns apart."""
    _, ranks = np.unique(np.concatenate([start, end]), return_inverse=True)
    return ranks[:len(start)], ranks[len(start):]
