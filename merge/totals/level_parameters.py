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


class Replicas:
    """What ranks hold for which one of the same place stands, whose table is read."""

    def __init__(self, run: Run) -> None:
        """Of a run that was opened by the files of its hosts."""
        assert run.summaries is not None
        self._digests, self._peers = run.summaries.parameters, defaultdict[Place, list[int]](list)
        for rank in run.ranks:
            self._peers[place_of(rank)].append(rank.number)
        self._places = {rank.number: place_of(rank) for rank in run.ranks}

    @property
    def are_all_there(self) -> bool:
        """True once a rank of each place was looked at."""
        return not self._peers

    def summed(self, parameters: pl.DataFrame) -> pl.DataFrame | None:
        """Rows of `PARAMETERS` with `params` and `stored_params` added up over all ranks of the same place.

        Args:
            parameters: Of some ranks, one of each place.

        Returns:
            None where a rank holds other parameters than the one that stands for it, or it is not known what lies on
            it.
        """
        each = parameters.partition_by("rank", as_dict=True, maintain_order=True).items()
        found = [self._of_place(int(number), rows) for (number,), rows in each]
        whole = [rows for rows in found if rows is not None]
        return pl.concat([parameters.clear(), *whole]) if len(whole) == len(found) else None

    def _of_place(self, number: int, rows: pl.DataFrame) -> pl.DataFrame | None:
        peers, own = self._peers.pop(self._places[number], []), self._digests.get(number)
        known = [self._digests[rank] for rank in peers if rank in self._digests]
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
        return rows.with_columns(pl.Series("params", params), pl.Series("stored_params", stored))
