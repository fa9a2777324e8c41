"""Computes all differences between two runs, or two sets of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.passes import TIME, TRACE
from distprof.merge.difference.attribution import Table, items_table, parts_table
from distprof.merge.difference.change import Change, between_runs, changes, exact, inverse
from distprof.merge.difference.facts import Fact, Note, facts_of, notes_of
from distprof.merge.difference.observed import Observed
from distprof.merge.difference.pairing import Pairing, modules_in, paired
from distprof.merge.difference.samples import BETWEEN_RUNS, ON_PROCESSORS, Noise, Samples, Statistic, mean
from distprof.merge.difference.split import is_communication, with_rest
from distprof.merge.totals.step_time import LIGHT, TRACED, middle
from distprof.merge.totals.workload import Unit

UNEVEN = 0.05
"""Times on a processor are not judged if the share of the step without a processor differs by more than this: threads
that share cores and caches also compute more slowly there."""
COUNTS = ("params", "stored_params", "fwd_flops", "bwd_flops", "recompute_flops")
"""Counts of the model that are compared."""
RATES = ("samples_per_second", "flops_per_second", "mfu")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Differences between the runs of two sides."""

    base: Sequence[Observed]
    new: Sequence[Observed]
    given_noise: float | None = None
    """Relative standard deviation between runs, if they do not measure it; None: the usual value is assumed."""

    @property
    def runs(self) -> list[Observed]:
        """Runs of both sides."""
        return [*self.base, *self.new]

    @cached_property
    def noise(self) -> Noise:
        """How much runs differ by themselves."""
        base, new = ([run.queued_ratio for run in side] for side in (self.base, self.new))
        usual = BETWEEN_RUNS if all(run.is_on_devices for run in self.runs) else ON_PROCESSORS
        return Noise(assumed=usual if self.given_noise is None else self.given_noise, base_queued=base, new_queued=new)

    @cached_property
    def step_passes(self) -> tuple[str, ...]:
        """The passes that step times are taken from: those that all runs have; empty if no pass is in all of them."""
        light = tuple(name for name in LIGHT if all(name in run.light_passes for run in self.runs))
        each = (tuple(name for name in some if all(name in run.passes for run in self.runs))
                for some in (light, LIGHT, *TRACED))
        return next((names for names in each if names), ())

    @property
    def num_steps(self) -> int:
        """Number of steps in these passes in the run with the fewest."""
        return min(int(run.steps_of(self.step_passes)["step"].n_unique()) for run in self.runs)

    @cached_property
    def step(self) -> Change | None:
        """Change of the step time; None if no pass is in all runs."""
        return self.of_steps("duration_ns", middle)

    @cached_property
    def cpu(self) -> Change | None:
        """Change of the time per step in which the thread that runs the steps was on a processor; None if unknown.

        Without an interval and p if the sides were short of processors to different degrees.
        """
        found = self.of_steps("cpu_ns")
        return found if found is None or self.shortage is None else replace(found, low=None, high=None, p=None)

    @cached_property
    def shortage(self) -> tuple[float, float] | None:
        """Share of a step in which threads had no processor, for each side, if these differ much; else None."""
        base, new = (_mean([run.queued_ratio for run in side]) for side in (self.base, self.new))
        return (base, new) if base is not None and new is not None and abs(base - new) > UNEVEN else None

    def of_steps(self, column: str, statistic: Statistic = mean, passes: Sequence[str] | None = None) -> Change | None:
        """Returns the change of a column of the steps table; None if it is unknown.

        Args:
            column: Its name.
            statistic: Statistic over the steps.
            passes: Passes whose steps are used; None: those of step times.
        """
        passes = self.step_passes if passes is None else passes
        sides = [[run.step_samples(passes, column) if passes else None for run in side] for side in (
            self.base, self.new)]
        base, new = ([one for one in side if one is not None] for side in sides)
        if len(base) < len(self.base) or len(new) < len(self.new):
            return None
        return changes(base, new, statistic, self.noise.on_core if column == "cpu_ns" else self.noise)["step"]

    def _of_step(self, run: Observed, samples: Samples) -> Samples:
        """Rescales times from the steps in which they were measured to the step time, unless they are of kernels."""
        steps, parts = run.step_samples(self.step_passes), run.parts if self.parts_from == TRACE else run.timed_parts
        if steps is None or parts is None or (self.parts_from == TRACE and run.has_device_timeline):
            return samples
        scale = float(middle(steps.by_step)[0]) / float(parts.by_step.sum(axis=1).mean())
        return replace(samples, values=samples.values * scale)

    def _parts_of(self, run: Observed) -> Samples | None:
        if self.parts_from == TIME:
            return None if run.timed_parts is None else self._of_step(run, run.timed_parts)
        steps = run.step_samples(self.step_passes)
        if steps is None or not run.has_device_timeline:
            return self._of_step(run, run.parts)
        return with_rest(run.parts, float(middle(steps.by_step)[0]))

    @cached_property
    def parts_from(self) -> str | None:
        """trace or time: the pass that parts come from; None if no pass with parts is in all runs."""
        if all(run.has_timeline for run in self.runs):
            return TRACE
        return TIME if all(run.timed_parts is not None for run in self.runs) else None

    @cached_property
    def parts(self) -> Table | None:
        """Parts of the step, whose differences and a rest add up to that of the step."""
        if self.parts_from is None or self.step is None:
            return None
        base, new = ([found for run in side if (found := self._parts_of(run))] for side in (self.base, self.new))
        return parts_table(base, new, self.noise, self.step.difference or 0.0)

    @cached_property
    def pairing(self) -> Pairing:
        """Pairs of modules of the base and of the new side, by the first run of each."""
        return paired(modules_in(self.base[0]), modules_in(self.new[0]))

    @cached_property
    def modules(self) -> Table | None:
        """Modules, whose differences and a rest add up to that of forward and backward; None without a timeline."""
        if self.parts_from != TRACE or not all(run.has_modules for run in self.runs):
            return None
        names = self.pairing.to_base
        base, new = ([self._of_step(run, run.module_times) for run in side] for side in (self.base, self.new))
        explained = sum(row.change.difference or 0.0 for row in self.parts.rows
                        if row.item in ("forward", "backward", "evaluation")) if self.parts is not None else None
        return items_table(base, [_renamed(one, names) for one in new], self.noise, has_common=True,
                           difference_ns=explained, counted=self.own_flops)

    @cached_property
    def module_flops(self) -> Mapping[str, Change]:
        """FLOPs per step of modules that both sides have, including inner modules, by the path in the base."""
        return self._of_modules(*(_module_flops(side[0]) for side in (self.base, self.new)))

    @cached_property
    def own_flops(self) -> Mapping[str, Change]:
        """The same without inner modules."""
        return self._of_modules(*(_own(_module_flops(side[0])) for side in (self.base, self.new)))

    def _of_modules(self, base: Mapping[str, float], new: Mapping[str, float]) -> dict[str, Change]:
        return {path: exact(base[path], new[other]) for path, other in self.pairing.pairs.items()
                if path in base and other in new}

    @cached_property
    def operators(self) -> Table | None:
        """Operators by their self time."""
        if self.parts_from != TRACE:
            return None
        base, new = ([self._of_step(run, found) for run in side if (found := run.operators)]
                     for side in (self.base, self.new))
        if len(base) < len(self.base) or len(new) < len(self.new):
            return None
        return items_table(base, new, self.noise, has_common=True, apart=is_communication)

    @cached_property
    def collectives(self) -> Table | None:
        """Time in collectives by op and group."""
        base, new = ([self._of_step(run, found[0]) for run in side if (found := run.collectives)]
                     for side in (self.base, self.new))
        if len(base) < len(self.base) or len(new) < len(self.new):
            return None
        steps = [float(parts.by_step.sum(axis=1).mean()) for run in self.runs if (parts := self._parts_of(run))]
        return items_table(base, new, self.noise, has_common=False, step_ns=steps)

    @cached_property
    def collective_counts(self) -> Mapping[tuple[str, str, str], Change]:
        """Calls and bytes per rank and step, by op, group and quantity."""
        if self.collectives is None:
            return {}
        sides = [[_counts(run) for run in side] for side in (self.base, self.new)]
        keys = dict.fromkeys(key for side in sides for counts in side for key in counts)
        return {key: exact(*(_mean([counts.get(key) for counts in side]) for side in sides)) for key in keys}

    @cached_property
    def counts(self) -> Mapping[str, Change]:
        """Parameters and FLOPs of the model, as counted; and memory."""
        found = {name: exact(*self.of_summaries("model", name)) for name in COUNTS}
        unit = self.flops_unit
        flops = _flops if unit is None else partial(_flops_per, unit)
        return {**found, "flops": exact(*self._of_both(flops)), "param_bytes": exact(*self._of_both(_param_bytes)),
                "peak_bytes": exact(*self._of_both(lambda run: run.peak_bytes))}

    @cached_property
    def flops_unit(self) -> Unit | None:
        """The unit of data that `flops` are per, if all runs know how much data the counted step had; None: per counted
        step.

        Elements, if the samples of a run differ in length.
        """
        has_lengths = any(run.workload is not None and run.workload.unit == "elements" for run in self.runs)
        unit: Unit = "elements" if has_lengths else "samples"
        return unit if all((work := run.workload_in(unit)) is not None and work.counted for run in self.runs) else None

    @cached_property
    def rates(self) -> Mapping[str, Change]:
        """Quantities per second; their error is that of the step time. Unknown if the sides measured it differently."""
        if len({set(run.summary["step"]["passes"] or ()) <= set(LIGHT) for run in self.runs}) > 1:
            return {name: exact(None, None) for name in RATES}
        return {name: self._rate(name, self.step) for name in RATES}

    def _rate(self, name: str, of: Change | None) -> Change:
        each = [[run.summary["step"][name] for run in side] for side in (self.base, self.new)]
        if self.noise.is_measured and None not in (*each[0], *each[1]):
            return between_runs(*each)
        return inverse(exact(*map(_mean, each)), of)

    @cached_property
    def facts(self) -> list[Fact]:
        """Sizes, versions, devices and arguments of the runs."""
        return facts_of(self.base, self.new)

    @cached_property
    def notes(self) -> list[Note]:
        """What cannot be compared."""
        return notes_of(self.base, self.new, self.pairing)

    def of_summaries(self, *path: str) -> tuple[float | None, float | None]:
        """Returns a value of `stats --json` on both sides, as the mean over several runs."""
        def value(run: Observed) -> float | None:
            found: Any = run.summary
            for key in path:
                found = None if found is None else found.get(key)
            return None if found is None else float(found)

        return self._of_both(value)

    def _of_both(self, value: Any) -> tuple[float | None, float | None]:
        base, new = (_mean([value(run) for run in side]) for side in (self.base, self.new))
        return base, new


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _renamed(samples: Samples, names: Mapping[str, str]) -> Samples:
    """Names modules as in the base; a name that belongs to another module there is marked."""
    taken = set(names.values())
    items: Sequence[Any] = samples.items
    renamed = [(None if path is None else names.get(path, f"{path} (new)" if path in taken else path), side)
               for path, side in items]
    return replace(samples, items=renamed)


def _module_flops(run: Observed) -> dict[str, float]:
    if run.tables is None:
        return {}
    flops = pl.sum_horizontal("fwd_flops_mean", "bwd_flops_mean", "recompute_flops_mean")
    known = run.modules.filter(pl.col("fwd_flops_mean").is_not_null())
    return dict(known.select("module_path", flops).unique("module_path", keep="first").iter_rows())


def _own(flops: Mapping[str, float]) -> dict[str, float]:
    """Subtracts the FLOPs of the modules directly inside."""
    found = dict(flops)
    for path, number in flops.items():
        parent = path.rpartition(".")[0]
        if path and parent in found:
            found[parent] -= number
    return found


def _flops(run: Observed) -> float | None:
    found = [run.summary["model"][name] for name in ("fwd_flops", "bwd_flops", "recompute_flops")]
    return None if None in found else float(sum(found))


def _flops_per(unit: Unit, run: Observed) -> float | None:
    found, work = _flops(run), run.workload_in(unit)
    return None if found is None or work is None or not work.counted else found / work.counted


def _param_bytes(run: Observed) -> float | None:
    """Returns the bytes of the rank that holds most."""
    found = [rank.recorded.params.param_bytes for rank in run.run.ranks
             if rank.recorded is not None and rank.recorded.params is not None]
    return float(max(found)) if found else None


def _counts(run: Observed) -> dict[tuple[str, str, str], float]:
    assert run.collectives is not None
    return {(op, group, name): float(value) for op, group, *values in run.collectives[1].iter_rows()
            for name, value in zip(("calls", "size_bytes"), values, strict=True)}
