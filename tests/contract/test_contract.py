"""Written files against the contract: every column, its type, its documentation, and the tags of every file."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from distprof.contract.merged import (
    MERGED_COLLECTIVES,
    MERGED_EVENTS,
    MERGED_MODULES,
    MERGED_STEPS,
    MODEL_PARAMS,
    QUANTITIES,
    SUMMARY_KEYS,
)
from distprof.contract.parquet import TYPES, schema_of
from distprof.contract.paths import FORMAT
from distprof.contract.tables import ASKED_TABLES, LINES, RANK_TABLES
from support.jobs import ROOT

TABLES = {table.file: table for table in RANK_TABLES}
MERGED = {table.file: table for table in
          (MERGED_MODULES, MERGED_COLLECTIVES, MERGED_STEPS)}


@pytest.fixture(scope="module", params=["ddp", "tp"])
def run(request, recordings) -> Path:
    return request.getfixturevalue(request.param)


def test_a_run_directory_is_complete(run):
    ranks = {f"rank{rank:05d}" for rank in range(4)}
    assert {path.name for path in run.iterdir()} - {"watch", "hosts"} == ranks | {"run.json", "merged", "columns"}
    for rank in ranks:
        assert {path.name for path in (run / rank).iterdir()} == {
            *TABLES, LINES.file, "watch-000.bin", "rank.json", "trace.json.gz"}
    assert {path.name for path in (run / "merged").iterdir()} == {
        *MERGED, MERGED_EVENTS.file, "trace.json.gz", "summary.json"}
    assert {path.stem for path in (run / "merged" / MERGED_EVENTS.file).iterdir()} == ranks


@pytest.mark.parametrize("file", TABLES)
def test_tables_match_their_schema(run, file):
    for rank in range(4):
        schema = pq.read_schema(run / f"rank{rank:05d}" / file)
        assert schema.equals(schema_of(TABLES[file], {}), check_metadata=False)
        assert all(field.metadata[b"doc"] for field in schema)


@pytest.mark.parametrize("file", TABLES)
def test_every_row_and_file_says_rank_mp_and_dp(run, file):
    sizes = {"ddp": (1, 4), "tp": (2, 2)}[run.parent.name.rstrip("0")]
    for rank in range(4):
        table = pq.read_table(run / f"rank{rank:05d}" / file)
        assert table.num_rows > 0
        for column, value in zip(("rank", "mp_size", "dp_size"), (rank, *sizes), strict=True):
            assert set(table[column].to_pylist()) == {value}
            assert table.schema.metadata[f"distprof.{column}".encode()] == str(value).encode()
        for key in ("world_size", "topology", "format", "run_id"):
            assert f"distprof.{key}".encode() in table.schema.metadata


def test_traces_and_rank_json_are_tagged(run):
    for rank in range(4):
        folder = run / f"rank{rank:05d}"
        about = json.loads((folder / "rank.json").read_text())
        tags = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["distprof"]
        for key in ("rank", "mp_size", "dp_size", "world_size", "topology", "coordinates", "run_id", "format"):
            assert tags[key] == about[key], key
        assert about["status"] == "complete" and about["format"] == FORMAT
        rows = {name: count for name, count in about["files"].items() if name not in ("trace.json.gz", LINES.file)}
        assert rows == {file: pq.read_metadata(folder / file).num_rows for file in TABLES}


@pytest.mark.parametrize("file", MERGED)
def test_merged_tables_have_the_columns_of_the_contract(run, file):
    schema = pq.read_schema(run / "merged" / file)
    assert schema.names == MERGED[file].names()
    assert schema.metadata[b"distprof.mp_size"] in (b"1", b"2")
    assert pq.read_metadata(run / "merged" / file).num_rows > 0


@pytest.mark.parametrize("table", [*RANK_TABLES, *ASKED_TABLES, *MERGED.values()], ids=lambda table: table.file)
def test_every_column_is_documented(table):
    assert table.doc.endswith(".")
    assert len(set(table.names())) == len(table.columns)
    for column in table.columns:
        assert len(column.doc) > 10 and column.type in TYPES, column.name
        if column.name.endswith("_ns") or "time" in column.name.split("_"):
            assert column.type in ("int64", "float64")


def test_summary_has_the_keys_of_the_contract(run):
    summary = json.loads((run / "merged" / "summary.json").read_text())
    assert tuple(summary) == SUMMARY_KEYS
    page = (ROOT / "docs" / "run-directory.md").read_text()
    assert all(f"`{key}`" in page for key in SUMMARY_KEYS)
    assert set(QUANTITIES) <= set(summary["per_gpu"])
    assert {*QUANTITIES, *MODEL_PARAMS} == set(summary["model"])
    for quantity in QUANTITIES:
        assert set(summary["per_gpu"][quantity]) == {"mean", "min", "max", "min_rank", "max_rank"}
    assert {"time_ns", "fwd_ns", "bwd_ns", "optimizer_ns", "samples_per_second", "flops_per_second", "mfu"} <= set(
        summary["step"])
    assert summary["problems"] == [] and summary["coverage_ratio"] == 1


def test_steps_follow_the_plan(run):
    for rank in range(4):
        rows = pq.read_table(run / f"rank{rank:05d}" / "steps.parquet").to_pylist()
        assert [row["pass"] for row in rows] == ["wait"] * 2 + ["count"] + ["time"] * 3 + ["trace"] * 2
        assert [row["step"] for row in rows] == list(range(8))
        for row, after in pairwise(rows):
            assert row["start_ns"] + row["duration_ns"] == row["end_ns"] <= after["start_ns"]
        for name in ("fwd_ns", "bwd_ns", "optimizer_ns"):
            assert all((row[name] is not None) == (row["pass"] == "time") for row in rows)


def test_events_are_the_slices_and_instants_of_the_trace(run):
    folder = run / "rank00001"
    trace = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    rows = pq.read_table(folder / "events.parquet").to_pylist()
    events = [event for event in trace["traceEvents"] if event["ph"] in "Xi"]
    assert [row["name"] for row in rows] == [event["name"] for event in events]
    for row, event in zip(rows, events, strict=True):
        assert abs(row["start_ns"] - trace["baseTimeNanoseconds"] - round(event["ts"] * 1000)) <= 1
        assert (row["duration_ns"] is None) == (event["ph"] == "i")
    steps = {row["step"] for row in rows if row["category"] == "cpu_op"}
    assert steps >= {6, 7}


def test_merged_events_are_those_of_the_ranks(run):
    columns = ["name", "category", "start_ns", "duration_ns", "process", "thread", "thread_name", "step"]
    for rank in range(4):
        path = run / "merged" / MERGED_EVENTS.file / f"rank{rank:05d}.parquet"
        assert pq.read_schema(path).equals(schema_of(MERGED_EVENTS, {}), check_metadata=False)
        recorded = pl.read_parquet(run / f"rank{rank:05d}" / "events.parquet", columns=columns)
        merged = pl.read_parquet(path).filter(pl.col("phase").is_in(["X", "i"])).select(columns)
        for column in columns:
            if column != "start_ns":
                wanted = [value if value != "" else None for value in recorded[column].to_list()]
                assert merged[column].to_list() == wanted, column
        # a double of microseconds, which the recorder rounded, against the text itself
        assert (recorded["start_ns"] - merged["start_ns"]).abs().max() <= 1
