"""Averages of one rank's operators as torch.profiler's `key_averages` computes them: same order, same doubles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Floats, Integers
from distprof.merge.operators.shapes import tensors_and_scalars
from distprof.merge.operators.timeline.device_times import launchers
from distprof.merge.operators.timeline.memory_changes import HOSTS, MEMORY, OUT_OF_MEMORY
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import ANNOTATION, NUM_HOST, RankTimeline
from distprof.merge.torch_table.session import INPUTS, Stack, TorchSession, TorchStacks

WORK = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:")
"""Prefixes of collectives: they may end on another thread, so torch neither nests them nor gives them a self time."""
STEP, STEPS = "ProfilerStep#", "ProfilerStep*"
KINDS = {"name": pl.String(), "shapes": pl.String(), "stack": pl.List(pl.String())}
DEVICES = (1, 6, 12, 20)
"""torch's numbers of the device types whose memory it shows as device memory."""
TIMES = ("host_us", "self_host_us", "device_us", "self_device_us")
BYTES = ("host_bytes", "self_host_bytes", "device_bytes", "self_device_bytes")
Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchAverages:
    """One row per group of calls, in the order in which the first call of each group began."""

    rows: pl.DataFrame
    """`name`, `shapes` and `stack` (None if not requested or not recorded), `calls`, `flops`, `TIMES` and `BYTES`;
    `on_device`: True for kernels; `is_async`: True for collectives."""
    has_memory: bool
    """Whether the session recorded memory; `has_flops`, `has_device`: FLOPs, devices."""
    has_flops: bool
    has_device: bool


def torch_averages(session: TorchSession, *, by_shape: bool = False, num_frames: int = 0) -> TorchAverages:
    """Sums the slices of a session.

    An operator whose only child has the same name counts as one call with it, whatever their shapes.

    Args:
        session: The session of a rank.
        by_shape: Whether to separate calls with different shapes.
        num_frames: Number of innermost Python frames by which to separate calls.
    """
    slices, recorded = _Slices(session), session.timeline.metadata
    columns, words = slices.columns(), dict[str, list[Any]](name=slices.names)
    if by_shape:
        words["shapes"], columns["shapes"] = slices.shapes()
    if num_frames:
        words["stack"], columns["stack"] = slices.stacks(num_frames)
    has_flops = bool(recorded.get("with_flops"))
    columns["flops"] = slices.flops() if has_flops else np.zeros(len(columns["name"]), np.int64)
    rows = _added_up(columns, ("on_device", "annotation", *words), slices.in_order())
    return TorchAverages(
        rows=rows.drop("annotation").with_columns(
            *(pl.Series(key, [known[number] for number in rows[key]], KINDS[key]) for key, known in words.items()),
            *(pl.lit(None, kind).alias(key) for key, kind in KINDS.items() if key not in words)),
        has_memory=bool(recorded.get("profile_memory")), has_device=bool(recorded.get("deviceProperties")),
        has_flops=has_flops)


class _Slices:
    """The nested slices of a session, followed by the memory changes outside of all slices."""

    def __init__(self, session: TorchSession) -> None:
        timeline = session.timeline
        self._timeline, self._changes, self._began_ns = timeline, session.changes, session.began_ns
        self._host = timeline.type < NUM_HOST
        self._start, self._end = ((time - session.began_ns) / 1000 for time in (timeline.start_ns, timeline.end_ns))
        works = np.array([name.startswith(WORK) for name in timeline.names] or [False])
        self._is_async = (timeline.type == ANNOTATION) & works[timeline.name]
        self._nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=self._host & ~self._is_async)
        self._same = _only_children(timeline, self._nesting)
        self._parent = self._nesting.parent.copy()
        while (passed := (self._parent >= 0) & self._same[self._parent]).any():
            self._parent[passed] = self._nesting.parent[self._parent[passed]]
        self._launcher = launchers(timeline, self._nesting)
        self._loose = np.flatnonzero(~session.changes.is_change | ~self._covered())
        renamed = [STEPS if name.startswith(STEP) else name for name in (*timeline.names, MEMORY, OUT_OF_MEMORY)]
        self.names = list(dict.fromkeys(renamed))
        numbers = {name: number for number, name in enumerate(self.names)}
        self._number = np.array([numbers[name] for name in renamed])

    def columns(self) -> dict[str, Array]:
        """Returns columns with a value for each slice and each memory change outside of slices."""
        count = len(self._loose)
        changes = np.where(self._changes.is_change[self._loose], -2, -1)
        host = np.where(self._host, self._end - self._start, 0.0)
        found = {"name": self._number[self._timeline.name], "on_device": ~self._host,
                 "annotation": self._timeline.type == ANNOTATION, "is_async": self._is_async, "host_us": host,
                 "self_host_us": np.where(self._is_async, 0.0, host - self._of_children(host)), **self._device_times()}
        loose = dict.fromkeys(found, np.zeros(count)) | {"name": self._number[changes]}
        for side, types in (("host", HOSTS), ("device", DEVICES)):
            change = np.where(np.isin(self._changes.device_type, types), self._changes.num_bytes, 0)
            total = self._within(change)
            own = np.where(self._is_async, 0, total - self._of_children(total))
            for name, values in ((f"{side}_bytes", total), (f"self_{side}_bytes", own)):
                found[name], loose[name] = values, change[self._loose]
        return {name: np.concatenate([values, loose[name].astype(values.dtype)]) for name, values in found.items()}

    def in_order(self) -> Any:
        """Returns the rows that are counted, in torch's order."""
        at = (self._changes.time_ns[self._loose] - self._began_ns) / 1000
        start, end = np.concatenate([self._start, at]), np.concatenate([self._end, at])
        place = np.concatenate([self._timeline.place, len(self._start) + np.arange(len(at))])
        order = np.lexsort((place, -end, start))
        return order[~np.concatenate([self._same, np.zeros(len(at), bool)])[order]]

    def shapes(self) -> tuple[list[str], Integers]:
        """Returns texts, and the index of each row's text."""
        texts = [tensors_and_scalars(text) for text in self._timeline.texts] + ["[]"]
        keys = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        return list(keys), self._padded(np.array([keys[text] for text in texts])[self._timeline.shapes], keys["[]"])

    def stacks(self, num_frames: int) -> tuple[list[Stack], Integers]:
        """Returns stacks, and the index of each row's stack."""
        order = self.in_order()
        stacks = TorchStacks(self._timeline, self._nesting, self._launcher, order[order < len(self._start)])
        known, number = stacks.innermost(num_frames)
        return known, self._padded(number, 0)

    def flops(self) -> Integers:
        """Returns the FLOPs of each row."""
        texts = [*self._timeline.texts, ""]
        calls = np.stack([self._timeline.name, self._timeline.shapes, self._timeline.more[INPUTS]], axis=1)
        kinds, kind = np.unique(calls, axis=0, return_inverse=True)
        each = [torch_flops(self._timeline.names[name], texts[shapes], texts[inputs])
                for name, shapes, inputs in kinds.tolist()]
        return self._padded(np.array(each, np.int64)[kind.reshape(-1)], 0)

    def _padded(self, values: Integers, loose: int) -> Integers:
        return np.concatenate([values, np.full(len(self._loose), loose)])

    def _of_children(self, values: Array) -> Array:
        """Returns the sums over the direct children of each slice, added in order of time."""
        found = np.zeros_like(values)
        rows = np.flatnonzero((self._parent >= 0) & ~self._same)
        np.add.at(found, self._parent[rows], values[rows])
        return found

    def _device_times(self) -> dict[str, Floats]:
        duration = np.where(self._host, 0.0, self._end - self._start)
        launched, rows = np.zeros(len(duration)), np.flatnonzero(self._launcher >= 0)
        launcher = self._launcher[rows]
        while (passed := self._same[launcher]).any():
            launcher = np.where(passed, self._nesting.parent[launcher], launcher)
        np.add.at(launched, launcher, duration[rows])
        total, inside = launched.copy(), np.zeros(len(duration))
        for level, _ in reversed(list(self._nesting.downwards())):
            total[level] += inside[level]
            held = level[(self._parent[level] >= 0) & ~self._same[level]]
            np.add.at(inside, self._parent[held], total[held])
        return {"device_us": np.where(self._host, total, duration),
                "self_device_us": np.where(self._host, total - inside, duration)}

    def _covered(self) -> Flags:
        """Returns True for memory changes while any host slice ran, on any thread."""
        rows = np.flatnonzero(self._host)
        rows = rows[np.argsort(self._timeline.start_ns[rows], kind="stable")]
        if not len(rows):
            return np.zeros(len(self._changes.time_ns), bool)
        latest = np.maximum.accumulate(self._timeline.end_ns[rows])
        place = np.searchsorted(self._timeline.start_ns[rows], self._changes.time_ns, "right") - 1
        return (place >= 0) & (latest[place] >= self._changes.time_ns)

    def _within(self, change: Integers) -> Integers:
        """Returns the sum of the changes while each host slice ran."""
        rows = np.flatnonzero(self._changes.is_change)
        rows = rows[np.argsort(self._changes.time_ns[rows], kind="stable")]
        time, sums = self._changes.time_ns[rows], np.concatenate([[0], np.cumsum(change[rows])])
        first = np.searchsorted(time, self._timeline.start_ns, "left")
        behind = np.searchsorted(time, self._timeline.end_ns, "right")
        return np.where(self._host, sums[behind] - sums[first], 0)


def _only_children(timeline: RankTimeline, nesting: Nesting) -> Flags:
    """Returns True for slices that have the name of their parent and are its only child."""
    inside = np.flatnonzero(nesting.parent >= 0)
    number = np.bincount(nesting.parent[inside], minlength=len(nesting.parent))
    parent = nesting.parent[inside]
    found = np.zeros(len(nesting.parent), bool)
    found[inside[(timeline.name[inside] == timeline.name[parent]) & (number[parent] == 1)]] = True
    return found


def _added_up(columns: Mapping[str, Array], by: Sequence[str], order: Integers) -> pl.DataFrame:
    """Sums rows that are equal in `by`, one after another, so that doubles are rounded as in torch."""
    key = np.zeros(len(order), np.int64)
    for name in by:
        _, number = np.unique(columns[name][order], return_inverse=True)
        _, key = np.unique(key * (len(order) + 1) + number, return_inverse=True)
    _, first = np.unique(key, return_index=True)
    group = np.argsort(np.argsort(first))[key]
    first = np.sort(first)
    found = {name: columns[name][order][first] for name in (*by, "is_async")}
    for name in (*TIMES, *BYTES, "flops"):
        found[name] = np.zeros(len(first), columns[name].dtype)
        np.add.at(found[name], group, columns[name][order])
    return pl.DataFrame(found | {"calls": np.bincount(group, minlength=len(first))})


def torch_flops(op: str, shapes: str, inputs: str) -> int:
    """Returns torch's estimate of FLOPs; 0 if it has none.

    Args:
        op: Name of the operator.
        shapes: `Input Dims`; '' if not recorded.
        inputs: `Concrete Inputs`; '' if not recorded.
    """
    estimate = _ESTIMATES.get(op)
    if estimate is None:
        return 0
    try:
        dims = msgspec.json.decode(shapes, type=list[list[int]])
        return estimate(dims, msgspec.json.decode(inputs or "[]", type=list[str]))
    except (msgspec.DecodeError, IndexError, TypeError, ValueError, ZeroDivisionError):
        return 0


def _product(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns the FLOPs of a product of two matrices, or of two batches of matrices."""
    if len(left) != len(right) or len(left) not in (2, 3) or not left[-1]:
        return 0
    batch = left[0] if len(left) == 3 else 1
    return 2 * math.prod(left) * math.prod(right) // (left[-1] * batch)


def _convolution(dims: Shapes, inputs: Sequence[str]) -> int:
    image, kernel = dims[:2]
    if len(image) != 4 or len(kernel) != 4:
        return 0
    stride, padding, dilation = (msgspec.json.decode(text, type=list[int]) for text in inputs[3:6])
    height, width = ((image[axis + 2] + 2 * padding[axis] - dilation[axis] * (kernel[axis + 2] - 1) - 1) // stride[axis]
                     + 1 for axis in range(2))
    per_output = 2 * kernel[2] * kernel[3] * image[1] * kernel[0]
    return image[0] * height * width * per_output // int(inputs[6])


_ESTIMATES: dict[str, Callable[[Shapes, Sequence[str]], int]] = {
    "aten::conv2d": _convolution,
    "aten::mm": lambda dims, _: _product(dims[0], dims[1]),
    "aten::addmm": lambda dims, _: _product(dims[1], dims[2]),
    "aten::bmm": lambda dims, _: _product(dims[0], dims[1]),
    "aten::baddbmm": lambda dims, _: _product(dims[1], dims[2]),
    "aten::mul": lambda dims, _: math.prod(dims[0]),
    "aten::add": lambda dims, _: math.prod(dims[0])}
"""Name -> function of shapes and other inputs. For elementwise operators that broadcast, only the first tensor counts.
"""
