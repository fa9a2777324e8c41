"""What explains a change: parts of the step, modules, operators and collectives, those that explain most first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from distprof.arrays import Floats
from distprof.merge.difference.change import Change, changes
from distprof.merge.difference.samples import Noise, Samples, mean
from distprof.merge.totals.step_time import middle_half

ENOUGH, LARGE = 4, 0.02
"""Items with at least such a part of the time that it takes to tell what all have in common."""
MOST_OF_ALL = 0.5
"""Part of the time from which one item is not compared with the others."""
NEAR = 0.15
"""Largest difference from what all have in common of most of the time."""
NEGLIGIBLE = 0.001
"""Part of the time below which an item does not share in certainty, and changes by noise alone."""
NOTABLE = 0.005
"""Part of the time below which a change that is certain does not come first."""
NUM_TABLES = 4
"""Parts, modules, operators and collectives: p of an item holds for all of them."""
WAITS = ("exposed", "other", "data")
"""Parts in which a rank waits for something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An item of a table."""

    item: Hashable
    change: Change
    """Of its time."""
    own: Change
    """The same without what all items have in common."""
    sides: Mapping[str, float]
    """The difference, split: forward and backward of a module, waiting and moving of a collective."""
    only_in: Literal["base", "new"] | None = None
    """The side that has it, where the other one does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Items of one kind; their differences with `rest_ns` add up to `difference_ns`."""

    rows: Sequence[Row]
    common: float | None
    """All items take so many times as long; None where few items do not tell."""
    difference_ns: float
    rest_ns: float


def parts_table(base: Sequence[Samples], new: Sequence[Samples], noise: Noise, difference_ns: float) -> Table:
    """Parts of the step, means of all steps.

    Args:
        base: Parts, of each run.
        new: Likewise.
        noise: What runs differ by.
        difference_ns: What they explain.
    """
    names = list(dict.fromkeys(item for run in (*base, *new) for item in run.items))
    same = {name: [name] for name in names}
    steps = [float(one.by_step.sum(axis=1).mean()) for one in (*base, *new)]
    found = changes([one.of(same) for one in base], [one.of(same) for one in new], mean, noise, waits=WAITS,
                    step_ns=steps, num_tables=NUM_TABLES)
    rows = sorted((_part(name, change, _only_in(base, new, [name])) for name, change in found.items()
                   if change.base or change.new), key=_weight)
    return Table(rows=rows, common=None, difference_ns=difference_ns,
                 rest_ns=difference_ns - sum(row.change.difference or 0.0 for row in rows))


def _part(name: Hashable, change: Change, only_in: Literal["base", "new"] | None) -> Row:
    """A row; what a part took on a side that does not know it is not known."""
    if only_in is not None:
        change = Change(base=change.base if only_in == "base" else None, new=change.new if only_in == "new" else None)
    return Row(item=name, change=change, own=change, sides={}, only_in=only_in)


def items_table(base: Sequence[Samples], new: Sequence[Samples], noise: Noise, *, has_common: bool,
                apart: Callable[[Hashable], bool] = lambda _: False, difference_ns: float | None = None,
                step_ns: Sequence[float] | None = None,
                counted: Mapping[str, Change] | None = None) -> Table:
    """Items that have sides, in typical steps.

    Args:
        base: Times by (item, side), of each run.
        new: Likewise, under the names of the base.
        noise: What runs differ by.
        has_common: True where all items may have something in common, as a machine that is slower.
        apart: Tells items that have nothing in common with the others, as communication.
        difference_ns: What they explain; None: their own sum.
        step_ns: The mean step of each run, where items are waits and vary like it.
        counted: Of items that were also counted, how that changed: what is certain comes before noise.
    """
    runs = [*base, *new]
    wholes = _wholes(runs)
    values = np.stack([middle_half(run.of(wholes).by_step) for run in runs])
    alike = np.array([not apart(item) for item in wholes], bool)
    common, scales = _common(values[:, alike], len(base)) if has_common else (None, None)
    mean_of = values.mean(axis=0)
    large = {item: wholes[item] for item, value in zip(wholes, mean_of, strict=True)
             if value >= NEGLIGIBLE * mean_of.sum()}
    before, after = ([run.of(large) for run in side] for side in (base, new))
    whole = changes(before, after, middle_half, noise, waits=list(large) if step_ns else (), step_ns=step_ns,
                    num_tables=NUM_TABLES)
    own = whole if scales is None else {
        **changes(before, after, middle_half, noise.without_queue, scales=scales, num_tables=NUM_TABLES),
        **{item: whole[item] for item in large if apart(item)}}
    other_work = _other_work(large, counted or {})
    rows = sorted((Row(item=item, change=whole[item], own=own[item], sides=_sides(runs, len(base), parts),
                       only_in=_only_in(base, new, parts)) for item, parts in large.items()),
                  key=lambda row: _weight(row, does_other_work=row.item in other_work,
                                          least_ns=NOTABLE * float(mean_of.sum())))
    total = float((values[len(base):].mean(axis=0) - values[:len(base)].mean(axis=0)).sum())
    explained = total if difference_ns is None else difference_ns
    return Table(rows=rows, common=common, difference_ns=explained,
                 rest_ns=explained - sum(row.change.difference or 0.0 for row in rows))


def _wholes(runs: Sequence[Samples]) -> dict[Hashable, list[Hashable]]:
    """Items without their sides -> the items that these are the sum of."""
    keys: list[Any] = list(dict.fromkeys(item for run in runs for item in run.items))
    found: dict[Hashable, list[Hashable]] = {}
    for key in keys:
        found.setdefault(key[:-1] if len(key) > 2 else key[0], []).append(key)
    return found


def _other_work(items: Collection[Hashable], counted: Mapping[str, Change]) -> set[Hashable]:
    """Items that do other work than before; none where most do, as in a wider model: that singles none out."""
    known = {item: change for item in items if (change := counted.get(str(item))) and (change.base or change.new)}
    found = {item for item, change in known.items() if change.verdict == "changed"}
    return found if 2 * len(found) <= len(known) or len(known) < ENOUGH else set()


def _weight(row: Row, *, does_other_work: bool = False, least_ns: float = 0.0) -> tuple[bool, bool, float]:
    """What changed notably first, then what does other work than before; the larger difference before the smaller."""
    has_changed = row.own.verdict == "changed" and abs(row.own.difference or 0.0) >= least_ns
    return not has_changed, not does_other_work, -abs(row.own.difference or 0.0)


def _common(values: Floats, num_base: int) -> tuple[float | None, Floats | None]:
    """How many times as long all items take, of the new runs, and of each run beside the mean of the base.

    The median, weighted by time, of the ratios of items: what less than half of the time does otherwise does not move
    it. None where most of the time is not near it: then items have nothing in common.
    """
    usual = values[:num_base].mean(axis=0)
    weights = usual / usual.sum() if usual.sum() else usual
    large = weights >= LARGE
    if large.sum() < ENOUGH or weights.max() >= MOST_OF_ALL:
        return None, None
    scales = [_weighted_median(run[large] / usual[large], weights[large]) for run in values]
    if min(scales) <= 0:
        return None, None
    common = float(np.mean(scales[num_base:]))
    expected = common * usual[large]
    is_near = np.abs(values[num_base:].mean(axis=0)[large] - expected) <= NEAR * expected
    if weights[large][is_near].sum() < MOST_OF_ALL * weights.sum():
        return None, None
    return common, np.array(scales)


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    middle = int(np.searchsorted(reached, reached[-1] / 2))
    at = values[order][middle]
    is_between = middle + 1 < len(order) and reached[middle] * 2 == reached[-1]
    return float((at + values[order][middle + 1]) / 2 if is_between else at)


def _only_in(base: Sequence[Samples], new: Sequence[Samples],
             keys: Sequence[Hashable]) -> Literal["base", "new"] | None:
    in_base, in_new = (any(not set(keys).isdisjoint(run.items) for run in side) for side in (base, new))
    return None if in_base and in_new else "base" if in_base else "new"


def _sides(runs: Sequence[Samples], num_base: int, keys: Sequence[Any]) -> dict[str, float]:
    """Differences of the typical step by side."""
    each = {key[-1]: [float(middle_half(run.of({key: [key]}).by_step)[0]) for run in runs] for key in keys}
    return {side: float(np.mean(found[num_base:]) - np.mean(found[:num_base])) for side, found in each.items()}
