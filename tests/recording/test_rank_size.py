"""The limit of bytes a rank: what is left out, that it is kept, and that it is said."""

from __future__ import annotations

import gzip
import json
import random

import polars as pl
import pytest
import torch
from torch import nn

from distprof.errors import UsageError
from distprof.recording.tracing.kineto_trace import capped, read_trace
from distprof.sizes import MOST_RANK_BYTES, bytes_in, num_bytes, rank_bytes
from support.jobs import SCRIPTS, called, distprof, merged, record_run
from support.perfetto import ask
from support.recording import train

STEPS = "wait=1,count=1,time=0,trace=3"


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 * 10**9), ("500 MiB", 500 << 20), ("1.5kb", 1500), ("77", 77)])
def test_sizes(text, size):
    assert num_bytes(text, "--max-rank-size") == size == rank_bytes({"DISTPROF_MAX_RANK_SIZE": text})


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "2 apples", "1e9"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="--max-rank-size must be a size"):
        num_bytes(text, "--max-rank-size")
    assert rank_bytes({}) == MOST_RANK_BYTES


def model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(30)))


@pytest.mark.long
def test_a_rank_keeps_its_limit_and_what_is_left_are_its_longest_events(tmp_path, monkeypatch):
    whole = train(tmp_path / "whole", model(), lambda: torch.randn(2, 8), steps=STEPS, num_steps=6)
    size = bytes_in(whole.folder)
    limit = size - (whole.folder / "trace.json.gz").stat().st_size // 2
    monkeypatch.setenv("DISTPROF_MAX_RANK_SIZE", str(limit))
    less = train(tmp_path / "less", model(), lambda: torch.randn(2, 8), steps=STEPS, num_steps=6)
    assert limit / 2 < bytes_in(less.folder) <= limit < size
    left_out = less.info["left_out"]
    assert left_out["num_events"] > 50 and left_out["most_bytes"] == limit and whole.info["left_out"] is None
    assert 0 < left_out["longest_ns"] <= left_out["total_ns"] <= left_out["num_events"] * left_out["longest_ns"]

    events = less.table("events").with_columns(pl.col(pl.Categorical).cast(pl.String))
    operators = events.filter(pl.col("category") == "cpu_op", ~pl.col("name").str.starts_with("c10d"))
    assert operators["duration_ns"].min() >= left_out["longest_ns"]
    modules = events.filter(pl.col("name").str.ends_with("[Linear]"))
    assert len(modules) == 3 * 30, "modules are kept longer than operators"
    trace = json.loads(gzip.decompress((less.folder / "trace.json.gz").read_bytes()))
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == len(events.drop_nulls("duration_ns"))
    assert trace["distprof"]["rank"] == 0, "what is beside the events stays"


@pytest.mark.job
def test_what_was_left_out_is_said_everywhere(tmp_path):
    out = tmp_path / "run"
    record_run(out, 2, SCRIPTS / "job.py", "fine", flags=("--max-rank-size", "45KB"))
    merged(out)
    about = [json.loads((out / f"rank0000{rank}" / "rank.json").read_text())["left_out"] for rank in range(2)]
    assert all(one["num_events"] > 0 for one in about)
    number = sum(one["num_events"] for one in about)
    line = f"timelines of ranks 0 and 1 lack the {number} shortest events"
    for command in ("stats", "comms", "ops"):
        assert line in called(command, out).stdout, command
    assert f"Timelines of ranks 0 and 1 lack the {number}" in called("report", "--markdown", out).stdout
    trace = json.loads(gzip.decompress((out / "merged" / "trace.json.gz").read_bytes()))
    assert [trace["metadata"]["distprof"]["ranks"][str(rank)]["not_recorded"]["num_events"] for rank in range(2)] == [
        one["num_events"] for one in about]
    assert ask(out / "merged" / "trace.json.gz", "select count(*) as n from slice").import_errors == []
    assert called("stats", "--strict", out).returncode == 3


def test_the_shortest_go_first_whatever_their_order():
    shuffled = random.Random(1)
    events = [{"ph": "X", "name": f"aten::{number}", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": number, "dur": number}
              for number in range(100)]
    events += [{"ph": "X", "name": "layers [Layer]", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 1, "dur": 0.5},
               {"ph": "X", "name": "c10d::allreduce_", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 0.5},
               {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "python"}}]
    shuffled.shuffle(events)
    text = json.dumps({"traceEvents": events, "baseTimeNanoseconds": 5, "more": {"a": [1]}}).encode()
    found = capped(text, read_trace(text), 0.5, most_bytes=9)
    left = json.loads(found.text)
    operators = sorted(event["dur"] for event in left["traceEvents"] if event["name"].startswith("aten"))
    assert operators == list(range(100 - len(operators), 100)) and 10 < len(operators) < 60
    assert {"layers [Layer]", "c10d::allreduce_", "process_name"} <= {event["name"] for event in left["traceEvents"]}
    assert (left["baseTimeNanoseconds"], left["more"]) == (5, {"a": [1]})
    assert len(found.text) <= 0.5 * len(text) and found.left_out.num_events == 100 - len(operators)
    assert found.left_out.longest_ns == 1000 * (99 - len(operators)) < 1000 * operators[0]
    assert [row["name"] for row in found.content.rows] == [
        event["name"] for event in left["traceEvents"] if event["ph"] == "X"]
    none = capped(text, read_trace(text), 0.0, most_bytes=9)
    assert [event["ph"] for event in json.loads(none.text)["traceEvents"]] == ["M"]


@pytest.mark.job
@pytest.mark.parametrize(("flags", "environ"), [((), {"DISTPROF_MAX_RANK_SIZE": "much"}),
                                                (("--max-rank-size", "much"), {})])
def test_a_size_that_is_none_is_refused_before_the_job_starts(tmp_path, flags, environ):
    done = distprof("run", "--out", tmp_path / "run", *flags, SCRIPTS / "job.py", "fine", **environ)
    assert done.returncode == 2 and "must be a size" in done.stderr and "not 'much'" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "run" / "rank00000").exists()
