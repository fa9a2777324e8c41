"""What communication was issued with, by the execution trace: other side, tag and split sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.contract.group_ranks import ranks_of
from distprof.merge.execution.dependencies.tensor_uses import tensors_in, values_of
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.match.backend_names import item_bytes

PARAMETERS = "record_param_comms"
"""Node of NCCL: tensors, number of the call, group, rank, name of the collective, elements to and from each rank."""


def with_what_was_given(graph: RankGraph, rows: pl.DataFrame, issued_by: Sequence[int]) -> pl.DataFrame:
    """The rows with `peer`, `tag` and `split_bytes` where they were null and the execution trace knows.

    Args:
        graph: The calls of the rank.
        rows: Its communication.
        issued_by: Place of the operator of each row; -1 where none is known.
    """
    columns = "op", "peer", "tag", "split_bytes", "dtype", pl.col("group_ranks").cast(pl.String)
    peers, tags, splits = list[int | None](), list[int | None](), list[list[int] | None]()
    for operator, (op, peer, tag, split, dtype, group) in zip(issued_by, rows.select(*columns).iter_rows(),
                                                              strict=True):
        ranks = ranks_of(group)
        side = _other_side(graph, operator, ranks) if peer is None and op in POINT_TO_POINT else None
        peers.append(peer if side is None else side[0])
        tags.append(tag if side is None else side[1])
        splits.append(_splits(graph, operator, len(ranks), item_bytes(dtype)) if split is None and op == "all_to_all"
                      else split)
    return rows.with_columns(pl.Series("peer", peers, pl.Int64), pl.Series("tag", tags, pl.Int64),
                             pl.Series("split_bytes", splits, pl.List(pl.Int64)))


def _given(graph: RankGraph, place: int) -> list[Any]:
    node = int(graph.node[place])
    return values_of(graph.table.texts.node(node).inputs) if graph.table is not None and node >= 0 else []


def _other_side(graph: RankGraph, operator: int, ranks: Sequence[int]) -> tuple[int, int] | None:
    """The global rank, and the tag: the operator gets a rank of the group and a tag, behind tensors and the group."""
    numbers = [one for one in _given(graph, operator) if type(one) is int] if operator >= 0 else []
    return (ranks[numbers[0]], numbers[1]) if len(numbers) == 2 and 0 <= numbers[0] < len(ranks) else None


def _splits(graph: RankGraph, operator: int, num_ranks: int, item: int | None) -> list[int] | None:
    """Bytes that go to each rank of the group."""
    inside = range(operator, int(graph.inside_until[operator]) + 1) if operator >= 0 else ()
    for place in inside:
        given = _given(graph, place) if graph.names[graph.name[place]] == PARAMETERS else []
        name = next((index for index, one in enumerate(given) if type(one) is str), len(given))
        sent = given[name + 1] if name + 1 < len(given) else None
        if item and type(sent) is list and len(sent) == num_ranks and all(type(one) is int for one in sent):
            return [one * item for one in sent]
        if sent == []:
            return _without_splits([one.num_bytes for one in tensors_in(given[0])], num_ranks)
    return None


def _without_splits(num_bytes: Sequence[int], num_ranks: int) -> list[int] | None:
    """Of a list of tensors each rank gets one, of a single one equal parts."""
    if len(num_bytes) == 1 and num_ranks and not num_bytes[0] % num_ranks:
        return [num_bytes[0] // num_ranks] * num_ranks
    return list(num_bytes) if len(num_bytes) == num_ranks else None
