"""Totals of runs of which only some ranks were counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.rank_json import ParamCount, RankJson
from distprof.contract.tables import OPS, STEPS
from distprof.merge.run.recorded import _lightly
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import empty
from distprof.merge.totals.modules import ModuleSums
from distprof.merge.totals.operator_sums import operator_sums
from distprof.merge.totals.parameters import Holding
from distprof.merge.totals.recorded_tables import RecordedTables
from distprof.merge.totals.totals import model_totals, per_rank

FLOPS = {0: 10, 1: 30}
"""Of the stages of a pipeline."""


def made(full: Sequence[int], topology: Mapping[str, int] = {"pp": 2, "dp": 2}) -> tuple[Run, RecordedTables]:
    """Four ranks, pp outermost, of which some were counted."""
    about = [RankJson(run_id="made", status="complete", rank=rank, world_size=4, light=rank not in full,
                      coordinates={"pp": rank // 2, "dp": rank % 2}, params=ParamCount(params=5)) for rank in range(4)]
    ranks = [Rank(number=one.rank, folder=Path(), coordinates=one.coordinates, recorded=one) for one in about]
    run = Run(path=Path(), run_id="made", world_size=4, mp_size=2, dp_size=2, topology=topology, topology_source="",
              ranks=ranks, missing=[], remarks=tuple(_lightly(about)))
    ops = [{"rank": rank, "phase": "forward", "flops": float(FLOPS[rank // 2]), "macs": 1.0} for rank in full]
    rows = pl.concat([empty(OPS), pl.DataFrame(ops)], how="diagonal_relaxed")
    return run, RecordedTables(steps=empty(STEPS), operators=operator_sums(rows), modules=ModuleSums(run).frame(),
                               parameters=Holding(run).held(), problems=[])


@pytest.mark.parametrize(("full", "flops"), [([0, 2], 40), ([1, 3], 40), ([0, 1, 2], 40), ([0], None), ([2, 3], None)])
def test_one_rank_of_each_part_gives_the_flops_of_the_model(full, flops):
    run, tables = made(full)
    ranks = per_rank(run, tables)
    assert model_totals(run, ranks, tables.parameters)["fwd_flops"] == flops
    assert model_totals(run, ranks, tables.parameters)["params"] == 10, "which all ranks know"
    if flops is not None:
        assert ranks["fwd_flops"].to_list() == [10, 10, 30, 30]
