"""Rows of operators that share keys, added up: of one rank where it is read, and of all ranks as they come.

With ranks only their times in groups grow.
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
    """Of one rank, rounded once. Polars adds in one of several orders, whichever its threads come to.

    Args:
        numbers: The group of each row; every group has one.
        values: What is added; 0 where it is not known.
        num_groups: How many there are.
    """
    if not values.any():
        return np.zeros(num_groups)
    order = sorted_places(numbers)
    ends, ordered = np.cumsum(np.bincount(numbers, minlength=num_groups)).tolist(), values[order].tolist()
    return np.array([fsum(ordered[start:end]) for start, end in pairwise((0, *ends))])


class RealSums:
    """Adds ranks up in their order with Knuth's TwoSum, which keeps what rounding leaves out: it would show."""

    def __init__(self, names: Sequence[str]) -> None:
        self._sums = {name: np.zeros(0) for name in names}
        self._lost = {name: np.zeros(0) for name in names}

    def grow(self, num_groups: int) -> None:
        """Makes room for groups that were not there before."""
        for held in (self._sums, self._lost):
            for name, values in held.items():
                held[name] = np.concatenate((values, np.zeros(num_groups - len(values))))

    def add(self, groups: Integers, columns: Mapping[str, Floats]) -> None:
        """Takes the sums of a rank.

        Args:
            groups: The places of its groups, each once.
            columns: A number for each of these.
        """
        for name, sums in self._sums.items():
            before, more = sums[groups], columns[name]
            after = before + more
            part = after - before
            self._lost[name][groups] += (before - (after - part)) + (more - part)
            sums[groups] = after

    def done(self) -> Mapping[str, Floats]:
        """A number for each group."""
        return {name: sums + self._lost[name] for name, sums in self._sums.items()}


BY = {"op": "op", "type": "type", "category": "category", "module": "module_path", "class": "class_name",
      "shape": "shapes", "dtype": "dtypes", "phase": "phase", "rank": "rank", "stream": "stream", "step": "step",
      "stack": "stack"}
"""What `--by` takes -> column."""
KEYS = tuple(BY.values())
WHOLE = ("calls", "host_ns", "self_host_ns", "device_ns", "self_device_ns", "duration_ns")
"""Sums of integers, which are the same in whatever order they are added."""
REAL = ("squared_ns", "compute_ns", "memory_ns", "least_ns")
"""Sums of others, which are not."""
BUSY = ("self_host_ns", "self_device_ns")
WORKED = tuple(f"{what}_ns_on_{where}" for what in ("counted", "limited") for where in ("host", "device"))
"""Time of the calls whose FLOPs are known, and of those whose least time is."""
IN_STEP = ("group", "rank", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedUp:
    """Of one rank or of several."""

    groups: pl.DataFrame
    """A row for all that share the keys, in the order of their first rows: `KEYS`, null where they are not the same
    for all; whether they are; sums; `num_ranks`."""
    in_steps: pl.DataFrame
    """A row for each group, rank and step: `IN_STEP`, and `BUSY` in types as small as the numbers allow."""


def added_up(rows: pl.DataFrame, keys: Sequence[str]) -> AddedUp:
    """Adds rows up.

    Args:
        rows: Of `run_operators`: all those of each rank that there is.
        keys: Columns, of `KEYS`.
    """
    rows = with_categories(rows)
    counted, limited = (pl.col(name).is_not_null() for name in ("flops", "compute_ns"))
    duration = pl.when(pl.col("host_ns") > 0).then("host_ns").otherwise("device_ns")
    rows = rows.with_columns(duration_ns=duration, least_ns=pl.max_horizontal("compute_ns", "memory_ns"), **{
        f"{what}_ns_on_{where}": pl.when(has).then(f"{where}_ns") for what, has in (
            ("counted", counted), ("limited", limited)) for where in ("host", "device")})
    several = {name: pl.col(name).n_unique() > 1 for name in _away(keys)}
    groups = _grouped(rows, keys, several, num_ranks=pl.col("rank").n_unique().cast(pl.Int64))
    numbers = numbers_of(rows, groups, keys)
    real = {name: sums_of(numbers.to_numpy(), rows[name].fill_null(0.0).to_numpy(), len(groups)) for name in REAL}
    in_steps = rows.with_columns(group=numbers).group_by(IN_STEP, maintain_order=True).agg(pl.col(*BUSY).sum())
    return AddedUp(groups=groups.with_columns(**real), in_steps=small(in_steps))


def joined(groups: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """Adds up `groups` of different ranks, but for `REAL`; those of the first keep their places."""
    several = {name: (pl.col(name).n_unique() > 1) | pl.col(mixed(name)).any() for name in _away(keys)}
    return _grouped(pl.concat(groups), keys, several, num_ranks=pl.col("num_ranks").sum())


def _grouped(rows: pl.DataFrame, keys: Sequence[str], several: Mapping[str, pl.Expr], num_ranks: pl.Expr) -> (
        pl.DataFrame):
    """A row for all that share the keys; `several`: whether rows have several values of a column."""
    found = rows.group_by(keys, maintain_order=True).agg(
        *_sums(), num_ranks=num_ranks, **{name: pl.col(name).first() for name in several},
        **{mixed(name): condition for name, condition in several.items()})
    return found.with_columns(pl.when(~pl.col(mixed(name))).then(name).alias(name) for name in several)


def numbers_of(rows: pl.DataFrame, groups: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """The place among the groups of each row."""
    places = groups.select(keys).with_row_index("group")
    return rows.select(keys).join(places, on=keys, how="left", nulls_equal=True, maintain_order="left")["group"]


def small(in_steps: pl.DataFrame) -> pl.DataFrame:
    """In the smallest types that hold its numbers: there is one for all that a job did."""
    return in_steps.select(one.shrink_dtype() for one in in_steps)


def mixed(name: str) -> str:
    """The column that says whether rows with several values of a column were added up."""
    return f"mixed {name}"


def _away(keys: Sequence[str]) -> list[str]:
    return [name for name in KEYS if name not in keys]


def _sums() -> list[pl.Expr]:
    return [pl.col(*WHOLE, *WORKED).sum(), pl.col("min_ns").min(), pl.col("max_ns").max(), *(
        pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in (*COSTS, *MEMORY))]


AT_ONCE = 16
"""Ranks that are added in one go: polars takes some time each time."""


class RunSums:
    """Takes what was added up of each rank.

    Of a group, a row stays. Of each rank only its time in a group and step does, in some bytes: medians over ranks, and
    how likely a rank is slow by chance, need them all.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """Rows are kept apart by these columns."""
        self.keys = tuple(keys)
        self._waiting = list[AddedUp]()
        self._groups = list[pl.DataFrame]()
        self._in_steps = list[pl.DataFrame]()
        self._real = RealSums(REAL)

    def add(self, found: AddedUp) -> None:
        """Takes ranks that were not taken yet."""
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
        """Those with any row."""
        return self._all("rank")

    @property
    def steps(self) -> list[int]:
        """In which there is any row."""
        return self._all("step")

    def busy(self, name: str) -> Iterator[pl.DataFrame]:
        """A row for each group, rank and step, with its time: `group`, `rank`, `step`, and `name`, one of `BUSY`.

        Ranks come a few at a time: rows of all take many times what they are held in.
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
