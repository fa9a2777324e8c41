"""What exports of all ranks have in common: process groups, numbered as exports name them, and what is counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT, ranks_of, text_of

Ranks = tuple[int, ...]
Target = Literal["astra-sim", "replay"]
"""Who is to read it: to ASTRA-sim communication is never the work of a processor."""
GROUPS_NAME = "## process_group:init ##"
"""Name of the node that lists them."""


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """Process groups that communicate, all ranks first."""

    ranks: tuple[Ranks, ...]
    """Global ranks of each, by its number."""
    named: Mapping[tuple[Ranks, str], int]
    """Number by ranks and torch's name, of those that share their ranks with another group."""

    def __iter__(self) -> Iterator[tuple[Ranks, int]]:
        return iter((ranks, number) for number, ranks in enumerate(self.ranks))

    def __len__(self) -> int:
        return len(self.ranks)

    def number(self, row: Mapping[str, Any]) -> int | None:
        """The group of a collective, by `group` and `group_ranks`; None where it is not known.

        Where several groups have its ranks and it has no name, that is the first of them.
        """
        ranks = ranks_of(row["group_ranks"])
        if ranks not in self.ranks:
            return None
        return self.named.get((ranks, str(row["group"])), self.ranks.index(ranks))


def groups_of(rows: pl.DataFrame, world_size: int) -> ProcessGroups:
    """Numbers the process groups that communicate.

    Groups of equal ranks are told apart by torch's names for them, where all of their ranks have the same names: each
    has communicators and an order of its own.

    Args:
        rows: Communication of all ranks.
        world_size: Ranks of the job.
    """
    world = tuple(range(world_size))
    names = {ranks: _names(rows.filter(pl.col("group_ranks") == text))
             for text in rows["group_ranks"].unique().to_list() if (ranks := ranks_of(text))}
    every = [world, *sorted(names.keys() - {world})]
    numbered = [(ranks, name) for ranks in every for name in names.get(ranks) or [""]]
    return ProcessGroups(ranks=tuple(ranks for ranks, _ in numbered),
                         named={one: number for number, one in enumerate(numbered) if len(names.get(one[0], ())) > 1})


def _names(rows: pl.DataFrame) -> list[str]:
    """Names of the groups that have the same ranks, the first one that was made first; none where ranks differ."""
    of_ranks = {frozenset(name for name in found if name is not None) for found in rows.group_by("rank").agg(
        pl.col("group").cast(pl.String).unique())["group"].to_list()}
    return sorted(of_ranks.pop(), key=lambda name: (len(name), name)) if len(of_ranks) == 1 else []


def with_groups(rows: pl.DataFrame, world_size: int) -> pl.DataFrame:
    """The rows with `group_ranks` where it is not known, but the collective was found on all ranks."""
    world = text_of(range(world_size))
    everybody = (pl.col("num_ranks") == world_size) & ~pl.col("op").is_in(POINT_TO_POINT)
    return rows.with_columns(pl.col("group_ranks").cast(pl.String).fill_null(pl.when(everybody).then(pl.lit(world))))


def described(number: int) -> str:
    """torch's description of a group."""
    return "undefined" if number else "default_pg"


def list_of_groups(groups: ProcessGroups, *, all_named: bool = False) -> str:
    """The process groups as JSON; no ranks mean all, as torch writes it, unless all are to be named."""
    return json.dumps([{
        "pg_name": str(number), "pg_desc": described(number), "backend_config": "",
        "ranks": list(ranks) if number or all_named else [], "group_size": len(ranks), "group_count": len(groups)}
        for ranks, number in groups])


def sizes_of(rows: pl.DataFrame) -> dict[int, int]:
    """Bytes of each collective: of the rank that has most, so that all agree."""
    largest = rows.group_by("collective").agg(pl.col("size_bytes").max()).drop_nulls()
    return dict(largest.iter_rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportContext:
    """What is the same for all ranks."""

    target: Target
    groups: ProcessGroups
    sizes: Mapping[int, int]
    """Number of the collective -> its bytes, the same on all ranks."""


@dataclass(slots=True)
class Written:
    """What was written for a rank."""

    nodes: int = 0
    communication: int = 0
    without_type: int = 0
    """Communication of an op that the schema does not have, or whose other side is not known; written as COMP."""
    unread: Counter[str] = field(default_factory=Counter)
    """Op -> calls that whoever reads the file cannot tell from computation."""
    without_group: int = 0
    """Communication whose process group is not known."""
    untimed: int = 0
    """Calls without a slice."""
    dependencies: int | None = 0
    """None where whoever reads the file finds them."""
