"""Arguments with which communication was issued, from the execution trace: peer, tag and split sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT, ranks_of
from distprof.merge.execution.dependencies.tensor_uses import tensors_in, values_of
from distprof.merge.execution.nodes import Values
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.match.backend_names import dtype_of, item_bytes

PARAMETERS = "record_param_comms"
"""Node that torch records for NCCL: tensors, number of the call, group, rank, collective, elements to and from each
rank."""
SIZED = ("all_reduce", "all_gather", "reduce", "gather", "broadcast", "send", "recv")
"""Ops whose size is that of the inputs of their work."""


def with_what_was_given(graph: RankGraph, rows: pl.DataFrame, issued_by: Sequence[int]) -> pl.DataFrame:
    """Fills in `peer`, `tag` and `split_bytes` where they are null and the execution trace has them.

    Args:
        graph: The calls of the rank.
        rows: Its communication.
        issued_by: Place of the operator of each row; -1 if unknown.
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


def with_sizes(graph: RankGraph, rows: pl.DataFrame, places: Sequence[int]) -> pl.DataFrame:
    """Fills in sizes and types where the timeline has no shapes and the execution trace has the tensors.

    Args:
        graph: The calls of the rank.
        rows: Its communication.
        places: Place of the work of each row; -1 if unknown. Only gloo's work has its inputs.
    """
    schema, found = rows.schema, dict[str, list[Any]](size_bytes=[], num_elements=[], dtype=[])
    for place, op, size in zip(places, rows["op"].to_list(), rows["size_bytes"].to_list(), strict=True):
        is_told = size is None and op in SIZED and place >= 0 and graph.names[graph.name[place]].startswith("gloo:")
        for column, value in zip(found, _tensors(graph, place) if is_told else (None, None, None), strict=True):
            found[column].append(value)
    return rows.with_columns(pl.coalesce(name, pl.Series(values, dtype=(
        pl.String if name == "dtype" else pl.Int64)).cast(schema[name])).alias(name) for name, values in found.items())


def bytes_given(given: Values) -> int:
    """Returns the bytes of the tensors among the inputs of a call."""
    return sum(one.num_bytes for one in tensors_in(values_of(given)))


def _tensors(graph: RankGraph, place: int) -> tuple[int | None, int | None, str | None]:
    """Returns bytes, number of elements and their type of a call's inputs; None if its tensors differ in type."""
    node = int(graph.node[place])
    if graph.table is None or node < 0:
        return None, None, None
    given = graph.table.texts.node(node).inputs
    types = {text.removeprefix("Tensor(").removesuffix(")") for text in _texts(given.types)}
    dtype = dtype_of(types.pop()) if len(types) == 1 else None
    item, num_bytes = item_bytes(dtype), bytes_given(given)
    return (num_bytes, num_bytes // item, dtype) if item and 0 < num_bytes < 1 << 63 else (None, None, None)


def _texts(recorded: msgspec.Raw) -> list[str]:
    try:
        return msgspec.json.decode(recorded, type=list[str])
    except msgspec.MsgspecError:
        return []


def _given(graph: RankGraph, place: int) -> list[Any]:
    node = int(graph.node[place])
    return values_of(graph.table.texts.node(node).inputs) if graph.table is not None and node >= 0 else []


def _other_side(graph: RankGraph, operator: int, ranks: Sequence[int]) -> tuple[int, int] | None:
    """Returns the peer's global rank and the tag: after tensors and group, the operator is given the peer's rank
    in the group and the tag."""
    numbers = [one for one in _given(graph, operator) if type(one) is int] if operator >= 0 else []
    return (ranks[numbers[0]], numbers[1]) if len(numbers) == 2 and 0 <= numbers[0] < len(ranks) else None


def _splits(graph: RankGraph, operator: int, num_ranks: int, item: int | None) -> list[int] | None:
    """Returns the bytes that go to each rank of the group; None if unknown."""
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
    """Returns the default splits: each rank gets one tensor of a list, or an equal part of a single tensor."""
    if len(num_bytes) == 1 and num_ranks and not num_bytes[0] % num_ranks:
        return [num_bytes[0] // num_ranks] * num_ranks
    return list(num_bytes) if len(num_bytes) == num_ranks else None
