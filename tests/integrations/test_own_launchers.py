"""`DISTPROF_OUT=... accelerate launch train.py`, deepspeed, Lightning's own launchers: one run, with right totals."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest

from support.hooked import PLAN, free_port, run_hooked, whole_run
from support.jobs import SCRIPTS, distprof

pytestmark = pytest.mark.job
ACCELERATE = ("-m", "accelerate.commands.launch", "--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend",
              "no")
DEEPSPEED = ("-m", "deepspeed.launcher.runner", "--num_gpus", 2)
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm_rsh_agent": "/bin/true"}
VALIDATED = PLAN.replace("wait=1", "wait=2")
"""The script validates in the counted step."""
stress = pytest.mark.stress


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def check(out: Path, *, macs: int, ranks: int = 2) -> dict:
    """One run of all ranks, with the MACs of a step by hand."""
    assert [one["local_rank"] for one in whole_run(out, ranks)] == [*range(ranks)]
    found = json.loads(distprof("stats", "--json", out).stdout)
    assert found["problems"] == [] and found["topology_certain"] and found["topology"] == {"dp": ranks}
    assert {found["per_gpu"]["fwd_macs"][which] for which in ("min", "max")} == {macs}
    assert found["step"]["found"]["rule"] == "optimizer"
    return found


@needs("accelerate")
@pytest.mark.parametrize("how", ["torchrun", *(pytest.param(how, marks=stress) for how in (
    "mpirun", "worker", "one", "fork"))])
def test_scripts_of_accelerate_launch(python, tmp_path, how):
    out, script = tmp_path / "run", SCRIPTS / "accelerated.py"
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nlocalhost\n")  # a slot each
    if how == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    flags = ("--num_processes", 2, "--main_process_port", free_port())
    command = {
        "torchrun": (*ACCELERATE, "--multi_gpu", *flags, script),  # without a GPU it takes gloo
        "mpirun": (*ACCELERATE, "--cpu", "--mpirun_hostfile", hosts, *flags, script),
        "worker": (*ACCELERATE, "--multi_gpu", *flags, "--module", "distprof.launch.worker", script),
        "one": (*ACCELERATE, "--cpu", *flags, script),  # it starts one, whatever is asked for
        "fork": (script, "fork"),
    }[how]
    done = run_hooked(python, *command, DISTPROF_OUT=str(out), DISTPROF_STEPS=PLAN, **OPEN_MPI)
    assert "distprof: " not in done.stderr, done.stderr
    check(out, macs=2 * 4 * 4 * 4, ranks=1 if how == "one" else 2)


@needs("deepspeed")
def test_ranks_of_the_deepspeed_launcher(python, tmp_path):
    done = run_hooked(python, *DEEPSPEED, "--master_port", free_port(), SCRIPTS / "by_any_launcher.py", "group",
                      DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=PLAN, DS_ACCELERATOR="cpu")
    assert "distprof: " not in done.stderr, done.stderr
    check(tmp_path / "run", macs=4 * 4 * 4)


@stress
@needs("deepspeed")
def test_an_engine_under_the_deepspeed_launcher(python, tmp_path):
    run_hooked(python, *DEEPSPEED, "--master_port", free_port(), SCRIPTS / "deepspeed_engine.py", tmp_path, 2,
               DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=PLAN, DS_ACCELERATOR="cpu")
    check(tmp_path / "run", macs=8 * 2 * 16 * 64)


@needs("lightning")
@pytest.mark.parametrize("strategy", ["ddp", *(pytest.param(name, marks=stress) for name in ("ddp_spawn", "ddp_fork"))])
def test_ranks_that_lightning_starts(python, tmp_path, entry_points, strategy):
    """ddp: the script runs once more for each other rank; the others are children of multiprocessing."""
    done = run_hooked(python, SCRIPTS / "lightning_fit.py", tmp_path, "--strategy", strategy,
                      DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=VALIDATED, PYTHONPATH=_path(entry_points))
    assert "distprof: " not in done.stderr, done.stderr
    _check_lightning(tmp_path)


@stress
@needs("lightning")
def test_lightning_as_tasks_of_srun(python, tmp_path, entry_points, cluster):
    run_hooked("srun", "--ntasks-per-node", 2, python, SCRIPTS / "lightning_fit.py", tmp_path,
               DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=VALIDATED, PYTHONPATH=_path(entry_points), **cluster)
    _check_lightning(tmp_path)


def _check_lightning(folder: Path) -> None:
    """Accumulation makes 2 forward calls a step; validation, with gradients, is in no total."""
    for rank in range(2):
        calls = json.loads((folder / f"calls{rank}.json").read_text())
        assert (calls["steps"], calls["train"], calls["callbacks"]) == (7, 14, ["DistprofCallback"])
    found = check(folder / "run", macs=8 * 8 * (3 * 2 * 32 * 128 + 32))
    assert found["evaluation"]["flops"] > 0


def _path(entry_points: Path) -> str:
    return os.pathsep.join(filter(None, (str(entry_points), os.environ.get("PYTHONPATH", ""))))
