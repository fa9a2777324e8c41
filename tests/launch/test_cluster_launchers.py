"""What Slurm starts besides the ranks themselves: launchers, and the script of a batch job."""

from __future__ import annotations

import time

import pytest

from support.hooked import PLAN, right_run, run_hooked, whole_run
from support.jobs import PATIENCE_S, SCRIPTS
from support.ports import free_port

pytestmark = [pytest.mark.job, pytest.mark.stress]
JOB = SCRIPTS / "by_any_launcher.py"
MACS = 4 * 4 * 4
"""Of a step on a rank."""


def test_torchrun_as_the_task_of_srun(python, tmp_path, cluster):
    """One task a node, which starts the ranks of the node; its own rank is not theirs."""
    run_hooked("srun", "-n", 1, python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, JOB,
               "group", DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=PLAN, **cluster)
    right_run(tmp_path / "run", macs=MACS)


def test_our_launcher_as_the_task_of_srun(python, tmp_path, cluster):
    run_hooked("srun", "-n", 1, python, "-m", "distprof", "run", "--no-merge", "--out", tmp_path / "run", "--steps",
               PLAN, "--nproc-per-node", 2, JOB, "group", **cluster)
    right_run(tmp_path / "run", macs=MACS)


@pytest.mark.parametrize(("how", "ranks"), [("alone", 1), ("spawn", 2)])
def test_the_script_of_a_batch_job_is_no_task(python, tmp_path, cluster, how, ranks):
    """It has the variables of task 0 of 2: SLURM_PROCID and SLURM_NTASKS."""
    ended = tmp_path / "ended"
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{python} {JOB} {how} {free_port()}\ntouch {ended}\n")
    run_hooked("sbatch", "-n", 2, "-o", tmp_path / "said", tmp_path / "job.sh",
               DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=PLAN, **cluster)
    until = time.monotonic() + PATIENCE_S
    while not ended.exists() and time.monotonic() < until:  # sbatch --wait looks seldom
        time.sleep(0.1)
    assert [one["local_rank"] for one in whole_run(tmp_path / "run", ranks)] == [*range(ranks)], (
        tmp_path / "said").read_text()
