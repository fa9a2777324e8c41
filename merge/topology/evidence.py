"""Evidence of how ranks divide the model: whose parameters are equal, and which ranks exchange what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT, ranks_of

SHARED_WORK = ("all_reduce", "all_gather", "reduce_scatter")
"""Ops by which ranks that share the work of a module join its parts. Statistics are joined by them, too."""
STATISTICS = ("SyncBatchNorm",)
"""Classes of modules whose collectives do not indicate shared work: they join statistics of replicas."""
CALLS: dict[str, pl.DataType] = {
    "rank": pl.Int64(), "step": pl.Int64(), "op": pl.String(), "group_ranks": pl.String(), "peer": pl.Int64(),
    "module_path": pl.String(), "phase": pl.String(), "enqueue_ns": pl.Int64(), "in_autograd": pl.Boolean()}
"""Columns of `COLLECTIVES` that are used."""
HELD = ("rank", "module_path", "name", "checksum")
"""Columns of `PARAMETERS` that are used."""
FORWARD = ("forward", "recompute")
"""Phases in which communication inside modules is evidence."""
_INSIDE = pl.col("phase").is_in(FORWARD) & pl.col("module_path").is_not_null() & pl.col("op").is_in(
    [*SHARED_WORK, "all_to_all"]) & pl.col("in_autograd").fill_null(value=True)
TELLING = pl.col("op").is_in(POINT_TO_POINT) | _INSIDE
"""Rows of `COLLECTIVES` that are used."""
Group = tuple[int, ...]
"""Global ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All evidence for or against a topology, in global ranks."""

    world_size: int
    names: Mapping[int, int]
    """Rank -> a number that is equal for ranks whose parameters have equal names."""
    values: Mapping[int, int]
    """The same for names and values."""
    links: frozenset[Group]
    """Pairs of ranks that exchange messages, lower rank first."""
    senders: frozenset[int]
    """Ranks whose first message in the first recorded step is a send, not a receive."""
    exchanges: frozenset[Group]
    """Groups that do an all_to_all in the forward pass of a module."""
    joins: frozenset[Group]
    """Groups that do one of `SHARED_WORK` in the forward pass of a module."""
    saw_communication: bool
    """False if communication was not recorded in any step; ranks may still communicate."""

    def alike(self, ranks: Iterable[int]) -> bool:
        """Returns True if all of these ranks hold equal values."""
        return len({self.values[rank] for rank in ranks}) == 1

    def all_differ(self, ranks: Sequence[int]) -> bool:
        """Returns True if no two of these ranks hold equal values."""
        return len({self.values[rank] for rank in ranks}) == len(ranks)

    def same_names(self, ranks: Iterable[int]) -> bool:
        """Returns True if the parameters of all of these ranks have equal names."""
        return len({self.names[rank] for rank in ranks}) == 1


def evidence_of(parameters: Iterable[pl.DataFrame], collectives: pl.DataFrame | None, *, world_size: int,
                statistics: Iterable[str] = ()) -> Evidence | None:
    """Reads the evidence from tables of all ranks.

    Args:
        parameters: `HELD` of `PARAMETERS`, in pieces of some ranks, by rank number.
        collectives: `COLLECTIVES` of the steps to examine; None if no step was recorded with them.
        world_size: Number of ranks.
        statistics: Paths of modules of the classes in `STATISTICS`.

    Returns:
        None if ranks or comparable values are missing: shards cannot be compared.
    """
    names, values = _held(parameters)
    if len(names) < world_size:
        return None
    calls = collectives if collectives is not None else pl.DataFrame(schema=CALLS)
    inside = calls.filter(_INSIDE & ~pl.col("module_path").is_in(list(statistics)))
    messages = calls.filter(pl.col("op").is_in(POINT_TO_POINT) & pl.col("peer").is_not_null())
    return Evidence(
        world_size=world_size, names=names, values=values, links=_links(messages),
        senders=_senders(messages), exchanges=_groups(inside.filter(pl.col("op") == "all_to_all")),
        joins=_groups(inside.filter(pl.col("op").is_in(SHARED_WORK))), saw_communication=collectives is not None)


def _held(parameters: Iterable[pl.DataFrame]) -> tuple[dict[int, int], dict[int, int]]:
    """Returns `names` and `values` of `Evidence`; stores equal contents of many ranks only once."""
    found: dict[str, dict[int, int]] = {"names": {}, "values": {}}
    known: dict[str, dict[bytes, int]] = {"names": {}, "values": {}}
    key = pl.struct("module_path", "name").hash()
    for piece in parameters:
        by_rank = piece.filter(pl.col("checksum").is_not_null()).group_by("rank", maintain_order=True).agg(
            key.sort().alias("names"), pl.struct("module_path", "name", "checksum").hash().sort().alias("values"))
        for column, numbers in known.items():
            for rank, hashes in zip(by_rank["rank"], by_rank[column], strict=True):
                found[column][rank] = numbers.setdefault(hashes.to_numpy().tobytes(), len(numbers))
    return found["names"], found["values"]


def _links(messages: pl.DataFrame) -> frozenset[Group]:
    pairs = messages.select("rank", "peer").unique().iter_rows()
    return frozenset((min(one, other), max(one, other)) for one, other in pairs if one != other)


def _senders(messages: pl.DataFrame) -> frozenset[int]:
    first = messages.sort("step", "enqueue_ns").group_by("rank", maintain_order=True).first()
    return frozenset(first.filter(pl.col("op") == "send")["rank"])


def _groups(rows: pl.DataFrame) -> frozenset[Group]:
    found = {tuple(sorted(ranks_of(text))) for text in rows["group_ranks"].unique()}
    return frozenset(group for group in found if len(group) > 1)
