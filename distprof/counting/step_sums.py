"""Sums of operator calls, added step by step, by module, operator, shapes and phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import NamedTuple

from distprof.contract.tables import EVALUATION
from distprof.counting.known_calls import KnownCall
from distprof.model.call_paths import CallPath
from distprof.model.modules import Site
from distprof.model.scopes import Frame, GradientWatch
from distprof.own import lock
from distprof.shape_formulas.operator_call import Cost

NO_CALLS = partial(Cost, calls=0)
CallOfStep = tuple[CallPath, KnownCall, str, tuple[str, ...], str]
"""Path, call, phase, torch functions and kernel, as in `OpKey`."""
Tally = dict[CallOfStep, list[int]]
"""Call -> how often it was made, in a list of one element, which saves a second lookup."""


class OpKey(NamedTuple):
    """Calls with the same key are summed."""

    path: CallPath
    op: str
    phase: str
    shapes: str
    dtype: str | None = None
    """Element type of the first tensor input, or of the output if there is none."""
    functions: tuple[str, ...] = ()
    """The running torch functions, outermost first, if they are recorded."""
    kernel: str = ""
    """The operator whose kernel called this one; other counters do not see such calls. Recorded with `functions`."""


Sums = dict[OpKey, Cost]


class StepSums:
    """Sums over all steps that ended, excluding an unfinished step."""

    def __init__(self, are_work: Callable[[Site], bool]) -> None:
        """Begins empty; `are_work` returns whether calls of a root without gradient are part of every step."""
        self._are_work = are_work
        self._lock = lock()
        self._tally: Tally = {}
        """Calls of the running step."""
        self._tallies_apart: dict[tuple[Site, GradientWatch | None], Tally] = {}
        """Calls of the running step that got no gradient, or may get none, by root and observer of the gradient."""
        self._sums: Sums = defaultdict(NO_CALLS)
        self._sums_apart: dict[Site, Sums] = defaultdict(lambda: defaultdict(NO_CALLS))
        """Sums for roots called without gradient; whether that was evaluation is decided when sums are read."""

    def restart_step(self) -> None:
        """Drops what was counted in the running step."""
        self._tally.clear()
        self._tallies_apart.clear()

    def count(self, call: CallOfStep, frame: Frame | None) -> None:
        """Adds a call to the running step; `frame` is the innermost module call that makes it."""
        with self._lock:
            tally = self._tally
            if frame is not None and frame.without_gradient is not None and call[2] in ("forward", EVALUATION):
                tally = self._tallies_apart.setdefault((frame.without_gradient, frame.gradient), {})
            times = tally.get(call)
            if times is None:
                tally[call] = [1]
            else:
                times[0] += 1

    def next_step(self) -> None:
        """Adds the step that has ended to the sums."""
        _add(self._tally, self._sums)
        for (site, watch), tally in self._tallies_apart.items():
            seen = watch is not None and watch.seen
            _add(tally, self._sums if seen else self._sums_apart[site])
        self.restart_step()

    def by_key(self) -> Sums:
        """Returns all sums."""
        if not self._sums_apart:
            return self._sums
        found: Sums = defaultdict(NO_CALLS, {key: copy(cost) for key, cost in self._sums.items()})
        for site, sums in self._sums_apart.items():
            phase = "forward" if self._are_work(site) else EVALUATION
            for key, cost in sums.items():
                found[key._replace(phase=phase) if key.phase in ("forward", EVALUATION) else key].add(cost)
        return found


def _add(tally: Tally, sums: Sums) -> None:
    for (path, call, phase, functions, kernel), (times,) in tally.items():
        sums[OpKey(path, call.op, phase, call.shapes, call.dtype, functions, kernel)].add(call.cost, times)
