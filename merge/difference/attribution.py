"""Finds what explains a change: parts of the step, modules, operators and collectives, largest contributions first."""

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
"""A common factor is computed only from at least this many items, each with at least this share of the time."""
MOST_OF_ALL = 0.5
"""If one item has at least this share of the time, there is no common factor. Also, items with at least this share of
the time must be near the factor."""
NEAR = 0.15
"""Largest relative deviation from the common factor at which an item is near it."""
NEGLIGIBLE = 0.001
"""Items below this share of the time are left out: they only add noise, and tests to correct for."""
NOTABLE = 0.005
"""A certain change below this share of the time is not listed first."""
NUM_TABLES = 4
"""Parts, modules, operators and collectives: the p-value of an item is corrected for the items of all these tables."""
WAITS = ("exposed", "other", "data")
"""Parts in which a rank waits for something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An item of a table."""

    item: Hashable
    change: Change
    """Change of its time."""
    own: Change
    """The same, relative to the factor common to all items."""
    sides: Mapping[str, float]
    """The difference split by side: forward and backward of a module, waiting and moving of a collective."""
    only_in: Literal["base", "new"] | None = None
    """The only side that has the item; None if both have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Items of one kind; their differences and `rest_ns` add up to `difference_ns`."""

    rows: Sequence[Row]
    common: float | None
    """Factor by which all items take longer; None if the items do not show one."""
    difference_ns: float
    rest_ns: float


def parts_table(base: Sequence[Samples], new: Sequence[Samples], noise: Noise, difference_ns: float) -> Table:
    """Compares parts of the step, as means of all steps.

    Args:
        base: Parts, one for each run.
        new: Likewise.
        noise: How much runs differ by themselves.
        difference_ns: The difference that the parts explain.
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
    """Makes a row; the time of a part is unknown on a side that does not record it."""
    if only_in is not None:
        change = Change(base=change.base if only_in == "base" else None, new=change.new if only_in == "new" else None)
    return Row(item=name, change=change, own=change, sides={}, only_in=only_in)


def items_table(base: Sequence[Samples], new: Sequence[Samples], noise: Noise, *, has_common: bool,
                apart: Callable[[Hashable], bool] = lambda _: False, difference_ns: float | None = None,
                step_ns: Sequence[float] | None = None,
                counted: Mapping[str, Change] | None = None) -> Table:
    """Compares items that have sides, in typical steps.

    Args:
        base: Times by (item, side), one for each run.
        new: Likewise, under the names of the base.
        noise: How much runs differ by themselves.
        has_common: Whether all items may share a common factor, as on a slower machine.
        apart: Returns whether an item does not share it, like communication.
        difference_ns: The difference that the items explain; None: the sum of theirs.
        step_ns: The mean step of each run, if items are waits, which vary like the step.
        counted: For items that were also counted, the change of the count: certain changes are listed before noise.
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
    """Returns items without their sides -> the (item, side) keys that they are the sum of."""
    keys: list[Any] = list(dict.fromkeys(item for run in runs for item in run.items))
    found: dict[Hashable, list[Hashable]] = {}
    for key in keys:
        found.setdefault(key[:-1] if len(key) > 2 else key[0], []).append(key)
    return found


def _other_work(items: Collection[Hashable], counted: Mapping[str, Change]) -> set[Hashable]:
    """Returns items that do different work; none if most do, as in a wider model, because that singles none out."""
    known = {item: change for item in items if (change := counted.get(str(item))) and (change.base or change.new)}
    found = {item for item, change in known.items() if change.verdict == "changed"}
    return found if 2 * len(found) <= len(known) or len(known) < ENOUGH else set()


def _weight(row: Row, *, does_other_work: bool = False, least_ns: float = 0.0) -> tuple[bool, bool, float]:
    """Sort key: notable changes first, then items that do different work; larger differences before smaller ones."""
    has_changed = row.own.verdict == "changed" and abs(row.own.difference or 0.0) >= least_ns
    return not has_changed, not does_other_work, -abs(row.own.difference or 0.0)


def _common(values: Floats, num_base: int) -> tuple[float | None, Floats | None]:
    """Returns the factor by which all items take longer in the new runs, and in each run relative to the mean of the
    base.

    It is the median, weighted by time, of the ratios of items, which is not affected by what less than half of the time
    does. Returns None if most of the time is not near it: then items have no common factor.
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
    """Returns the differences of the typical step by side."""
    each = {key[-1]: [float(middle_half(run.of({key: [key]}).by_step)[0]) for run in runs] for key in keys}
    return {side: float(np.mean(found[num_base:]) - np.mean(found[:num_base])) for side, found in each.items()}
