"""`DISTPROF_OUT=... srun python train.py`, mpirun: the launchers themselves, two tasks of one machine.

No MASTER_ADDR is given: the script knows a port, and its rank from the variables of the launcher.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.hooked import PLAN, free_port, run_hooked, whole_run
from support.jobs import SCRIPTS, distprof

pytestmark = pytest.mark.job
JOB = SCRIPTS / "by_any_launcher.py"
MPI = {
    "Open MPI": (("mpirun.openmpi", "mpirun"), ("--oversubscribe", "-n", 2)),
    "HYDRA": (("mpiexec.hydra", "mpiexec.mpich"), ("-n", 2)),  # of MPICH
}
"""What `--version` says -> names of the program, and its flags for two ranks."""
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm_rsh_agent": "/bin/true"}
"""It looks for ssh even where it starts ranks on its own machine alone."""


def program_of(said: str) -> str:
    """A launcher of MPI beside this Python or on PATH; skips where there is none."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    for name in MPI[said][0]:
        found = shutil.which(name, path=path)
        if found and said in subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout:
            return found
    pytest.skip(f"no {' or '.join(MPI[said][0])} that says {said}")


def check(out: Path) -> None:
    assert [one["local_rank"] for one in whole_run(out)] == [0, 1]
    summary = json.loads(distprof("stats", "--json", out).stdout)
    assert summary["problems"] == [] and summary["topology"] == {"dp": 2}
    assert summary["per_gpu"]["fwd_macs"]["mean"] == 4 * 4 * 4


@pytest.mark.parametrize("said", ["Open MPI", pytest.param("HYDRA", marks=pytest.mark.stress)])
def test_ranks_of_mpirun_are_one_run(python, tmp_path, said):
    done = run_hooked(program_of(said), *MPI[said][1], python, JOB, "tcp", free_port(),
                      DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=PLAN, **OPEN_MPI)
    assert "distprof: " not in done.stderr, done.stderr
    check(tmp_path / "run")


def test_tasks_of_srun_are_one_run(python, tmp_path, cluster):
    done = run_hooked("srun", "-n", 2, python, JOB, "tcp", free_port(), DISTPROF_OUT=str(tmp_path / "run"),
                      DISTPROF_STEPS=PLAN, **cluster)
    assert "distprof: " not in done.stderr, done.stderr
    check(tmp_path / "run")


@pytest.mark.stress
def test_torchrun_as_the_task_of_srun(python, tmp_path, cluster):
    """One task a node, which starts the ranks of the node; its own rank is not theirs."""
    run_hooked("srun", "-n", 1, python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, JOB,
               "group", DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=PLAN, **cluster)
    check(tmp_path / "run")


@pytest.mark.stress
def test_our_launcher_as_the_task_of_srun(python, tmp_path, cluster):
    run_hooked("srun", "-n", 1, python, "-m", "distprof", "run", "--out", tmp_path / "run", "--steps", PLAN,
               "--nproc-per-node", 2, JOB, "group", **cluster)
    check(tmp_path / "run")


@pytest.mark.stress
@pytest.mark.parametrize(("how", "ranks"), [("alone", 1), ("spawn", 2)])
def test_the_script_of_a_batch_job_is_no_task(python, tmp_path, cluster, how, ranks):
    """It has the variables of task 0 of 2: SLURM_PROCID and SLURM_NTASKS."""
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{python} {JOB} {how} {free_port()}\n")
    run_hooked("sbatch", "--wait", "-n", 2, "-o", tmp_path / "said", tmp_path / "job.sh",
               DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=PLAN, **cluster)
    assert [one["local_rank"] for one in whole_run(tmp_path / "run", ranks)] == [*range(ranks)], (
        tmp_path / "said").read_text()
