"""Jobs that fail and are started again: attempts are kept apart, and the rank that failed first is named."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from support.forked import popen
from support.hooked import run_hooked
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, distprof, wait_for
from support.ports import free_port

pytestmark = pytest.mark.job
PLAN = ("--steps", "wait=1,count=1,time=1,trace=2,arrivals=2")
FAILED = "ValueError in the script: bad sample 17 (fails_once.py:20)"


@pytest.mark.core
def test_attempts_are_kept_apart_and_the_last_is_shown(tmp_path):
    out = tmp_path / "run"
    done = distprof("run", "--out", out, "--nproc-per-node", 2, "--max-restarts", 1, *PLAN,
                    SCRIPTS / "fails_once.py")
    assert done.returncode == 0, done.stderr
    for folder, attempt in ((out, 1), (out / "attempt0000", 0)):
        for rank in (0, 1):
            (found,) = folder.glob(f"rank{rank:05d}*/rank.json")
            assert json.loads(found.read_text())["attempt"] == attempt
    note = f"the job was restarted: this is attempt 1; attempt 0 ended with {FAILED} (show it with --attempt 0)"
    told = distprof("stats", "--strict", out)
    assert told.returncode == 0 and note in told.stdout, told.stdout
    assert note in distprof("merge", out).stdout and note in distprof("comms", out).stdout
    earlier = distprof("stats", "--attempt", 0, out).stdout
    assert f"rank 1 failed first: an exception ({FAILED})" in earlier and "restarted" not in earlier
    assert json.loads(distprof("stats", "--json", "--attempt", 1, out).stdout)["problems"] == []
    assert distprof("merge", "--attempt", 0, out).returncode == 0
    assert (out / "attempt0000" / "merged" / "trace.json.gz").exists()
    wrong = distprof("comms", "--attempt", 7, out)
    assert wrong.returncode == 2 and "--attempt can be 0, 1" in wrong.stderr


def test_a_rank_that_joins_a_job_is_of_the_attempt_of_the_others(tmp_path):
    """torchrun counts no restart where a node joins, and the rank that it brings finds nothing of an earlier one."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "distprof", "run", "--no-merge", "--no-progress", "--out", out, "--nnodes", "1:2",
               "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}",
               "--rdzv-id", "grows", "--rdzv-conf", "last_call_timeout=1", "--max-restarts", "2", "--monitor-interval",
               "0.1", *PLAN, SCRIPTS / "joined_later.py"]
    nodes = [popen(command, env=clean_environ(), stderr=subprocess.PIPE, text=True)]
    wait_for(nodes[0], out / "rank00000" / "rank.json")
    nodes.append(popen(command, env=clean_environ(), stderr=subprocess.PIPE, text=True))
    said = [node.communicate(timeout=PATIENCE_S)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    found = {str(file.relative_to(out).parent): json.loads(file.read_text()) for file in out.glob("**/rank.json")}
    assert {name: (one["world_size"], one["attempt"]) for name, one in found.items()} == {
        "attempt0000/rank00000": (1, 0), "rank00000": (2, 1), "rank00001": (2, 1)}
    told = distprof("stats", "--strict", out)
    assert told.returncode == 0 and "this is attempt 1; attempt 0 ended" in told.stdout, told.stdout + told.stderr


def test_the_rank_that_failed_first_is_named_whoever_lost_its_connection(tmp_path):
    out = tmp_path / "run"
    done = distprof("run", "--out", out, "--nproc-per-node", 2, *PLAN, SCRIPTS / "fails_once.py")
    assert done.returncode == 1
    assert f"distprof: rank 1 failed first: exit code 1 ({FAILED})" in done.stderr, done.stderr
    # torchrun's own report
    block = done.stderr[done.stderr.index("torch.distributed.elastic.multiprocessing.errors.ChildFailedError"):]
    assert "fails_once.py FAILED" in block and "Root Cause (first observed failure)" in block
    about = json.loads((out / "run.json").read_text())
    assert (about["failed_rank"], about["failed_with"], about["exit_code"]) == (1, 1, 1)
    for command in ("stats", "comms"):
        told = distprof(command, out).stdout
        assert f"rank 1 failed first: exit code 1 ({FAILED})" in told
    assert "Connection" not in distprof("comms", out).stdout.partition("clock:")[0]


def test_without_our_launcher_it_is_named_too(tmp_path):
    out = tmp_path / "run"
    done = run_hooked(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
                      SCRIPTS / "fails_once.py", ok=False, DISTPROF_OUT=str(out), DISTPROF_STEPS=PLAN[1])
    assert done.returncode == 1 and "Root Cause (first observed failure)" in done.stderr
    for command in ("stats", "comms"):
        assert f"rank 1 failed first: an exception ({FAILED})" in distprof(command, out).stdout


def test_a_script_that_dies_before_its_first_step_shows_its_own_error_alone(tmp_path):
    (tmp_path / "train.py").write_text("import torch\nmodel = torch.nn.Linear(2, 2)\nmodel(torch.ones(3, 3))\n")
    out = tmp_path / "run"
    done = distprof("run", "--out", out, tmp_path / "train.py")
    assert done.returncode == 1 and "mat1 and mat2 shapes cannot be multiplied" in done.stderr
    assert "rec.step()" not in done.stderr and "no step was recorded" not in done.stderr
    told = distprof("stats", out).stdout
    assert re.search(r"rank 0 failed first: exit code 1 \(RuntimeError in the script: mat1 .* \(train\.py:3\)\)", told)
