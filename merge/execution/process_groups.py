"""What exports of all ranks share: numbered process groups, sizes of collectives, and counts of what was written."""

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
"""Which program reads the file. For ASTRA-sim, communication is never the work of a CPU."""
GROUPS_NAME = "## process_group:init ##"
"""Name of the node that lists the process groups."""


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """The process groups that communicate; the group of all ranks is the first."""

    ranks: tuple[Ranks, ...]
    """Global ranks of each group, by its number."""
    named: Mapping[tuple[Ranks, str], int]
    """(ranks, torch's name) -> number, for groups that have the same ranks as another group."""

    def __iter__(self) -> Iterator[tuple[Ranks, int]]:
        return iter((ranks, number) for number, ranks in enumerate(self.ranks))

    def __len__(self) -> int:
        return len(self.ranks)

    def number(self, row: Mapping[str, Any]) -> int | None:
        """Returns the group of a collective from its `group` and `group_ranks`; None if unknown.

        If several groups have its ranks and its name does not tell which, this is the first of them.
        """
        ranks = ranks_of(row["group_ranks"])
        if ranks not in self.ranks:
            return None
        return self.named.get((ranks, str(row["group"])), self.ranks.index(ranks))


def groups_of(rows: pl.DataFrame, world_size: int) -> ProcessGroups:
    """Numbers the process groups that communicate.

    Groups of the same ranks are distinguished by torch's names if all of their ranks have the same names, because each
    group has its own communicators and order.

    Args:
        rows: Communication of all ranks.
        world_size: Number of ranks of the job.
    """
    world = tuple(range(world_size))
    names = {ranks: _names(rows.filter(pl.col("group_ranks") == text))
             for text in rows["group_ranks"].unique().to_list() if (ranks := ranks_of(text))}
    every = [world, *sorted(names.keys() - {world})]
    numbered = [(ranks, name) for ranks in every for name in names.get(ranks) or [""]]
    return ProcessGroups(ranks=tuple(ranks for ranks, _ in numbered),
                         named={one: number for number, one in enumerate(numbered) if len(names.get(one[0], ())) > 1})


def _names(rows: pl.DataFrame) -> list[str]:
    """Returns the names of groups with the same ranks, in order of creation; none if the names differ between ranks."""
    of_ranks = {frozenset(name for name in found if name is not None) for found in rows.group_by("rank").agg(
        pl.col("group").cast(pl.String).unique())["group"].to_list()}
    return sorted(of_ranks.pop(), key=lambda name: (len(name), name)) if len(of_ranks) == 1 else []


def with_groups(rows: pl.DataFrame, world_size: int) -> pl.DataFrame:
    """Fills in unknown `group_ranks` if the collective was found on all ranks of the job."""
    world = text_of(range(world_size))
    everybody = (pl.col("num_ranks") == world_size) & ~pl.col("op").is_in(POINT_TO_POINT)
    return rows.with_columns(pl.col("group_ranks").cast(pl.String).fill_null(pl.when(everybody).then(pl.lit(world))))


def described(number: int) -> str:
    """Returns torch's description of a group."""
    return "undefined" if number else "default_pg"


def list_of_groups(groups: ProcessGroups, *, all_named: bool = False) -> str:
    """Returns the process groups as JSON. As in torch, an empty list means all ranks, unless `all_named`."""
    return json.dumps([{
        "pg_name": str(number), "pg_desc": described(number), "backend_config": "",
        "ranks": list(ranks) if number or all_named else [], "group_size": len(ranks), "group_count": len(groups)}
        for ranks, number in groups])


def sizes_of(rows: pl.DataFrame) -> dict[int, int]:
    """Returns the bytes of each collective, of the rank with the most, so that all ranks agree."""
    largest = rows.group_by("collective").agg(pl.col("size_bytes").max()).drop_nulls()
    return dict(largest.iter_rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportContext:
    """What is the same for all ranks of an export."""

    target: Target
    groups: ProcessGroups
    sizes: Mapping[int, int]
    """Number of the collective -> its bytes."""


@dataclass(slots=True)
class Written:
    """Counts of what was written for a rank."""

    nodes: int = 0
    communication: int = 0
    without_type: int = 0
    """Communication whose op is not in the schema, or whose peer is unknown; written as COMP."""
    unread: Counter[str] = field(default_factory=Counter)
    """Op -> calls that the reading program cannot distinguish from computation."""
    without_group: int = 0
    """Communication whose process group is unknown."""
    untimed: int = 0
    """Calls without a slice."""
    dependencies: int | None = 0
    """None if the reading program finds the dependencies itself."""
