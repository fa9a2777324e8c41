"""What is said of jobs of which something untrue is easily said: what their scripts do is the truth."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest

from distprof.summaries.maker import summarise
from support.jobs import SCRIPTS, distprof, record_run, run_and_merge

pytestmark = pytest.mark.job

ODD = SCRIPTS / "odd_loops.py"


def told(run, command: str, *, whole: bool = True) -> str:
    """What a command prints; --strict agrees with it."""
    done = distprof(command, "--strict", run)
    assert done.returncode == (0 if whole else 3)
    return done.stdout if whole else distprof(command, run).stdout


def test_calls_behind_the_record_of_another_rank_are_no_mismatch(tmp_path):
    """Rank 1 averages before a step that it does not make, and rank 0 before one that is recorded."""
    run = tmp_path / "run"
    record_run(run, 2, ODD, "uneven", flags=("--steps", "wait=2,count=1,time=2,trace=2,arrivals=6"))
    comms, stats = told(run, "comms"), told(run, "stats")
    assert "mismatch" not in comms and "never entered" not in comms
    assert "one rank" not in comms.replace("on one rank only", "") and "one rank" not in stats
    assert "incomplete" not in comms + stats


def test_a_rank_that_raised_never_entered_and_that_is_no_whole_run(tmp_path):
    run = tmp_path / "run"
    done = distprof("run", "--out", run, "--steps", "wait=1,count=1,time=1,trace=8", "--nproc-per-node", 2, ODD,
                    "raises")
    assert done.returncode == 1
    comms = told(run, "comms", whole=False)
    assert "mismatch in step 8: all_reduce #4 of default_pg (0-1), 2.05 KB float32: rank 1 never entered" in comms
    problems = json.loads(distprof("stats", "--json", run).stdout)["problems"]
    assert {"code": "calls_differ", "num_collectives": 1} in problems
    assert "incomplete: ranks disagree about 1 collective; distprof comms lists them" in comms


WIDTH = 16
PARAMS = {"": 1072, "0": 544, "1": 0, "2": 528}
"""Of the net of the script: (16 + 1) x 32 and (32 + 1) x 16."""


def modules_of(run) -> dict[str, dict]:
    found = pl.read_parquet(run / "rank00000" / "modules.parquet")
    return {row["module_path"]: row for row in found.to_dicts()}


def test_models_that_come_and_go_have_their_parameters_and_only_what_was_counted_has_counts(tmp_path):
    """Step 2 is counted, of the first fold; timed are steps 3 to 5, the last of the second fold."""
    run = tmp_path / "run"
    record_run(run, 1, ODD, "folds", flags=("--steps", "wait=2,count=1,time=3,trace=6"))
    found = modules_of(run)
    for prefix in ("", "model1:", "model2:"):
        assert {path: found[prefix + path]["params"] for path in PARAMS} == PARAMS
        assert (found[prefix]["fwd_flops"] is None) == bool(prefix)
    assert [found[f"{prefix}0"]["fwd_time_ns"] is None for prefix in ("", "model1:", "model2:")] == [False, False, True]
    summary = json.loads(distprof("stats", "--json", run).stdout)
    assert summary["problems"] == [{"code": "modules_uncounted", "modules": ["model1:"], "num_modules": 4}]
    assert summary["step"]["flops_per_second"] is summary["step"]["mfu"] is None
    assert summary["step"]["mfu_basis"]["code"] == "uncounted" and summary["step"]["samples_per_second"] > 0
    assert summary["per_gpu"]["params"]["mean"] == 1072 and summary["per_gpu"]["fwd_macs"]["mean"] == 4 * 2 * 16 * 32
    assert "incomplete: 4 modules not counted: " in told(run, "stats", whole=False)


def test_a_layer_that_was_added_has_its_name_and_times_and_no_counts(tmp_path):
    run = tmp_path / "run"
    record_run(run, 1, ODD, "grows", flags=("--steps", "wait=2,count=1,time=3,trace=6"))
    found = modules_of(run)
    more = WIDTH * WIDTH + WIDTH
    assert {path: row["params"] for path, row in found.items()} == PARAMS | {"": 1072 + more, "3": more}
    assert found["3"]["fwd_time_ns"] > 0 and found["3"]["fwd_flops"] is None
    summary = json.loads(distprof("stats", "--json", run).stdout)
    assert summary["problems"] == [{"code": "modules_uncounted", "modules": ["3"], "num_modules": 1}]
    assert summary["step"]["flops_per_second"] is None


@pytest.mark.parametrize("kind", ["join", "metric"])
def test_numbers_that_replicas_join_to_look_at_make_no_doubt(tmp_path, kind):
    """Of join, the steps of rank 1, with shadows of rank 0 behind its seven."""
    run = tmp_path / "run"
    record_run(run, 2, ODD, kind, flags=("--steps", "wait=1,count=1,time=1,trace=2"))
    summary = json.loads(distprof("stats", "--json", run).stdout)
    assert summary["problems"] == [] and summary["topology_certain"] and summary["topology"] == {"dp": 2}
    calls = pl.read_parquet(run / "rank00001" / "collectives.parquet")
    inside = calls.filter(pl.col("phase") == "forward")
    assert len(inside) and set(inside["in_autograd"]) == {False}
    assert calls.filter(pl.col("phase") == "backward")["in_autograd"].null_count() > 0
    assert "incomplete" not in told(run, "stats")
    summary = summarise(run / "rank00001")
    assert not summary.damaged and not summary.exchanges.rows, "as the tables say"


SEVERAL = "steps end on several threads: only those of one thread are recorded"


@pytest.mark.parametrize("kind", ["threads", "pool"])
def test_of_several_threads_that_train_one_is_recorded_and_that_is_said(tmp_path, kind):
    run = tmp_path / "run"
    done = record_run(run, 1, ODD, kind, flags=("--steps", "wait=2,count=1,time=2,trace=2,arrivals=0"))
    assert f"rank 0: {SEVERAL}" in done.stderr and "dispatch mode" not in done.stderr
    about = json.loads((run / "rank00000" / "rank.json").read_text())
    assert (about["status"], about["num_steps"], about["notes"]) == ("complete", 7, [SEVERAL])
    assert {path: row["params"] for path, row in modules_of(run).items()} == PARAMS, "nothing of the other thread's"
    summary = json.loads(distprof("stats", "--json", run).stdout)
    assert [one["code"] for one in summary["problems"]] == ["note_of_rank"]
    assert summary["per_gpu"]["fwd_macs"]["mean"] == 4 * 2 * 16 * 32


ONE = re.compile(r"(?<![\d.])1 (?:more )?[a-z]*[^s\W]s\b(?! of)")
"""What is said of one thing as if it were several: `1 ranks`, `1 of 1 ranks`."""


def test_one_thing_is_not_said_to_be_several(tmp_path):
    """All that is said of a run of one rank, one timed and two traced steps."""
    run = tmp_path / "run"
    done = run_and_merge("--out", run, "--steps", "wait=1,count=1,time=1,trace=2", ODD, "grows")
    texts = [done.stderr, *(distprof(*words, run).stdout for words in (
        ["stats"], ["comms"], ["ops"], ["waits"], ["memory"], ["critical-path"], ["merge", "--force"],
        ["report", "--markdown"]))]
    found = [line for text in texts for line in text.splitlines() if ONE.search(line)]
    assert done.returncode == 0 and found == []
    assert ONE.search("1 of 1 ranks recorded") and ONE.search("1 steps")
    assert not ONE.search("2 of 1 rank, 1 class, 3.1 ms")
