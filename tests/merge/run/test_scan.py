"""`distprof.read_run(...).scan(...)`: lazy frames over all ranks, which read what a query needs and nothing before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import fsspec
import polars as pl
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import distprof
from distprof.contract.parquet import write_table
from distprof.contract.tables import COLLECTIVES, EVENTS, STEPS
from distprof.errors import DataError, UsageError
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, programs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scan") / "run"
    Recorder().write(Simulation(programs(SHAPES["ddp"], 4, 6, 1), lanes=1), folder)
    (folder / "run.json").write_text('{"format": 1, "run_id": "simulated", "world_size": 4}')
    return folder


def rows_of(run: Path, name: str) -> pl.DataFrame:
    """The same by pyarrow, file by file."""
    return pl.concat([pl.DataFrame(pq.read_table(file)) for file in sorted(run.glob(f"rank*/{name}.parquet"))])


@pytest.mark.parametrize("table", [STEPS, COLLECTIVES, EVENTS])
def test_all_ranks_with_all_columns(run, table):
    name = table.file.removesuffix(".parquet")
    found = distprof.read_run(run).scan(name)
    assert isinstance(found, pl.LazyFrame) and found.collect_schema().names() == table.names()
    assert_frame_equal(found.collect(), rows_of(run, name).select(table.names()), categorical_as_str=True,
                       check_dtypes=False)
    assert found.select("rank").unique().sort("rank").collect()["rank"].to_list() == [0, 1, 2, 3]


def test_a_query_reads_only_its_columns_and_rows(run):
    found = distprof.read_run(run).scan("events").filter(pl.col("duration_ns") > 10).select("rank", "name")
    plan = found.explain()
    columns = len(EVENTS.columns)
    assert f"PROJECT 3/{columns} COLUMNS" in plan or f"PROJECT 2/{columns} COLUMNS" in plan, plan
    assert "SELECTION: " in plan.split("PROJECT")[1] and "FILTER" not in plan, plan


@pytest.mark.long
def test_no_file_is_opened_before_a_result_is_asked_for(tmp_path):
    """Files that nobody can read: 3,000 of them make a plan all the same."""
    run = tmp_path / "run"
    for rank in range(3000):
        folder = run / f"rank{rank:05d}"
        folder.mkdir(parents=True)
        (folder / STEPS.file).touch()
    (run / "run.json").write_text('{"format": 1, "run_id": "many", "world_size": 3000}')
    steps = [{"step": 0, "start_ns": 1, "end_ns": 3, "duration_ns": 2, "pass": "time"}]
    for rank in (7, 2999):
        write_table(run / f"rank{rank:05d}", STEPS, steps, tags={"rank": rank, "mp_size": 1, "dp_size": 3000},
                    metadata={})
    found = distprof.read_run(run)
    assert found.scan("steps").filter(pl.col("rank") == 7).select("duration_ns").collect_schema().len() == 1
    chosen = found.scan("steps", ranks=[7, 2999]).select("rank", "duration_ns").collect()
    assert chosen.rows() == [(7, 2), (2999, 2)]
    with pytest.raises(pl.exceptions.PolarsError):
        found.scan("steps").collect()


def test_a_table_that_no_rank_has_is_empty(run):
    found = distprof.read_run(run).scan("waits")
    assert found.collect().is_empty() and "blocked_ns" in found.collect_schema().names()


def test_a_finished_folder_goes_before_one_that_is_not(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "run")
    shutil.copytree(other / "rank00001", other / "rank00001.partial")
    (other / "rank00002").rename(other / "rank00002.partial")
    found = distprof.read_run(other).scan("steps").select("rank").collect()["rank"]
    assert found.to_list() == rows_of(run, "steps")["rank"].to_list()


def test_columns_of_another_version_are_null_or_left_out(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "run")
    file = other / "rank00001" / STEPS.file
    pq.write_table(pq.read_table(file).drop_columns(["samples"]).append_column("new", [[1] * pq.read_table(
        file).num_rows]), file)
    found = distprof.read_run(other).scan("steps").collect()
    assert found.columns == STEPS.names() and found.filter(pl.col("rank") == 1)["samples"].null_count() > 0


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_run_in_a_store_is_read_through_fsspec(run, scheme):
    if scheme == "memory":
        fsspec.filesystem("memory").put(os.fspath(run), "/scanned", recursive=True)
    url = f"file://{run}" if scheme == "file" else "memory://scanned"
    found = distprof.read_run(url).scan("collectives", ranks=[1, 2])
    query = found.filter(pl.col("op") == "all_reduce").group_by("rank").agg(pl.len()).sort("rank")
    expected = distprof.read_run(run).scan("collectives", ranks=[1, 2])
    assert_frame_equal(query.collect(), expected.filter(pl.col("op") == "all_reduce").group_by("rank").agg(
        pl.len()).sort("rank").collect())
    assert_frame_equal(found.collect(), expected.collect(), categorical_as_str=True, check_dtypes=False)


def test_what_cannot_be_scanned(run, tmp_path):
    with pytest.raises(UsageError, match=r"unknown table 'step'.*did you mean 'steps'"):
        distprof.read_run(run).scan("step")
    with pytest.raises(DataError):
        distprof.read_run(tmp_path / "nothing").scan("steps")
    with pytest.raises(DataError):
        distprof.read_run("nowhere://bucket/run").scan("steps")
