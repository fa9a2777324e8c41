"""Operators that a merge has added up: the same rows, as long as the merge speaks of the traces that are there."""

from __future__ import annotations

import json
import os
import shutil

import polars as pl
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import distprof
from distprof.contract.merged import MERGED_OPERATORS
from distprof.contract.parquet import schema_of
from distprof.merge.operators import read_operators as module
from support.jobs import called
from support.kineto_files import DLRM, needs_shared
from support.made_up_traces import folder, op

MM = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"], "Input Strides": [[3, 1], [4, 1]]}
EVENTS = [op("ProfilerStep#3", 0, 100, cat="user_annotation"), op("aten::linear", 10, 40, **MM),
          op("aten::mm", 12, 30, **MM), op("cudaLaunchKernel", 15, 5, cat="cuda_runtime", correlation=7),
          op("gemm", 200, 9, cat="kernel", tid=7, correlation=7), op("lonely", 300, 4, cat="kernel", tid=7),
          {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 20,
           "args": {"Bytes": 64, "Addr": 1, "Device Type": 0, "Device Id": -1}},
          op("aten::mm", 60, -4, **MM), op("aten::mm", 70, 3), op("odd\ud800", 80, 3)]


@pytest.fixture
def merged(tmp_path):
    run = folder(tmp_path, EVENTS, EVENTS[:5])
    done = called("merge", "--operators", run)
    assert done.returncode == 0, done.stderr
    return run


def frame(path) -> pl.DataFrame:
    return distprof.read_run(path).ops()


@pytest.fixture
def never_read(monkeypatch):
    def read(*args):
        raise AssertionError("a timeline is read")

    monkeypatch.setattr(module, "read_timeline", read)


def test_rows_are_the_same_from_either_way(merged, never_read, monkeypatch):
    found = frame(merged), frame(merged / "merged")
    monkeypatch.undo()
    shutil.move(merged / "merged", merged.parent / "kept")
    read = frame(merged)
    for one in found:
        assert_frame_equal(one, read)
    assert read.filter(pl.col("op") == "gemm").row(0, named=True)["launched_by"] == "aten::mm"
    assert read["flops"].sum() == 2 * 48 and read["self_allocated_bytes"].sum() == 64


@pytest.mark.long
@pytest.mark.parametrize("flags", [(), ("--json",), ("--by", "op", "--by", "rank", "--csv"), ("--type", "kernel")])
def test_what_is_printed_is_the_same(merged, flags):
    texts = [called("ops", *flags, path).stdout.replace(str(path), "RUN") for path in (merged, merged / "merged")]
    shutil.rmtree(merged / "merged")
    assert texts == [called("ops", *flags, merged).stdout.replace(str(merged), "RUN")] * 2


@pytest.mark.parametrize("change", ["newer", "longer", "a rank more", "damaged", "no metadata", "a rank less"])
def test_a_merge_that_is_not_of_these_traces_is_not_believed(merged, change):
    path, table = merged / "rank0.json", merged / "merged" / MERGED_OPERATORS.file / "rank00000.parquet"
    before = frame(merged)
    if change == "newer":
        os.utime(path, ns=(1, 1))
    elif change == "longer":
        path.write_text(path.read_text() + " ")
    elif change == "a rank more":
        trace = json.loads(path.read_text())
        trace["distributedInfo"]["rank"] = 2
        (merged / "rank2.json").write_text(json.dumps(trace))
    elif change == "damaged":
        table.write_bytes(table.read_bytes()[:-9])
    elif change == "no metadata":
        pq.write_table(pq.read_table(table).replace_schema_metadata(None), table)
    else:
        table.unlink()
    expected = before if change != "a rank more" else pl.concat(
        [before, before.filter(rank=0).with_columns(rank=pl.lit(2, pl.Int64))])
    assert_frame_equal(frame(merged), expected)


def test_a_merge_elsewhere_knows_its_run(merged, tmp_path, never_read):
    (tmp_path / "far").mkdir()
    away = merged / "merged"
    shutil.move(away, tmp_path / "far" / "merge")
    assert frame(tmp_path / "far" / "merge")["rank"].unique().to_list() == [0, 1]


def test_a_merge_whose_run_is_gone_is_said(merged, tmp_path):
    shutil.move(merged / "merged", tmp_path / "kept")
    (tmp_path / "kept" / "rank0.json").unlink(missing_ok=True)
    for path in merged.glob("rank*.json"):
        path.unlink()
    shutil.rmtree(tmp_path / "kept" / MERGED_OPERATORS.file)
    done = called("ops", tmp_path / "kept")
    assert done.returncode == 1 and "is a merge, not a run" in done.stderr and "hint:" in done.stderr


def test_without_the_table_the_timelines_are_read(tmp_path):
    run = folder(tmp_path, EVENTS)
    assert called("merge", run).returncode == 0 and not (run / "merged" / MERGED_OPERATORS.file).exists()
    assert_frame_equal(frame(run / "merged"), frame(run))


def test_the_table_has_all_events_whatever_is_chosen(merged):
    before = frame(merged)
    assert called("merge", "--operators", "--categories", "kernel", "--force", merged).returncode == 0
    assert_frame_equal(frame(merged), before)


def test_an_archive_of_files_has_no_table(merged):
    done = called("merge", "--operators", "--format", "perfetto-tar", "--force", merged)
    assert done.returncode == 2 and "--operators needs --format chrome" in done.stderr


def test_the_table_is_as_the_contract_says(merged):
    schema = pq.read_schema(merged / "merged" / MERGED_OPERATORS.file / "rank00001.parquet")
    assert schema.equals(schema_of(MERGED_OPERATORS, {}), check_metadata=False)
    assert all(field.metadata[b"doc"] for field in schema)


@pytest.mark.long
@needs_shared
def test_a_foreign_job_on_gpus_has_the_same_rows(tmp_path, monkeypatch):
    assert called("merge", "--operators", "--out", tmp_path / "m", DLRM / "kineto").returncode == 0
    read = frame(DLRM / "kineto")
    monkeypatch.setattr(module, "read_timeline", None)
    assert_frame_equal(frame(tmp_path / "m"), read)


@pytest.mark.job
@pytest.mark.parametrize("name", ["ddp", "tp"])
def test_a_recorded_run_has_the_same_rows(request, name, tmp_path, monkeypatch):
    recorded = request.getfixturevalue(name)
    assert called("merge", "--operators", "--out", tmp_path / "m", recorded).returncode == 0
    read = frame(recorded)
    monkeypatch.setattr(module, "read_timeline", None)
    assert_frame_equal(frame(tmp_path / "m"), read)
    assert read["flops"].sum() > 0 and read["module_path"].n_unique() > 3
