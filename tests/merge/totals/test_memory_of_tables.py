"""Tables of ranks are read in pieces of some ranks, and memory for them is that of one model and a few steps a rank."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from distprof.contract.tables import MODULES
from distprof.merge.run import recorded, tables
from distprof.merge.run.open_run import open_run
from distprof.merge.totals.recorded_tables import RecordedTables, read_tables
from support.many_ranks import FEW_STEPS, PipelinedJob, Ranks, write
from support.peak_memory import peak_bytes


def frames(found: RecordedTables) -> list[pl.DataFrame]:
    return [found.steps, found.modules, found.operators.of_ranks, found.operators.of_ops, found.operators.model_flops,
            found.parameters.sums, found.parameters.first_replica]


@pytest.mark.long
def test_how_many_files_are_read_at_once_changes_nothing(tmp_path, monkeypatch):
    Ranks(num_ranks=7, num_modules=5).write(tmp_path / "run")
    (tmp_path / "run" / "rank00002" / "modules.parquet").write_bytes(b"damaged")
    run, found = open_run(tmp_path / "run"), list[RecordedTables]()
    for at_once in (1, 3, 16):
        monkeypatch.setattr(tables, "FILES_AT_ONCE", at_once)
        found.append(read_tables(run))
    assert found[0].modules["num_ranks"].to_list() == [6] * 5 and len(found[0].steps) == 7 * 13
    for other in found[1:]:
        assert all(one.equals(same) for one, same in zip(frames(found[0]), frames(other), strict=True))
        assert other.problems == found[0].problems and len(other.problems) == 1


@pytest.mark.long
def test_pieces_of_summaries_are_whole_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "MANY_RANKS", 1)
    write(tmp_path / "run", PipelinedJob(pp=2, dp=2, tp=2, layers=2, microbatches=2), passes=FEW_STEPS, full=True)
    run = open_run(tmp_path / "run", by_host=True)
    assert run.by_host
    whole = tables.read_table(run, MODULES).rows
    for at_once in (1, 20, 10**6):
        monkeypatch.setattr(tables, "ROWS_AT_ONCE", at_once)
        pieces = [piece.rows for piece in tables.pieces(run, MODULES)]
        ranks = [set(rows["rank"]) for rows in pieces]
        assert sum(map(len, ranks)) == len(set().union(*ranks)) == 8
        assert pl.concat(pieces).equals(whole) and len(pieces) == {1: 8, 10**6: 1}.get(at_once, len(pieces))


@pytest.mark.stress
@pytest.mark.parametrize("command", [("stats",), ("stats", "--modules"), ("merge",)])
def test_memory_grows_with_steps_not_with_modules(tmp_path, command):
    """Where the rows of all ranks are held it is 780,000 bytes a rank."""
    def made(num_ranks: int) -> Path:
        Ranks(num_ranks=num_ranks, num_modules=1000).write(tmp_path / str(num_ranks))
        return tmp_path / str(num_ranks)

    few, many = made(64), made(1088)
    assert peak_bytes(*command, many) - peak_bytes(*command, few) < 1024 * 30_000
