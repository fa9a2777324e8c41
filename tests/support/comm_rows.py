"""Generates rows of collectives as ranks record them, and matches them."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.contract.collective_ops import text_of
from distprof.contract.tables import COLLECTIVES
from distprof.merge.match.matching import match
from distprof.merge.run.group_ranks import coded
from distprof.merge.run.tables import TYPES

SCHEMA = {column.name: TYPES[column.type] for column in COLLECTIVES.columns} | {"comms_id": pl.String()}
PLAIN = {"mp_size": 1, "dp_size": 1, "step": 0, "op": "all_reduce", "group": "0", "group_description": "default_pg",
         "num_elements": 4, "size_bytes": 16, "dtype": "float32", "asynchronous": False, "enqueue_ns": 0}


def call(rank: int, op: str = "all_reduce", *, of: tuple[int, ...] | None = (0, 1), **columns: Any) -> dict[str, Any]:
    """Returns one row; `of` are the members of its group."""
    return {**PLAIN, "rank": rank, "op": op, "group_ranks": None if of is None else text_of(of),
            "group_size": None if of is None else len(of), **columns}


def numbered(*calls: dict[str, Any], first: int = 0) -> list[dict[str, Any]]:
    """Returns calls of one rank with the sequence numbers of a recording on gloo, where torch's also count pairs."""
    counts: dict[Any, int] = {}
    found = []
    for one in calls:
        kind = "pair" if one["op"] in ("send", "recv") else "group"
        sequence = counts.get((one["group"], kind), 0)
        total = counts.get((one["group"], "all"), 0)
        counts |= {(one["group"], kind): sequence + 1, (one["group"], "all"): total + 1}
        found.append({**one, "sequence": sequence, "group_sequence": first + total})
    return found


def frame(*calls: dict[str, Any]) -> pl.DataFrame:
    """Returns a table of the rows in the given order."""
    extra = {"lane": pl.Int64(), "truth": pl.Int64()}
    used = {"truth"}.union(*calls)
    return coded(pl.DataFrame(list(calls), schema=SCHEMA | {
        name: kind for name, kind in extra.items() if name in used}))


def matched(*calls: dict[str, Any], ended: tuple[int, ...] = (), world_size: int = 2) -> pl.DataFrame:
    """Returns the rows matched by `match`; `ended` are the ranks that are known to have no calls after their last
    row."""
    found = match(frame(*calls), ended=ended, world_size=world_size)
    return found.sort("collective", "rank", maintain_order=True)
