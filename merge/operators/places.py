"""Finds the module and the phase of the step that each slice of a rank ran in, from the slices that mark them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.contract.tables import CLOSURE_SLICE, EVALUATION, EVALUATION_SLICE
from distprof.merge.activity.markers import AUTOGRAD, DATA, MODULE, OPTIMIZER, STEP, TORCH_MODULE, nested_path
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import ANNOTATION, OPERATOR, RankTimeline, calls_of_modules
from distprof.merge.scan.scanned_columns import NONE

PHASES = (None, "forward", "backward", "recompute", "optimizer", EVALUATION, "data")
_NOTHING, _FORWARD, _BACKWARD, _RECOMPUTE, _OPTIMIZER, _EVALUATION, _DATA = range(len(PHASES))
_MODULE, _CLOSURE = 100, 101
_FOLLOWS = -1
ROOT = "model ["
"""Begin of the name that distprof gives the slices of the root module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where slices ran."""

    phase: Integers
    """For each slice, an index into `PHASES`."""
    module: Integers
    """For each slice, an index into `paths`, -1 outside of all modules."""
    paths: Sequence[str]
    """Paths of modules."""
    classes: Sequence[str]
    """Classes of these modules."""

    def within(self, around: Integers) -> Places:
        """Returns the places in which slices without a phase or a module get those of the row `around` them, if any."""
        phase, module = (np.where((values == nothing) & (around >= 0), values[around], values)
                         for values, nothing in ((self.phase, _NOTHING), (self.module, -1)))
        return replace(self, phase=phase, module=module)


def places_of(timeline: RankTimeline, nesting: Nesting) -> Places:
    """Goes from outer slices to inner ones; backward gets its module from the autograd node that forward made."""
    marks = _Marks(timeline)
    phase, module = np.zeros(len(timeline.name), np.int64), np.full(len(timeline.name), -1, np.int64)
    made: Any = None
    for turn in range(2):  # forward first: it makes the nodes that backward runs
        for rows, parents in nesting.downwards():
            outer = np.where(parents >= 0, phase[parents], _NOTHING)
            inside = np.where(parents >= 0, module[parents], -1)
            phase[rows] = _phase(marks.kind[rows], outer)
            module[rows] = marks.module(rows, inside, phase[rows], made)
        if turn == 0:
            made = _made(timeline, phase, module, marks.kind)
    return Places(phase=phase, module=module, paths=marks.paths, classes=marks.classes)


def _phase(kind: Integers, outer: Integers) -> Integers:
    in_module = np.where((outer == _BACKWARD) | (outer == _RECOMPUTE), _RECOMPUTE,
                         np.where(outer == _EVALUATION, _EVALUATION, _FORWARD))
    return np.where(kind == _FOLLOWS, outer,
                    np.where(kind == _MODULE, in_module, np.where(kind == _CLOSURE, _NOTHING, kind)))


class _Marks:
    """What each slice marks."""

    def __init__(self, timeline: RankTimeline) -> None:
        self._timeline = timeline
        self.paths: list[str] = []
        self.classes: list[str] = []
        self._numbers: dict[str, int] = {}
        self._of_torch: dict[int, int] = {}
        """Modules of forward by the names that torch.profiler gives them, as numbers."""
        scopes = [MODULE.fullmatch(name) for name in timeline.names]
        kinds = np.array([_kind(name) for name in timeline.names] or [_FOLLOWS], np.int64)
        self.kind = kinds[timeline.name] if len(timeline.name) else np.empty(0, np.int64)
        allowed = (timeline.type == ANNOTATION) | ((timeline.type == OPERATOR) & (self.kind == _BACKWARD))
        self.kind[~allowed] = _FOLLOWS
        self._is_torch = self._torch_modules(scopes)
        self.kind[self._is_torch] = _MODULE
        modules = [-1 if scope is None else self._number(scope[1], name[name.rindex("[") + 1:-1])
                   for scope, name in zip(scopes, timeline.names, strict=True)]
        self._of_name = np.array(modules or [-1], np.int64)
        self._root = self._number("", "Module") if "model" in self._numbers else -1
        if self._root >= 0:
            self.classes[self._root] = self.classes[self._numbers["model"]]

    def _torch_modules(self, scopes: Sequence[object]) -> Flags:
        """Returns the slices of modules that torch.profiler names, except on threads on which distprof names them."""
        timeline = self._timeline

        def slices(flags: Iterable[bool]) -> Flags:
            found: Flags = np.array([*flags, False], bool)[timeline.name] & (timeline.type == ANNOTATION)
            return found

        is_named = slices(scope is not None for scope in scopes)
        is_root = is_named & slices(name.startswith(ROOT) for name in timeline.names)
        found: Flags = calls_of_modules(timeline) & ~np.isin(timeline.thread, np.unique(timeline.thread[is_root]))
        if found.any():  # annotations of other programs may look like our slices
            self.kind[is_named & np.isin(timeline.thread, np.unique(timeline.thread[found]))] = _FOLLOWS
        return found

    def _number(self, path: str, class_name: str) -> int:
        number = self._numbers.setdefault(path, len(self.paths))
        if number == len(self.paths):
            self.paths.append(path)
            self.classes.append(class_name)
        return number

    def _nested(self, name: Integers, inside: Integers, phase: Integers) -> Integers:
        """Returns the modules that torch.profiler names `Class_N`, a name for each module, which lie in `inside`.

        In backward they are recomputed, inside of functions of any module: then they have the paths of forward.
        """
        kinds, place = np.unique(np.stack([name, inside, phase]), axis=1, return_inverse=True)
        found = []
        for one, outer, part in kinds.T.tolist():
            word = self._timeline.names[one]
            if part == _RECOMPUTE and one in self._of_torch:
                found.append(self._of_torch[one])
                continue
            path = nested_path(word, self.paths[outer] if outer >= 0 else None)
            found.append(self._number(path, re.sub(r"_\d+$", "", word.removeprefix(TORCH_MODULE))))
            if part != _RECOMPUTE:
                self._of_torch.setdefault(one, found[-1])
        return np.array(found, np.int64)[place]

    def module(self, rows: Integers, inside: Integers, phase: Integers,
               made: Callable[[Integers], Any] | None) -> Integers:
        """Returns the modules of these rows, which lie in `inside`; `made` finds those of autograd functions."""
        named = self._of_name[self._timeline.name[rows]]
        if self._root >= 0:  # a submodule may be called model as well
            named = np.where((named == self._numbers["model"]) & (inside < 0), self._root, named)
        of_torch = self._is_torch[rows]
        if of_torch.any():
            named = named.copy()
            named[of_torch] = self._nested(self._timeline.name[rows[of_torch]], inside[of_torch],
                                           phase[of_torch])
        found = np.where(self.kind[rows] == _MODULE, named, inside)
        if made is None:
            return found
        return np.where(self.kind[rows] == _BACKWARD, made(self._timeline.sequence[rows]), found)


def _kind(name: str) -> int:
    if name.startswith(AUTOGRAD):
        return _BACKWARD
    if name.startswith(DATA):
        return _DATA
    if name.startswith(OPTIMIZER):
        return _OPTIMIZER
    if name in (CLOSURE_SLICE, EVALUATION_SLICE):
        return _CLOSURE if name == CLOSURE_SLICE else _EVALUATION
    if name.startswith(STEP):
        return _NOTHING
    return _MODULE if MODULE.fullmatch(name) else _FOLLOWS


def _made(timeline: RankTimeline, phase: Integers, module: Integers, kind: Integers) -> Any:
    """Returns a function from sequence numbers to the modules in whose forward calls autograd made the nodes.

    An operator has the number of the next node. If it makes none, the following one has the same number, so the last
    operator with a number made the node. Threads count separately; those that recompute have no say.
    """
    rows = np.flatnonzero((timeline.sequence != NONE) & (timeline.sequence >= 0) & (kind != _BACKWARD)
                          & (phase != _BACKWARD) & (module >= 0))
    rows = rows[np.lexsort((timeline.start_ns[rows], phase[rows] != _RECOMPUTE))][::-1]
    numbers, last = np.unique(timeline.sequence[rows], return_index=True)
    modules = module[rows[last]]

    def find(sequence: Integers) -> Integers:
        place = np.minimum(np.searchsorted(numbers, sequence), max(len(numbers) - 1, 0))
        return np.where(numbers[place] == sequence, modules[place], -1) if len(numbers) else np.full(len(sequence), -1)

    return find
