"""Selects the operators that a user asks for."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import polars as pl

from distprof.errors import UsageError
from distprof.merge.activity.device.commands import GRAPHS
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, PYTHON, TYPES

DEFAULT_TYPES = ("operator", "runtime")
ASKED = tuple(name for number, name in enumerate(TYPES) if number != PYTHON)
"""What `--type` accepts."""
SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions that must all hold; an empty one always does."""

    types: Sequence[str] = ()
    """Types in `ASKED`. If empty: operators, runtime calls, and what ran on a device for neither."""
    op: str | None = None
    """A regular expression that may match any part of the name."""
    module: str | None = None
    """A pattern of module paths, like `layers.*.attention`."""
    dtype: str | None = None
    """A part of the types of the inputs."""
    ranks: Sequence[int] = ()
    steps: Sequence[int] = ()
    phases: Sequence[str] = ()
    min_ns: float | None = None
    """Minimum mean time of a call; `max_ns` is the maximum."""
    max_ns: float | None = None

    def of_groups(self, table: pl.DataFrame) -> pl.DataFrame:
        """Returns the rows of `grouped_sums` whose mean time per call is within the limits."""
        table = table if self.min_ns is None else table.filter(pl.col("mean_ns") >= self.min_ns)
        return table if self.max_ns is None else table.filter(pl.col("mean_ns") <= self.max_ns)


def check(selection: Selection, ranks: Collection[int], steps: Collection[int], phases: Collection[str]) -> None:
    """Checks that what is selected exists.

    Raises:
        UsageError: A rank, step, phase or type does not exist, or the regular expression is invalid.
    """
    _check("--rank", selection.ranks, sorted(ranks))
    _check("--step", selection.steps, sorted(steps))
    _check("--phase", selection.phases, sorted(phases))
    check_words(selection)


def check_words(selection: Selection) -> None:
    """Checks, like `check`, what can be checked without any rows."""
    _of_types(selection.types)
    if selection.op is not None:
        matching(selection.op, ())


def selected(rows: pl.DataFrame, selection: Selection) -> pl.DataFrame:
    """Returns the selected rows of `run_operators`."""
    conditions = [_of_types(selection.types)]
    for wanted, column in ((selection.ranks, "rank"), (selection.steps, "step"), (selection.phases, "phase")):
        if wanted:
            conditions.append(pl.col(column).is_in(wanted))
    if selection.op is not None:
        conditions.append(pl.col("op").is_in(matching(selection.op, rows["op"].unique().to_list())))
    if selection.module is not None:
        paths = in_modules(selection.module, rows["module_path"].drop_nulls().unique())
        conditions.append(pl.col("module_path").is_in(paths))
    if selection.dtype is not None:
        conditions.append(pl.col("dtypes").cast(pl.String).str.contains(selection.dtype, literal=True))
    return rows.filter(conditions)


def _of_types(types: Sequence[str]) -> pl.Expr:
    for one in types:
        if one not in ASKED:
            near = get_close_matches(one, ASKED, n=1)
            raise UsageError(f"unknown type {one!r}; choose from {', '.join(ASKED)}",
                             hint=f"--type {near[0]}" if near else None)
    if types:
        return pl.col("type").is_in(types)
    launcher = pl.col("launched_by").cast(pl.String)
    by_operator = launcher.is_not_null() & ~launcher.str.contains(f"^(?:{GRAPHS})$")
    orphan = pl.col("type").is_in(TYPES[NUM_HOST:]) & ~by_operator
    return pl.col("type").is_in(DEFAULT_TYPES) | orphan


def _check(option: str, wanted: Sequence[int] | Sequence[str], known: Sequence[int] | Sequence[str]) -> None:
    for one in wanted:
        if one not in known:
            shown = ", ".join(map(str, known[:SHOWN])) + (", ..." if len(known) > SHOWN else "")
            raise UsageError(f"{option} {one} is not in this run; "
                             + (f"choose from {shown}" if shown else "it has none"))


def in_modules(pattern: str, paths: Iterable[str]) -> list[str]:
    """Returns the paths of modules that match a pattern."""
    return [path for path in paths if fnmatch.fnmatchcase(path, pattern)]


def matching(pattern: str, names: Collection[str]) -> list[str]:
    """Returns the names in which a regular expression is found.

    Raises:
        UsageError: It is not a valid regular expression.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--op {pattern!r} is not a valid regular expression: {error}") from None
    return [name for name in names if expression.search(name)]
