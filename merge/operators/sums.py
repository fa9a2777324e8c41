"""Sums rows of operators that share keys: of one rank where it is read, and of all ranks as they come.

With the number of ranks, only their times in groups grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

import numpy as np
import polars as pl

from distprof.arrays import Floats, Integers
from distprof.merge.operators.categories import with_categories
from distprof.merge.operators.one_key import sorted_places
from distprof.merge.operators.timeline.grouped_calls import COSTS, MEMORY


def sums_of(numbers: Integers, values: Floats, num_groups: int) -> Floats:
    """Sums values by group for one rank, each rounded once. Polars adds in varying order, depending on its threads.

    Args:
        numbers: The group of each row; every group has one.
        values: What is summed; 0 if unknown.
        num_groups: Number of groups.
    """
    if not values.any():
        return np.zeros(num_groups)
    order = sorted_places(numbers)
    ends, ordered = np.cumsum(np.bincount(numbers, minlength=num_groups)).tolist(), values[order].tolist()
    return np.array([fsum(ordered[start:end]) for start, end in pairwise((0, *ends))])


class RealSums:
    """Sums ranks in their order with Knuth's TwoSum, which compensates rounding errors: they would be visible."""

    def __init__(self, names: Sequence[str]) -> None:
        self._sums = {name: np.zeros(0) for name in names}
        self._lost = {name: np.zeros(0) for name in names}

    def grow(self, num_groups: int) -> None:
        """Makes room for new groups."""
        for held in (self._sums, self._lost):
            for name, values in held.items():
                held[name] = np.concatenate((values, np.zeros(num_groups - len(values))))

    def add(self, groups: Integers, columns: Mapping[str, Floats]) -> None:
        """Adds the sums of a rank.

        Args:
            groups: The indices of its groups, each once.
            columns: Per column, a number for each of these groups.
        """
        for name, sums in self._sums.items():
            before, more = sums[groups], columns[name]
            after = before + more
            part = after - before
            self._lost[name][groups] += (before - (after - part)) + (more - part)
            sums[groups] = after

    def done(self) -> Mapping[str, Floats]:
        """Returns a number for each group, per column."""
        return {name: sums + self._lost[name] for name, sums in self._sums.items()}


BY = {"op": "op", "type": "type", "category": "category", "module": "module_path", "class": "class_name",
      "shape": "shapes", "dtype": "dtypes", "phase": "phase", "rank": "rank", "stream": "stream", "step": "step",
      "stack": "stack"}
"""What `--by` accepts -> column."""
KEYS = tuple(BY.values())
WHOLE = ("calls", "host_ns", "self_host_ns", "device_ns", "self_device_ns", "duration_ns")
"""Columns of integers, whose sums do not depend on the order of addition."""
REAL = ("squared_ns", "compute_ns", "memory_ns", "least_ns")
"""Columns of floats, whose sums do."""
BUSY = ("self_host_ns", "self_device_ns")
WORKED = tuple(f"{what}_ns_on_{where}" for what in ("counted", "limited") for where in ("host", "device"))
"""Time of the calls whose FLOPs are known, and of those whose least time is known."""
IN_STEP = ("group", "rank", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedUp:
    """Sums of one rank or of several."""

    groups: pl.DataFrame
    """A row for all rows that share the keys, in the order of their first rows: `KEYS`, null if not the same for all;
    `mixed` columns, which say so; sums; `num_ranks`."""
    in_steps: pl.DataFrame
    """A row for each group, rank and step: `IN_STEP`, and `BUSY` in types as small as the numbers allow."""


def added_up(rows: pl.DataFrame, keys: Sequence[str]) -> AddedUp:
    """Sums rows by keys.

    Args:
        rows: All rows of `run_operators` of each included rank.
        keys: Columns, of `KEYS`.
    """
    rows = with_categories(rows)
    counted, limited = (pl.col(name).is_not_null() for name in ("flops", "compute_ns"))
    rows = rows.with_columns(least_ns=pl.max_horizontal("compute_ns", "memory_ns"), **{
        f"{what}_ns_on_{where}": pl.when(has).then(f"{where}_ns") for what, has in (
            ("counted", counted), ("limited", limited)) for where in ("host", "device")})
    several = {name: pl.col(name).n_unique() > 1 for name in _away(keys)}
    groups = _grouped(rows, keys, several, num_ranks=pl.col("rank").n_unique().cast(pl.Int64))
    numbers = numbers_of(rows, groups, keys)
    real = {name: sums_of(numbers.to_numpy(), rows[name].fill_null(0.0).to_numpy(), len(groups)) for name in REAL}
    in_steps = rows.with_columns(group=numbers).group_by(IN_STEP, maintain_order=True).agg(pl.col(*BUSY).sum())
    return AddedUp(groups=groups.with_columns(**real), in_steps=small(in_steps))


def joined(groups: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """Sums `groups` of different ranks, except for `REAL`; groups of the first frame keep their indices."""
    several = {name: (pl.col(name).n_unique() > 1) | pl.col(mixed(name)).any() for name in _away(keys)}
    return _grouped(pl.concat(groups), keys, several, num_ranks=pl.col("num_ranks").sum())


def _grouped(rows: pl.DataFrame, keys: Sequence[str], several: Mapping[str, pl.Expr], num_ranks: pl.Expr) -> (
        pl.DataFrame):
    """Returns a row for all rows that share the keys; `several`: whether rows have several values of a column."""
    found = rows.group_by(keys, maintain_order=True).agg(
        *_sums(), num_ranks=num_ranks, **{name: pl.col(name).first() for name in several},
        **{mixed(name): condition for name, condition in several.items()})
    return found.with_columns(pl.when(~pl.col(mixed(name))).then(name).alias(name) for name in several)


def numbers_of(rows: pl.DataFrame, groups: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """Returns the index of the group of each row."""
    places = groups.select(keys).with_row_index("group")
    return rows.select(keys).join(places, on=keys, how="left", nulls_equal=True, maintain_order="left")["group"]


def small(in_steps: pl.DataFrame) -> pl.DataFrame:
    """Converts to the smallest types that hold the numbers: there is a row for everything that a job did."""
    return in_steps.select(one.shrink_dtype() for one in in_steps)


def mixed(name: str) -> str:
    """Returns the name of the column that says whether summed rows have several values of a column."""
    return f"mixed {name}"


def _away(keys: Sequence[str]) -> list[str]:
    return [name for name in KEYS if name not in keys]


def _sums() -> list[pl.Expr]:
    return [pl.col(*WHOLE, *WORKED).sum(), pl.col("min_ns").min(), pl.col("max_ns").max(), *(
        pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in (*COSTS, *MEMORY))]


AT_ONCE = 16
"""Ranks that are joined at once, because each call of polars takes some time."""


class RunSums:
    """Joins the sums of ranks.

    For each group, one row is kept. For each rank, only its time in each group and step is kept, in a few bytes:
    medians over ranks, and how likely a rank is slow by chance, need all of them.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """Groups rows by these columns."""
        self.keys = tuple(keys)
        self._waiting = list[AddedUp]()
        self._groups = list[pl.DataFrame]()
        self._in_steps = list[pl.DataFrame]()
        self._real = RealSums(REAL)

    def add(self, found: AddedUp) -> None:
        """Adds ranks that were not added yet."""
        self._waiting.append(found)
        if len(self._waiting) >= AT_ONCE:
            self._take()

    @property
    def groups(self) -> pl.DataFrame:
        """`AddedUp.groups` of all ranks."""
        self._take()
        return self._groups[0].with_columns(**{name: pl.Series(values) for name, values in self._real.done().items()})

    @property
    def ranks(self) -> list[int]:
        """Ranks with any row."""
        return self._all("rank")

    @property
    def steps(self) -> list[int]:
        """Steps with any row."""
        return self._all("step")

    def busy(self, name: str) -> Iterator[pl.DataFrame]:
        """Yields a row for each group, rank and step, with its time: `group`, `rank`, `step`, and `name`, one of
        `BUSY`.

        Ranks come a few at a time, because the rows of all in this form take many times the stored size.
        """
        for part in self._parts():
            yield part.select(pl.col("group").cast(pl.UInt32), pl.col("rank", "step", name).cast(pl.Int64))

    def _parts(self) -> list[pl.DataFrame]:
        self._take()
        return self._in_steps

    def _all(self, name: str) -> list[int]:
        found = [part[name].drop_nulls().unique().cast(pl.Int64) for part in self._parts()]
        return pl.concat(found).unique().sort().to_list()

    def _take(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        come = pl.concat([one.groups for one in waiting])
        self._groups = [joined([*self._groups, come.drop(REAL)], self.keys)]
        self._real.grow(len(self._groups[0]))
        numbers, start, parts = numbers_of(come, self._groups[0], self.keys), 0, list[pl.DataFrame]()
        for one in waiting:
            own, start = numbers[start:start + len(one.groups)], start + len(one.groups)
            self._real.add(own.to_numpy(), {name: one.groups[name].to_numpy() for name in REAL})
            parts.append(one.in_steps.with_columns(group=own.gather(one.in_steps["group"])))
        self._in_steps.append(small(pl.concat(parts, how="vertical_relaxed").rechunk()))
