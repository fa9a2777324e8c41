"""Traces of real jobs that distprof did not record, merged and shown."""

from __future__ import annotations

import gzip
import json
import os
import tarfile

import polars as pl
import pytest

from distprof.contract.merged import SUMMARY_KEYS
from distprof.merge.run.traces.rank_from_name import ranks_of_places
from distprof.merge.run.traces.trace_identity import identity_of
from support.jobs import distprof
from support.kineto_files import DLRM, GLOO, kineto, names_in, needs_shared, plain, write
from support.perfetto import ERRORS, FLOWS, SLICES, ask, rank_of


def test_a_real_job_is_merged_with_its_mesh(profiled):
    done = distprof("merge", profiled)
    assert done.returncode == 0 and "4 of 4 ranks" in done.stdout and "incomplete" not in done.stdout, done.stdout
    summary = json.loads((profiled / "merged" / "summary.json").read_text())
    assert list(summary) == list(SUMMARY_KEYS)
    assert (summary["topology"], summary["mp_size"], summary["dp_size"]) == ({"dp": 2, "tp": 2}, 2, 2)
    assert summary["problems"] == [] and summary["clock"]["aligned"] and summary["per_gpu"]["params"]["mean"] is None
    answer = ask(profiled / "merged" / "trace.json.gz", ERRORS, SLICES, FLOWS)
    # a trace without a table of events does not say where time begins: at epoch size a double loses nanoseconds
    assert answer.import_errors == [] and {row["name"] for row in answer.results[0]} <= {
        "slice_drop_overlapping_complete_event"}
    assert {rank_of(row["process"]) for row in answer.results[1]} == {0, 1, 2, 3}
    assert any(row["process"].startswith("rank 3 | tp1 dp1 | ") for row in answer.results[1])
    assert all(row["source"] == row["target"] for row in answer.results[2])
    for table in ("modules", "collectives", "steps"):
        assert pl.read_parquet(profiled / "merged" / f"{table}.parquet").is_empty()


def test_stats_of_traces_tells_what_is_known_and_why_the_rest_is_not(profiled, tmp_path):
    told = distprof("stats", profiled)
    assert told.returncode == 0 and "4 ranks = dp 2 x tp 2" in told.stdout, told.stderr
    assert "unknown: these are traces of another program" in told.stdout
    assert distprof("stats", "--strict", profiled).returncode == 0
    refusal = distprof("stats", "--modules", profiled)
    assert refusal.returncode == 1 and len(refusal.stderr.splitlines()) == 1
    assert "has foreign traces" in refusal.stderr and "hint:" in refusal.stderr
    write(tmp_path / "rank1.json", kineto(None))
    told = distprof("stats", "--json", tmp_path)
    summary = json.loads(told.stdout)
    assert summary["kind"] == "traces" and summary["mp_size"] is None and summary["topology"] is None
    assert summary["missing_ranks"] == [0] and summary["step"]["time_ns"] is None
    assert "rank 0 of 2 missing" in distprof("stats", "--strict", tmp_path).stderr


def test_comms_of_traces_says_what_it_infers(profiled):
    told = distprof("comms", profiled)
    assert told.returncode == 0, told.stderr
    assert "\nall_reduce " in told.stdout and "foreign traces: " in told.stdout
    assert "mismatch" not in told.stdout
    inferred = json.loads(distprof("comms", "--json", profiled).stdout)
    assert inferred["remarks"] and not set(inferred["coverage"]["matched_by"]) & {"id", "sequence"}


def test_traces_that_changed_after_the_merge_are_looked_at_again(tmp_path):
    write(tmp_path / "rank0.json", kineto(0, 2))
    assert distprof("merge", tmp_path).returncode == 0
    assert json.loads(distprof("stats", "--json", tmp_path).stdout)["missing_ranks"] == [1]
    os.utime(write(tmp_path / "rank1.json", kineto(1, 2)), (2**31, 2**31))
    assert json.loads(distprof("stats", "--json", tmp_path).stdout)["missing_ranks"] == []


def test_a_damaged_trace_is_said_and_the_others_are_merged(tmp_path):
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json.gz", kineto(rank, 3))
    path = tmp_path / "rank1.json.gz"
    path.write_bytes(gzip.compress(kineto(1, 3).encode() + b" " * 9999, 0)[:-3000])
    done = distprof("merge", tmp_path)
    assert done.returncode == 0 and "incomplete: rank 1: rank1.json.gz is cut at byte" in done.stdout, done.stdout
    assert {"work of 0", "work of 2"} <= names_in(tmp_path / "merged")
    assert distprof("merge", "--force", "--strict", tmp_path).returncode == 3
    for rank in range(3):
        (tmp_path / f"rank{rank}.json.gz").write_bytes(b"")
    done = distprof("merge", "--force", tmp_path)
    assert done.returncode == 1 and "no Chrome traces in" in done.stderr and len(done.stderr.splitlines()) == 1
    assert names_in(tmp_path / "merged"), "the earlier merge is still there"


def test_files_need_a_place_for_their_merge(tmp_path):
    files = [write(tmp_path / f"rank{rank}.json", kineto(rank, 2)) for rank in range(2)]
    done = distprof("merge", *files)
    assert done.returncode == 2 and "--out" in done.stderr and len(done.stderr.splitlines()) == 1
    done = distprof("merge", *files, "--out", tmp_path / "out")
    assert done.returncode == 0 and names_in(tmp_path / "out") == {"work of 0", "work of 1"}, done.stderr
    told = distprof("stats", tmp_path / "out")
    assert told.returncode == 0 and "2 ranks" in told.stdout and "Next" not in told.stdout
    done = distprof("merge", tmp_path / "rank0.json", "--out", tmp_path / "one", "--strict")
    assert done.returncode == 3 and names_in(tmp_path / "one") == {"work of 0"}


def test_the_command_takes_the_ways_to_tell_ranks(tmp_path):
    plain(tmp_path, ["gpu_0.json", "gpu_1.json"])
    assert distprof("merge", tmp_path).returncode == 1
    assert distprof("merge", tmp_path, "--rank-pattern", "gpu").returncode == 2
    assert "2 of 2 ranks" in distprof("merge", tmp_path, "--rank-pattern", r"gpu_(\d+)").stdout
    assert "2 of 2 ranks" in distprof("merge", "--force", tmp_path, "--ranks-in-order").stdout
    # what merging was told is not asked again
    assert distprof("stats", tmp_path).returncode == 0


@needs_shared
@pytest.mark.long
def test_a_real_gpu_job_of_eight_ranks(tmp_path):
    done = distprof("merge", DLRM, "--out", tmp_path / "out")
    assert done.returncode == 0 and "8 of 8 ranks" in done.stdout, done.stderr
    assert "execution traces of ranks 0-7 next to the timelines" in done.stdout
    paths = sorted((DLRM / "kineto").glob("*.json.gz"))
    slices = {rank: sum(event["ph"] == "X" for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
              for rank, path in enumerate(paths)}
    answer = ask(tmp_path / "out" / "trace.json.gz", ERRORS, SLICES, FLOWS)
    assert answer.import_errors == []
    assert {row["name"] for row in answer.results[0]} <= {"flow_end_without_start"}
    shown: dict[int, int] = {}
    for row in answer.results[1]:
        shown[rank_of(row["process"])] = shown.get(rank_of(row["process"]), 0) + row["n"]
    assert shown == slices
    assert all(row["source"].split(" | ")[0] == row["target"].split(" | ")[0] for row in answer.results[2])
    assert "8 clocks aligned within" in done.stdout, "hosts are not known"
    for flag in ([], ["--same-host"]):
        assert distprof("merge", "--strict", *flag, DLRM, "--out", tmp_path / f"strict{len(flag)}").returncode == 0


@pytest.mark.long
@needs_shared
def test_a_real_gpu_job_in_an_archive_is_the_same(tmp_path):
    with tarfile.open(tmp_path / "dlrm.tar.gz", "w:gz") as tar:
        tar.add(DLRM, "dlrm")
    for path, out in ((tmp_path / "dlrm.tar.gz", "a"), (DLRM, "b")):
        assert distprof("merge", path, "--out", tmp_path / out).returncode == 0
    whole = [json.loads(gzip.decompress((tmp_path / out / "trace.json.gz").read_bytes())) for out in ("a", "b")]
    assert whole[0]["traceEvents"] == whole[1]["traceEvents"]


@needs_shared
def test_a_real_rank_of_three_hundred(tmp_path):
    done = distprof("merge", GLOO, "--out", tmp_path / "out")
    assert done.returncode == 0 and "1 of 300 ranks" in done.stdout
    assert "incomplete: ranks 0-33, 35-299 of 300 missing" in done.stdout


def test_ranks_beyond_all_jobs_are_none(tmp_path):
    """Numbers of jobs and times are found by patterns too."""
    for rank in range(2):
        (tmp_path / f"job_1700000000000_rank{rank}.json").write_text('{"traceEvents": []}')
    done = distprof("merge", tmp_path, "--rank-pattern", r"job_(\d+)")
    assert done.returncode == 2
    assert "must match a number, but matches" in done.stderr and "a rank has one to six digits" in done.stderr
    assert identity_of({"distributedInfo": {"rank": 10**12, "world_size": 10**13}}).rank is None
    assert ranks_of_places([{"tp": 99999, "pp": 0, "dp": 5}, {"tp": 0, "pp": 99999, "dp": 5}]) is None
