"""Computes FLOPs and bytes of the operators of a rank from the shapes in its trace, if no count pass recorded them.

`ShapeCoverage` says for how much of the time shapes suffice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.operators.one_key import one_key
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import OPERATOR, STRIDES, VALUES, RankTimeline
from distprof.shape_formulas.traced_bytes import bytes_known
from distprof.shape_formulas.traced_cost import FORMULAS, TracedCost, has_no_flops, is_whole, traced_cost
from distprof.shape_formulas.traced_names import is_split, kind_by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCoverage:
    """How much of the time of operators has FLOPs that follow from shapes."""

    host_ns: int = 0
    """Self time on hosts of calls whose FLOPs are known, or included in those of a call around them."""
    all_host_ns: int = 0
    """Self time also of the other calls, except those that only pass on to operators within."""
    device_ns: int = 0
    """The same on devices; `all_device_ns` likewise."""
    all_device_ns: int = 0
    unknown_calls: int = 0
    calls_without_shapes: int = 0
    """Those of the unknown calls for which the trace has no shapes."""

    @property
    def ratio(self) -> float | None:
        """Covered share of the time: on devices if anything ran on one. None if nothing ran."""
        known, everything = (self.device_ns, self.all_device_ns) if self.all_device_ns else (
            self.host_ns, self.all_host_ns)
        return known / everything if everything else None

    @classmethod
    def of(cls, several: Sequence[ShapeCoverage]) -> ShapeCoverage:
        """Sums the coverage of several ranks."""
        return cls(**{one.name: sum(getattr(each, one.name) for each in several) for one in fields(cls)})


UNKNOWN = -1
MOST_KEPT = 1 << 14
NODE = re.compile(r"\w+Backward\d+|autograd::engine::.*")
WANTED = (STRIDES, VALUES)
"""Additional texts that a timeline must have for `shape_costs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCosts:
    """Costs of the slices of a timeline."""

    flops: Integers
    """`UNKNOWN` if they are unknown, or part of those of a call around it."""
    causal_flops: Integers
    """The same without what causal masks hide."""
    num_bytes: Integers
    """Bytes; `UNKNOWN` likewise."""
    is_known: Flags
    """True if FLOPs are known, or part of those of a call around it."""
    passes_on: Flags
    """True for other slices that contain or call operators; they may also do work of their own on a device."""

    def coverage(self, timeline: RankTimeline, rows: Flags, self_host_ns: Integers, self_device_ns: Integers) -> (
            ShapeCoverage):
        """Returns the coverage of the operators among these rows, whose self times are given."""
        operators = rows & (timeline.type == OPERATOR)
        known = operators & self.is_known
        works = ~self.passes_on | (self_device_ns > 0)
        unknown = operators & ~self.is_known & works
        host_ns, device_ns = int(self_host_ns[known].sum()), int(self_device_ns[known].sum())
        return ShapeCoverage(
            host_ns=host_ns, all_host_ns=host_ns + int(self_host_ns[unknown].sum()), device_ns=device_ns,
            all_device_ns=device_ns + int(self_device_ns[unknown].sum()), unknown_calls=int(np.count_nonzero(unknown)),
            calls_without_shapes=int(np.count_nonzero(unknown & (timeline.shapes < 0))))


def shape_costs(timeline: RankTimeline, nesting: Nesting, alike: Integers, passed_on: Flags) -> ShapeCosts | None:
    """Computes costs from shapes; None if the trace has no shapes.

    Torch dispatches some operators as a whole, which do their work in others: the outermost of these counts. If one
    calls itself with other tensors, as operators on a DTensor do with its local parts, the inner one does the work.

    Args:
        timeline: The slices, with texts for `WANTED`.
        nesting: Their nesting.
        alike: Equal for slices with the same name and tensors.
        passed_on: True for slices that form one call with the slice around them.
    """
    if not (timeline.shapes >= 0).any():
        return None
    size = len(timeline.name)
    flops, causal_flops, num_bytes = (np.full(size, UNKNOWN, np.int64) for _ in range(3))
    operators = (timeline.type == OPERATOR) & ~passed_on
    # on some devices a kernel does the work of such an operator, which then calls none that works
    splits = _of_names(timeline, is_split) & _holds(timeline, nesting, _of_names(timeline, _works))
    whole = operators & ~splits & _of_names(timeline, lambda name: is_whole(name) or bytes_known(name))
    nothing = operators & _of_names(timeline, has_no_flops)
    flops[nothing] = causal_flops[nothing] = 0
    rows = np.flatnonzero(operators & ~splits & _of_names(timeline, lambda name: name in FORMULAS or bytes_known(name)))
    flops[rows], causal_flops[rows], num_bytes[rows] = _each(timeline, rows)
    inside = _inside(timeline, nesting, whole & (flops >= 0), alike)
    for amount in (flops, causal_flops, num_bytes):
        amount[inside.part | inside.elsewhere] = UNKNOWN
    holds = _holds(timeline, nesting, timeline.type == OPERATOR)
    passes_on = _is_node(timeline) | (holds & (inside.elsewhere | ~whole))
    return ShapeCosts(flops=flops, causal_flops=causal_flops, num_bytes=num_bytes,
                      is_known=(flops >= 0) | inside.part, passes_on=passes_on)


def _is_node(timeline: RankTimeline) -> Flags:
    """Returns which slices are torch's own autograd functions, which call operators."""
    return _of_names(timeline, lambda name: NODE.fullmatch(name) is not None)


def _of_names(timeline: RankTimeline, holds: Callable[[str], bool]) -> Flags:
    """Returns which slices have names for which `holds` is true."""
    return np.array([holds(name) for name in timeline.names] or [False])[timeline.name]


@dataclass(frozen=True, slots=True)
class _Inside:
    part: Flags
    """True for slices inside an operator that counts as a whole."""
    elsewhere: Flags
    """True for operators that call themselves with other tensors."""


def _inside(timeline: RankTimeline, nesting: Nesting, counts: Array, alike: Integers) -> _Inside:
    around = np.full(len(counts), -1, np.int64)
    """The innermost counting slice around each slice."""
    for rows, parents in nesting.downwards():
        held = parents >= 0
        around[rows[held]] = np.where(counts[parents[held]], parents[held], around[parents[held]])
    again = np.flatnonzero(counts & (around >= 0))
    again = again[(timeline.name[again] == timeline.name[around[again]]) & (alike[again] != alike[around[again]])]
    elsewhere = np.zeros(len(counts), bool)
    elsewhere[around[again]] = True
    part = np.zeros(len(counts), bool)
    for rows, parents in nesting.downwards():
        held = parents >= 0
        part[rows[held]] = part[parents[held]] | (counts & ~elsewhere)[parents[held]]
    return _Inside(part, elsewhere & ~part)


def _works(name: str) -> bool:
    return kind_by_name(name) != "view" and not name.startswith("aten::empty")


def _holds(timeline: RankTimeline, nesting: Nesting, inner: Flags) -> Flags:
    """Returns which slices directly contain operators among `inner`."""
    found = np.zeros(len(timeline.name), bool)
    rows = np.flatnonzero(inner & (timeline.type == OPERATOR) & (nesting.parent >= 0))
    found[nesting.parent[rows]] = True
    return found


def _each(timeline: RankTimeline, rows: Integers) -> tuple[Integers, ...]:
    """Returns the amounts of `TracedCost` for each of the rows, computed once for each kind of call."""
    kinds, number = _kinds(timeline, rows)
    texts = [*timeline.texts, None]  # index -1 is the last one
    costs = [_cost(timeline.names[name], *(texts[text] for text in of_call)) for name, *of_call in kinds]
    if not costs:
        return (np.empty(0, np.int64),) * len(TracedCost._fields)
    return tuple(np.array([UNKNOWN if one is None else one for one in column], np.int64)[number]
                 for column in zip(*costs, strict=True))


def _kinds(timeline: RankTimeline, rows: Integers) -> tuple[list[list[int]], Integers]:
    """Returns name and texts of each kind of call, and the number of the kind of each row."""
    columns = [column[rows] for column in (timeline.name, timeline.shapes, timeline.dtypes,
                                           *(timeline.more[key] for key in WANTED))]
    _, first, number = np.unique(one_key(columns), return_index=True, return_inverse=True)
    return np.stack([column[first] for column in columns], axis=1).tolist(), number


@lru_cache(maxsize=MOST_KEPT)
def _cost(name: str, *texts: str | None) -> TracedCost:
    """Returns the cost of a call; cached because ranks make the same calls."""
    return traced_cost(name, *map(_decoded, texts))


@lru_cache(maxsize=MOST_KEPT)
def _decoded(text: str | None) -> Any:
    """Decodes JSON; None if it is invalid."""
    try:
        return None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


MOST = 1 << 16


def strict(text: str) -> str | None:
    """Returns the text in the usual format of JSON; None if it is not JSON."""
    try:
        found = msgspec.json.encode(msgspec.json.decode(text)).decode().replace(",", ", ")
    except msgspec.DecodeError:
        return None
    return text if found == text else found  # most are equal: kept in memory once


@lru_cache(maxsize=MOST)
def tensors_of(text: str) -> str:
    """Returns only the shapes of tensors, lists flattened: to the profiler, scalars are tensors without dimensions."""
    try:
        return msgspec.json.encode(_flat(msgspec.json.decode(text, type=list[object]))).decode()
    except msgspec.DecodeError:
        return text


def _flat(dims: list[object]) -> list[object]:
    found = list[object]()
    for one in dims:
        if isinstance(one, list) and one:
            found += _flat(one) if isinstance(one[0], list) else [one]
    return found


def tensors_and_scalars(text: str) -> str:
    """Returns shapes as torch's tables show them: a list of tensors looks like a scalar."""
    try:
        dims = msgspec.json.decode(text, type=list[object])
    except msgspec.DecodeError:
        return "[]"
    return str([[] if isinstance(one, list) and one and isinstance(one[0], list) else one for one in dims])
