"""Parameters of the model of a run of many ranks: of one rank of each place, and of the others what lies on them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl

from distprof.contract.mesh import DATA_PARALLEL
from distprof.merge.run.run_model import Rank, Run

Place = tuple[tuple[str, int], ...]


def place_of(rank: Rank) -> Place:
    """Where a rank stands on the axes that divide the model."""
    return tuple((axis, at) for axis, at in (rank.coordinates or {}).items() if axis not in DATA_PARALLEL)


def sums_over_replicas(run: Run, parameters: pl.DataFrame) -> pl.DataFrame | None:
    """`parameters` with `params` and `stored_params` added up over all ranks of the same place.

    Args:
        run: Opened by its summaries.
        parameters: `PARAMETERS` of a rank of each place.

    Returns:
        None where a rank holds other parameters than the one that stands for it, or it is not known what lies on it.
    """
    assert run.summaries is not None
    digests, by_place = run.summaries.parameters, defaultdict[Place, list[Rank]](list)
    for rank in run.ranks:
        by_place[place_of(rank)].append(rank)
    places = {rank.number: place_of(rank) for rank in run.ranks}
    found = list[pl.DataFrame]()
    for (number,), rows in parameters.partition_by("rank", as_dict=True, maintain_order=True).items():
        peers, own = by_place.pop(places[int(number)], []), digests.get(int(number))
        known = [digests[rank.number] for rank in peers if rank.number in digests]
        if own is None or len(known) < len(peers) or any(one.names_hash != own.names_hash for one in known):
            return None
        if any(not one.stored and one.stored_params != one.params for one in known):
            return None
        params, stored = rows["params"].to_numpy() * len(known), np.zeros(len(rows), np.int64)
        for one in known:
            held = np.frombuffer(one.stored, "<i8") if one.stored else rows["params"].to_numpy()
            if len(held) != len(stored):
                return None
            stored += held
        found.append(rows.with_columns(pl.Series("params", params), pl.Series("stored_params", stored)))
    return pl.concat(found) if found and not by_place else None
