"""What is known of a job at a moment, as series that can be searched for change points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from distprof.arrays import Flags, Floats, Integers
from distprof.merge.chance import median_of_others
from distprof.merge.watch import shifts
from distprof.merge.watch.grid import Grid
from distprof.merge.watch.sampled_steps import SampledSteps
from distprof.merge.watch.shifts import Series

MATERIAL = 0.025
"""Changes that cost less than this share of a step are ignored."""
OWN = ("data_ns", "forward_ns")
"""Phases before the first collective in a data-parallel job; `View.own_phases` checks that."""
FEW = 3
"""Up to this number of ranks, the median of the others changes with a single one of them."""
CLEAN = 0.9
"""Data and forward are free of waits if the time to the first collective is at least this share of theirs; the
optimizer is, if the time after the last collective is at least this share of its time."""


class View:
    """Series of a job, computed on first use."""

    def __init__(self, grid: Grid, sampled: SampledSteps, hosts: Mapping[int, str], num_steps: int = 0) -> None:
        """Takes the data as they are now; `num_steps` is the number of steps of the job, including those that are
        not analysed because ranks recorded or wrote meanwhile."""
        self.grid, self.sampled, self.hosts, self.num_steps = grid, sampled, hosts, num_steps
        self.ranks: Sequence[int] = grid.ranks

    @cached_property
    def step_times(self) -> Series:
        """Step time of the job: one column, the median over ranks."""
        span = shifts.filled(self.grid.blocks.field("span_ns"))
        return self._of_blocks(np.median(span, axis=1)[:, None])

    @cached_property
    def typical_ns(self) -> float:
        """Median step time of the job; nan without blocks."""
        series = self.step_times
        return float(np.median(series.values)) if len(series.values) else np.nan

    @cached_property
    def own(self) -> Series | None:
        """Time of each rank in `own_phases`; None as in `compared`."""
        return None if self._own_work is None else self._of_blocks(self._own_work[0])

    @cached_property
    def compared(self) -> Series | None:
        """Time of each rank in `own_phases` minus the median of the other ranks; None if all phases contain waits, or
        without blocks or other ranks."""
        if self._own_work is None:
            return None
        own, others = self._own_work
        return self._of_blocks(own - others)

    @cached_property
    def _own_work(self) -> tuple[Floats, Floats] | None:
        """Time of each rank in `own_phases`, and the median of the other ranks; shape (blocks, ranks). None as in
        `compared`."""
        names = self.own_phases
        if not names or len(self.ranks) < 2 or not len(self.grid.blocks.first):
            return None
        own = shifts.filled(sum(self.grid.blocks.field(name) for name in names))
        return own, median_of_others(own.T).T

    @cached_property
    def adjusted_step_times(self) -> Series:
        """`step_times` for each rank, minus what the work of the others in `own_phases` explains (control variates): in
        jobs whose lengths differ from step to step, or beside other programs, all ranks have more work at times."""
        if self._own_work is None:
            return self.step_times
        steps, (_, others) = self.step_times.values[:, 0], self._own_work
        return self._of_blocks(np.stack([shifts.adjusted(steps, one[:, None]) for one in others.T], axis=1))

    @cached_property
    def sampled_own(self) -> Series | None:
        """Own time of each rank in sampled steps, with outliers clipped; None without sampled steps."""
        if not len(self.sampled.step):
            return None
        return self._of_samples(shifts.filled(self.sampled.calm), search=False)

    @cached_property
    def sampled_compared(self) -> Series | None:
        """`sampled_own` minus the median of the other ranks; None without sampled steps or other ranks."""
        series = self.sampled_own
        if series is None or len(self.ranks) < 2:
            return None
        return self._of_samples(series.values - median_of_others(series.values.T).T)

    @cached_property
    def sampled_in_blocks(self) -> Series | None:
        """`sampled_compared` averaged over each block; blocks without a sampled step have weight 0."""
        series, blocks = self.sampled_compared, self.grid.blocks
        if series is None or not len(blocks.first):
            return None
        place = np.searchsorted(blocks.first, series.step, side="right") - 1
        inside = place >= 0
        weight = np.bincount(place[inside], series.weight[inside], len(blocks.first))
        total = np.zeros((len(weight), series.values.shape[1]))
        np.add.at(total, place[inside], (series.values * series.weight[:, None])[inside])
        return Series(values=total / np.maximum(weight, 1e-9)[:, None], weight=weight, step=blocks.first,
                      sigma=series.sigma)

    @cached_property
    def adjusted_samples(self) -> Series | None:
        """`sampled_in_blocks` minus what `compared` explains (control variates): load on a machine shows in all phases.

        Changes in phases other than `own_phases` show more clearly in it; changes in `own_phases` look too small.
        """
        series, known = self.sampled_in_blocks, self.compared
        if series is None or known is None:
            return None
        with_samples = series.weight > 0
        values = np.zeros_like(series.values)
        for place, one in enumerate(series.values.T):
            values[with_samples, place] = shifts.adjusted(one[with_samples], known.values[with_samples, place, None])
        left = _searched(values[with_samples], series.weight[with_samples], series.step[with_samples], search=False)
        return Series(values=values, weight=series.weight, step=series.step, sigma=left.sigma)

    @cached_property
    def moving(self) -> Series | None:
        """Time that data moves in the calls of each group per sampled step, with outliers removed; None without any."""
        if not len(self.sampled.step) or not self.sampled.groups:
            return None
        values = shifts.filled(self.sampled.moving)
        return self._of_samples(_calm(values), search=False)

    @cached_property
    def own_phases(self) -> tuple[str, ...]:
        """Phases in which no rank waits for others, according to the sampled steps; empty if unknown or none."""
        one, blocks = self.sampled, self.grid.blocks
        if not len(one.step) or not len(blocks.first) or not np.isfinite(one.first).any():
            return OWN if len(self.ranks) == 1 else ()
        before = np.nanmedian(sum(blocks.field(name) for name in OWN))
        if not np.isfinite(before) or np.nanmedian(one.first) < CLEAN * before:
            return ()
        behind = np.nanmedian(blocks.field("optimizer_ns"))
        return (*OWN, "optimizer_ns") if np.nanmedian(one.after) >= CLEAN * behind else OWN

    @cached_property
    def has_peers(self) -> Flags:
        """Whether another rank makes the same calls in a step; shape (ranks,)."""
        kinds = self.sampled.kind
        return np.array([kinds.count(kind) > 1 for kind in kinds], bool)

    @cached_property
    def passes_on(self) -> bool:
        """Whether ranks receive from one another, as the stages of a pipeline do.

        Then the longest own time does not determine the step time: a rank may work longer while it would have waited.
        """
        return any("recv" in op for kind in self.sampled.kind for _, _, op in kind)

    def time_of(self, step: float) -> int:
        """Returns about when a step began, in ns since the epoch; 0 without rows."""
        grid, blocks = self.grid, self.grid.blocks
        first, end = (grid.first, grid.end_ns) if len(grid.first) and step >= grid.first[0] else (
            blocks.first, blocks.end_ns)
        if not len(first):
            return 0
        place = max(int(np.searchsorted(first, step, side="right")) - 2, -1)
        return int(end[place]) if place >= 0 else int(end[0] - self.typical_ns)

    def _of_blocks(self, values: Floats) -> Series:
        blocks = self.grid.blocks
        return _searched(values, blocks.weight, blocks.first)

    def _of_samples(self, values: Floats, *, search: bool = True) -> Series:
        return _searched(values, self.sampled.weight, self.sampled.step, search=search)


def _searched(values: Floats, weight: Floats, step: Integers, *, search: bool = True) -> Series:
    sigma = shifts.noise(values, weight) if len(values) >= shifts.LEAST else np.full(values.shape[1], np.inf)
    strength = shifts.strongest(values, weight, sigma)[0] if search and len(values) else np.zeros(values.shape[1])
    return Series(values=values, weight=weight, step=step, sigma=sigma, strength=strength)


def _calm(values: Floats) -> Any:
    """Returns the moving median of three values, which removes single outliers."""
    if len(values) < 3:
        return values
    around = np.concatenate([values[:1], values, values[-1:]])
    return np.median(np.stack([around[:-2], around[1:-1], around[2:]]), axis=0)
