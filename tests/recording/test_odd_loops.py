"""What is said of jobs of which something untrue is easily said: what their scripts do is the truth."""

from __future__ import annotations

import json

import pytest

from support.jobs import SCRIPTS, distprof, record_run

pytestmark = pytest.mark.job

ODD = SCRIPTS / "odd_loops.py"


def told(run, command: str, *, whole: bool = True) -> str:
    """What a command prints; --strict agrees with it."""
    assert distprof(command, "--strict", run).returncode == (0 if whole else 3)
    return distprof(command, run).stdout


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
    assert "incomplete: ranks disagree about 1 collective, which distprof comms names" in comms
