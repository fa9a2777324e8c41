"""Runs of which only some ranks were recorded fully: who is late, and what is said of what."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.tables import MODULES, STEPS
from distprof.merge.blame.causes import timed_cause
from distprof.merge.run.tables import empty
from support.jobs import SCRIPTS, called, merged, record_run

LATE = (SCRIPTS / "stragglers.py", "module", 60, 40)
"""Rank 2 sleeps in layers.1.mlp."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of four ranks, of which the late one is recorded lightly."""
    out = tmp_path_factory.mktemp("light") / "run"
    record_run(out, 4, *LATE, flags=("--ranks", "0,3"))
    return merged(out)


@pytest.mark.job
def test_a_late_rank_is_named_with_its_module_where_it_has_no_timeline(run):
    found = json.loads((run / "merged" / "summary.json").read_text())["communication"]
    first = next(one for one in found["culprits"] if one["certain"])
    assert (first["rank"], first["causes"][0]["kind"], first["causes"][0]["where"]) == (2, "forward", "layers.1.mlp")
    assert found["passes"] == ["arrivals"]
    assert first["num_peers"] == 3, "ranks with a timeline and without are compared with each other"
    assert all(one["gain_ns"] < first["gain_ns"] / 4 for one in found["culprits"] if one["rank"] != 2)


@pytest.mark.job
def test_what_is_of_some_ranks_only_says_so(run):
    note = "note: 2 of 4 ranks recorded fully (0, 3), the others lightly"
    stats = called("stats", run).stdout
    assert "MACs and FLOPs: counted on 2 of 4 ranks (0, 3)" in stats and note in stats
    ops = called("ops", run).stdout
    assert ops.startswith("sums over 2 of 4 ranks x ") and note in ops
    assert "ranks 1 and 2 wait longer in steps with a timeline" in called("comms", run).stdout
    assert note in called("comms", run).stdout and note in called("merge", "--force", run).stdout
    assert called("merge", "--force", "--answer", run).stdout.startswith("4 ranks = dp 4 (2 of them recorded fully): ")
    assert "2 of 4 ranks recorded fully" in called("report", "--markdown", run).stdout
    assert called("stats", "--strict", run).returncode == 0, "nothing is missing that was asked for"


@pytest.mark.job
def test_the_critical_path_is_of_steps_that_are_alike(run):
    found = json.loads(called("critical-path", "--json", run).stdout)
    steps = pl.read_parquet(run / "merged" / "steps.parquet")
    arrivals = steps.filter(pl.col("pass") == "arrivals")["step"].unique().to_list()
    assert found["steps"] and {one["step"] for one in found["steps"]} <= set(arrivals)
    assert "2 of 4 ranks recorded fully" in called("critical-path", run).stdout
    done = called("whatif", "--scale", "module=layers.1.mlp:0.5", run)
    assert done.returncode == 2 and "needs ranks with a timeline" in done.stderr


@pytest.mark.job
def test_totals_are_those_of_all_ranks(run):
    found = json.loads((run / "merged" / "summary.json").read_text())
    assert found["per_gpu"]["fwd_flops"]["mean"] == found["model"]["fwd_flops"] == 394240, "as counted on all ranks"
    assert found["per_gpu"]["step_ns"]["mean"] and found["missing_ranks"] == [] and found["problems"] == []


@pytest.mark.job
def test_without_steps_that_are_alike_nobody_is_blamed(tmp_path):
    out = tmp_path / "run"
    record_run(out, 2, SCRIPTS / "job.py", "fine", flags=("--ranks", "0", "--steps", "trace=6,arrivals=0"))
    merged(out)
    found = json.loads((out / "merged" / "summary.json").read_text())["communication"]
    assert (found["culprits"], found["blind"]) == ([], "uneven")
    assert "whether a rank delays others is unknown (--steps arrivals=20" in called("comms", out).stdout


def modules(*rows: tuple[int, str, int, float, float]) -> pl.DataFrame:
    """Rank, path, depth, and times forward and backward."""
    frame = pl.DataFrame(rows, ("rank", "module_path", "depth", "fwd_time_ns", "bwd_time_ns"), orient="row")
    return pl.concat([empty(MODULES), frame], how="diagonal_relaxed")


def test_the_innermost_module_that_explains_it_is_the_cause():
    rows = [(rank, path, depth, 100.0 + 50 * (rank == 1), 10.0) for rank in range(3)
            for depth, path in enumerate(("", "layers", "layers.1"))]
    rows += [(rank, "layers.2", 2, 70.0, 10.0) for rank in range(3)]
    cause = timed_cause(empty(STEPS), modules(*rows), 1, 50.0)
    assert cause is not None and (cause.kind, cause.where, cause.spent, cause.of_peers) == (
        "forward", "layers.1", 150.0, 100.0)
    assert timed_cause(empty(STEPS), modules(*rows), 1, 200.0) is None, "that explains too little"
    assert timed_cause(empty(STEPS), modules(*rows), 0, 1.0) is None, "it takes no longer than others"
    assert timed_cause(empty(STEPS), modules(), 1, 1.0) is None
