"""`DISTPROF_OUT=... python train.py` and launchers of frameworks, in ways that docs/recording.md has no row for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from support.hooked import PLAN, right_run, run_hooked
from support.jobs import SCRIPTS
from support.ports import free_port

pytestmark = [pytest.mark.job, pytest.mark.stress]
ACCELERATE = ("-m", "accelerate.commands.launch", "--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend",
              "no")
DEEPSPEED = ("-m", "deepspeed.launcher.runner", "--num_gpus", 2)
VALIDATED = PLAN.replace("wait=1", "wait=2")
"""The script validates in the counted step."""


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


@needs("accelerate")
@pytest.mark.parametrize("how", ["worker", "one", "fork"])
def test_scripts_of_accelerate(python, tmp_path, how):
    out, script = tmp_path / "run", SCRIPTS / "accelerated.py"
    flags = ("--num_processes", 2, "--main_process_port", str(free_port()))
    command = {
        "worker": (*ACCELERATE, "--multi_gpu", *flags, "--module", "distprof.launch.worker", script),
        "one": (*ACCELERATE, "--cpu", *flags, script),  # it starts one, whatever is asked for
        "fork": (script, "fork"),
    }[how]
    done = run_hooked(python, *command, DISTPROF_OUT=str(out), DISTPROF_STEPS=PLAN)
    assert "distprof: " not in done.stderr, done.stderr
    right_run(out, macs=2 * 4 * 4 * 4, ranks=1 if how == "one" else 2)


@needs("deepspeed")
def test_an_engine_under_the_deepspeed_launcher(python, tmp_path):
    run_hooked(python, *DEEPSPEED, "--master_port", str(free_port()), SCRIPTS / "deepspeed_engine.py", tmp_path, 2,
               DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=PLAN, DS_ACCELERATOR="cpu")
    right_run(tmp_path / "run", macs=8 * 2 * 16 * 64)


@needs("lightning")
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_fork"])
def test_ranks_that_lightning_starts(python, tmp_path, strategy):
    """ddp: the script runs once more for each other rank; the others are children of multiprocessing."""
    done = run_hooked(python, SCRIPTS / "lightning_fit.py", tmp_path, "--strategy", strategy,
                      DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=VALIDATED)
    assert "distprof: " not in done.stderr, done.stderr
    _check_lightning(tmp_path)


@needs("lightning")
def test_lightning_as_tasks_of_srun(python, tmp_path, cluster):
    run_hooked("srun", "--ntasks-per-node", 2, python, SCRIPTS / "lightning_fit.py", tmp_path,
               DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_STEPS=VALIDATED, **cluster)
    _check_lightning(tmp_path)


def _check_lightning(folder: Path) -> None:
    """Accumulation makes 2 forward calls a step; validation, with gradients, is in no total."""
    for rank in range(2):
        calls = json.loads((folder / f"calls{rank}.json").read_text())
        assert (calls["steps"], calls["train"], calls["callbacks"]) == (7, 14, ["DistprofCallback"])
    found = right_run(folder / "run", macs=8 * 8 * (3 * 2 * 32 * 128 + 32))
    assert found["evaluation"]["flops"] > 0

