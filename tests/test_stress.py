"""Jobs that die at any moment: whatever was recorded can be read. `make stress`, some minutes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, distprof


def workers(launcher: int) -> list[int]:
    """Processes that a launcher started, ranks in order."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children
            if b"launch/worker.py" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(24))
def test_a_rank_that_dies_at_any_moment_leaves_a_run_that_can_be_read(tmp_path, seed):
    chance = random.Random(seed)
    out = tmp_path / "run"
    job = forked.popen(
        [sys.executable, "-m", "distprof", "run", "--no-merge", "--out", out, "--nproc-per-node", "2", "--steps",
         "wait=5,count=5,time=20,trace=20", SCRIPTS / "job.py", "fine", "400"],
        env=clean_environ(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(out.glob("rank*")) and job.poll() is None:
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 1.5))
    ranks = workers(job.pid)
    if ranks:
        os.kill(chance.choice(ranks), chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    _, told = job.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in told or "KeyboardInterrupt" in told or "RuntimeError" in told, told
    for command in ("merge", "stats", "comms"):
        done = distprof(command, out)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == done.returncode, done.stderr
        assert done.returncode == 0 or "no readable rank folders" in done.stderr, done.stderr
