"""Collects evidence of how the ranks of a recorded run divide the model, from their tables or summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.contract.rank_summary import EXCHANGE_COLUMNS, Arrivals, PackedTable
from distprof.contract.tables import COLLECTIVES, MODULES, PARAMETERS, Table
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.summaries.summaries import Summaries
from distprof.merge.run.tables import DAMAGE, empty, pieces, wanted_rows
from distprof.merge.topology.evidence import CALLS, HELD, SHARED_WORK, STATISTICS, TELLING, Evidence, Group, evidence_of

SHOWING = ("trace", "arrivals")
"""Passes that record what ranks exchange."""


def evidence_of_run(run: Run) -> Evidence | None:
    """Returns the evidence of all ranks, or None if there is not enough to judge by."""
    has_seen = all(any(rank.recorded.passes.get(name) for name in SHOWING) for rank in run.ranks if rank.recorded)
    if run.summaries is not None:
        return evidence_of_summaries(run.summaries, world_size=run.world_size, has_seen=has_seen)
    parameters = (piece.rows for piece in pieces(run, PARAMETERS.only(*HELD)))
    modules = _read(run.ranks, MODULES, ("module_path", "class_name"), pl.col("class_name").is_in(STATISTICS))
    return evidence_of(parameters, _exchanged(run.ranks) if has_seen else None, world_size=run.world_size,
                       statistics=modules["module_path"].unique().to_list())


def has_exchanged(run: Run) -> bool:
    """Returns whether the first rank made a call that may show how ranks divide their work."""
    if run.summaries is not None:
        return _has_exchanged(run.summaries, run.ranks[0].number)
    return not _exchanged(run.ranks[:1]).is_empty()


def _exchanged(ranks: Sequence[Rank]) -> pl.DataFrame:
    """Returns the calls of the first step that may show how ranks divide their work."""
    return _read(ranks, COLLECTIVES, tuple(CALLS), TELLING & (pl.col("step") == pl.col("step").min()))


def _read(ranks: Sequence[Rank], table: Table, columns: Sequence[str], wanted: pl.Expr) -> pl.DataFrame:
    """Returns these columns of the wanted rows, rank by rank.

    A rank whose file is damaged contributes nothing; whoever reads its whole table reports the damage.
    """
    some = table.only(*columns, "rank")
    frames = [empty(some)]
    for rank in ranks:
        with suppress(*DAMAGE):
            frames += [wanted_rows(rank, some, wanted)] if rank.has(table) else []
    return pl.concat(frames).select(columns)


def evidence_of_summaries(summaries: Summaries, *, world_size: int, has_seen: bool) -> Evidence | None:
    """Extracts the evidence from summaries.

    Args:
        summaries: Summaries of the run.
        world_size: Number of ranks.
        has_seen: Whether steps were recorded with what ranks exchange.

    Returns:
        None if a rank is missing or has no values that can be compared: shards say nothing.
    """
    comparable = {rank: one for rank, one in summaries.parameters.items() if one.comparable}
    if len(comparable) < world_size:
        return None
    links, senders, exchanges, joins = set[Group](), set[int](), set[Group](), set[Group]()
    for rank, arrivals in summaries.arrivals() if has_seen else ():
        calls = _calls(summaries.exchanges[rank], arrivals)
        messages = [(op, peer) for op, _, peer, inside in calls if op in POINT_TO_POINT and not inside and peer >= 0]
        links |= {(min(rank, peer), max(rank, peer)) for _, peer in messages if peer != rank}
        if messages and messages[0][0] == "send":
            senders.add(rank)
        together = [(op, tuple(sorted(group))) for op, group, _, inside in calls if inside and len(group) > 1]
        exchanges |= {group for op, group in together if op == "all_to_all"}
        joins |= {group for op, group in together if op in SHARED_WORK}
    return Evidence(
        world_size=world_size, names=_numbered({rank: one.comparable_names_hash for rank, one in comparable.items()}),
        values=_numbered({rank: one.values_hash for rank, one in comparable.items()}), links=frozenset(links),
        senders=frozenset(senders), exchanges=frozenset(exchanges), joins=frozenset(joins),
        saw_communication=has_seen)


def _has_exchanged(summaries: Summaries, rank: int) -> bool:
    """Returns whether a rank made calls that may show how ranks divide their work."""
    return bool(summaries.exchanges[rank].rows) if rank in summaries.exchanges else False


def _calls(table: PackedTable, arrivals: Arrivals) -> list[tuple[str, list[int], int, bool]]:
    """Returns, per call, its op, the ranks of its group, its peer (-1: none) and whether a module makes it."""
    if not table.rows:
        return []
    columns = {name: np.frombuffer(table.columns[name], kind).tolist() for name, kind in EXCHANGE_COLUMNS.items()}
    groups = [one.ranks for one in arrivals.groups]
    return [(table.texts["op"][op], groups[group], peer, bool(inside)) for op, group, peer, inside in zip(
        columns["op"], columns["group"], columns["peer"], columns["inside"], strict=True)]


def _numbered(found: Mapping[int, int]) -> dict[int, int]:
    numbers: dict[int, int] = {}
    return {rank: numbers.setdefault(value, len(numbers)) for rank, value in sorted(found.items())}
