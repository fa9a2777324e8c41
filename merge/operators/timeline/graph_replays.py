"""Brings the kernels of replayed graphs to the operators that launched them when the graphs were captured.

Copies of the slices around the launches of a capture are placed inside its replays; these take no time on the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distprof.arrays import Integers
from distprof.merge.activity.device.commands import GRAPHS, of_names
from distprof.merge.operators.timeline.captured_graphs import Capture, Commands, captures_in, fitting
from distprof.merge.operators.timeline.device_times import launches
from distprof.merge.operators.timeline.nesting import in_order
from distprof.merge.operators.timeline.rank_timeline import ARRAYS, KERNEL, NUM_HOST, RUNTIME, RankTimeline
from distprof.merge.scan.scanned_columns import NONE

FIRST_ID, FIRST_NODE = 1 << 60, 1 << 50
"""Correlation ids and sequence numbers of copied slices begin here, where no others are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """What became of the launches of graphs in a timeline."""

    launched: int = 0
    """Number of launches of graphs with at least one command."""
    found: int = 0
    """Number of those whose capture was found."""


NO_REPLAYS = Replays()


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
        _in_turn([one for one in fitting(captures, kind) if streams == 1 or one.is_named], len(some)), some,
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
