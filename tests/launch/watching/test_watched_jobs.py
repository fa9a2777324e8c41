"""Real jobs: what their ranks write is noticed while they run, told, and summed up at their end."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request

import pytest

from distprof.contract.watch_state import read_state
from support import forked
from support.jobs import clean_environ, record_run, wait_for
from support.ports import free_port

pytestmark = pytest.mark.job
SCRIPT = """
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**6):
    over = torch.tensor([float(Path(sys.argv[1]).exists() or step >= 4000)])
    dist.all_reduce(over)
    if over:
        break
    time.sleep(0.06 if dist.get_rank() == 1 and step >= 200 else 0.02)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
"""Trains until a file is there; rank 1 is late from step 200 on."""


def metrics(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read()


@pytest.mark.core
def test_a_rank_that_becomes_slow_is_told_while_the_job_runs_and_named_at_its_end(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    run, port = tmp_path / "run", free_port()
    with forked.popen(
            [sys.executable, "-m", "distprof", "run", "--out", str(run), "--nproc-per-node", "2", "--passes", "off",
             "--no-merge", "--metrics", f"127.0.0.1:{port}", "--on-finding",
             f"cat > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/found", str(tmp_path / "train.py"),
             str(tmp_path / "found")], env=clean_environ(), stderr=-1, text=True) as job:
        wait_for(job, run / "watch" / "state.json")
        while b'distprof_steps_total{rank="1"}' not in metrics(port):
            assert job.poll() is None
            time.sleep(0.05)
        _, said = job.communicate()
    assert job.returncode == 0, said
    told = json.loads((tmp_path / "found").read_text())
    assert told["event"] == "new" and told["finding"]["ranks"] == [1]
    assert abs(told["finding"]["onset_step"] - 200) <= 10
    assert len(re.findall(r"^distprof: rank 1 slow from step ", said, re.MULTILINE)) == 1
    assert re.search(r"^distprof: [\d,]+ steps watched in .* per step(; |\n +)rank 1 slow from step [\d,]+ on: ", said,
                     re.MULTILINE)
    state = read_state(run)
    assert state is not None and not state.running and [1] in [one.ranks for one in state.findings]


def test_a_job_that_is_not_watched_has_no_watcher(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "over").touch()
    record_run(tmp_path / "run", 1, tmp_path / "train.py", tmp_path / "over", flags=("--watch", "off"))
    assert not (tmp_path / "run" / "watch").exists()
