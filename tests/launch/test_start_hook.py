"""`DISTPROF_OUT=... python train.py`: scripts and launchers that know nothing of us.

`python` starts, and finds the hook that pip installs; `sys.executable` is forked, and what follows is tested with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support import forked
from support.hooked import PLAN, run_hooked, whole_run
from support.jobs import PATIENCE_S, ROOT, SCRIPTS, clean_environ, distprof
from support.ports import free_port

pytestmark = pytest.mark.job
JOB = SCRIPTS / "by_any_launcher.py"


@pytest.mark.parametrize(("how", "real"), [("fork", False), *(
    pytest.param(how, True, marks=pytest.mark.stress) for how in ("spawn", "fork", "process", "popen"))])
def test_ranks_that_a_script_starts_itself_are_recorded(python, tmp_path, how, real):
    out = tmp_path / "run"
    done = run_hooked(python if real else sys.executable, JOB, how, str(free_port()), DISTPROF_OUT=str(out),
                      DISTPROF_STEPS=PLAN)
    ranks = whole_run(out)
    assert [one["local_rank"] for one in ranks] == [0, 1], "by host: nobody gave LOCAL_RANK"
    assert "distprof: " not in done.stderr, done.stderr
    summary = json.loads(distprof("stats", "--json", out).stdout)
    assert summary["problems"] == [] and summary["per_gpu"]["fwd_macs"]["mean"] == 4 * 4 * 4


def test_one_process_is_recorded_and_its_helpers_are_not(tmp_path):
    """It makes samples in a worker of a data loader, with a model of its own; its folder is given relative to it."""
    run_hooked(sys.executable, "-c", f"import os, runpy, sys; os.chdir('/'); sys.argv = ['x', 'alone']; "
               f"runpy.run_path({str(JOB)!r}, run_name='__main__')", DISTPROF_OUT=os.path.relpath(tmp_path / "run"),
               DISTPROF_STEPS=PLAN)
    (rank,) = whole_run(tmp_path / "run", 1)
    assert rank["passes"] == {"wait": 1, "count": 1, "time": 1, "trace": 1, "arrivals": 0}


@pytest.mark.parametrize("script", [(JOB, "nothing"), ("-c", "import torch; torch.ones(2)"), ("-c", "pass")])
def test_what_does_not_train_leaves_and_says_nothing(python, tmp_path, script):
    program = sys.executable if JOB in script else python
    done = run_hooked(program, *script, DISTPROF_OUT=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists() and done.stderr == ""


def test_a_process_that_trains_and_has_no_step_says_why_nothing_is_there(tmp_path):
    out = tmp_path / "run"
    done = run_hooked(sys.executable, SCRIPTS / "odd_loops.py", "curriculum", DISTPROF_OUT=str(out))
    assert not out.exists() and done.stderr == (
        "distprof: rank 0: nothing was written: expected optimizer.step() to end each step, 30 steps of several "
        "optimizers (SGD) do not show what an iteration is  hint: set DISTPROF_STEP_EVERY to the optimizer class or "
        "the number of optimizer steps that make a step\n")
    run_hooked(sys.executable, SCRIPTS / "odd_loops.py", "curriculum", DISTPROF_OUT=str(out), DISTPROF_STEP_EVERY="2")
    whole_run(out, 1)


def test_torch_is_not_imported_for_the_hook_and_nothing_is_loaded_without_the_variable(python, tmp_path):
    names = "import sys; print(sorted(name for name in sys.modules if name.startswith(('distprof', 'torch'))))"
    assert run_hooked(python, "-c", names).stdout.strip() == "[]"
    assert run_hooked(python, "-c", names, DISTPROF_OUT=str(tmp_path / "x")).stdout.strip() == "['distprof_start']"


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.stress)])
def test_torchrun_of_the_user_is_recorded_with_the_error_of_the_script(python, tmp_path, real):
    out = tmp_path / "run"
    job = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, JOB, "group")
    environ = {"DISTPROF_OUT": str(out), "DISTPROF_STEPS": PLAN}
    run_hooked(python if real else sys.executable, *job, **environ)
    whole_run(out)
    again = run_hooked(sys.executable, *job, **environ)
    assert f"recording stopped, training continues: {out} is not empty" in again.stderr
    assert "DISTPROF_FORCE=1" in again.stderr
    first = whole_run(out)[0]["run_id"]
    run_hooked(sys.executable, *job, **environ, DISTPROF_FORCE="1")
    assert whole_run(out)[0]["run_id"] != first


VARIABLES = {
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpich": ("PMI_RANK", "PMI_SIZE", None),
}


@pytest.mark.stress
@pytest.mark.parametrize("launcher", VARIABLES)
def test_tasks_with_the_variables_of_a_cluster_launcher_are_one_run(python, tmp_path, launcher):
    """As test_launchers.py with the launchers themselves, which may be missing: without MASTER_ADDR."""
    out, port, names = tmp_path / "run", str(free_port()), VARIABLES[launcher]
    jobs = []
    for rank in range(2):
        given = {name: str(value) for name, value in zip(names, (rank, 2, rank), strict=True) if name is not None}
        jobs.append(subprocess.Popen(
            [python, JOB, "tcp", port], stderr=subprocess.PIPE, text=True,
            env=clean_environ() | given | {"DISTPROF_OUT": str(out), "DISTPROF_STEPS": PLAN}))
    told = [job.communicate(timeout=PATIENCE_S)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], told
    assert [one["local_rank"] for one in whole_run(out)] == [0, 1]


@pytest.mark.parametrize(("how", "ranks"), [
    ("fork", 2), *(pytest.param(*case, marks=pytest.mark.stress) for case in (("spawn-one", 1), ("spawn", 2)))])
def test_ranks_that_a_script_starts_under_our_launcher_are_recorded(tmp_path, how, ranks):
    out = tmp_path / "run"
    done = run_hooked(sys.executable, "-m", "distprof", "run", "--no-merge", "--out", out, "--steps", PLAN, JOB,
                      how, str(free_port()))
    whole_run(out, ranks)
    assert f"{ranks} of {ranks} rank{'s' * (ranks > 1)} recorded" in done.stderr, done.stderr


@pytest.mark.parametrize("given", [False, pytest.param(True, marks=pytest.mark.stress)])
def test_our_worker_under_torchrun_of_the_user_needs_no_variable(tmp_path, given):
    out = tmp_path / "run"
    environ = clean_environ() | ({"DISTPROF_OUT": str(out), "DISTPROF_STEPS": PLAN} if given else {})
    done = forked.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "distprof.launch.worker", JOB, "group"], capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path,
        env=environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))},
        check=False)
    assert done.returncode == 0, done.stderr
    found = out if given else next((tmp_path / "runs").iterdir())
    assert given or (found.name.startswith("by_any_launcher-") and f"recording to {found}" in done.stderr)
    ids = {json.loads(path.read_text())["run_id"] for path in found.glob("rank*/rank.json")}
    assert len(ids) == 1 and len(list(found.glob("rank*/rank.json"))) == 2
    if given:
        whole_run(found)


def test_an_exception_is_noted_and_shown_as_without_us(tmp_path):
    code = ("import torch\nmodel = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "for step in range(9):\n    model(torch.ones(1, 2)).sum().backward()\n    optimizer.step()\n"
            "    if step == 2:\n        raise ValueError('bad sample')\n")
    (tmp_path / "train.py").write_text(code)
    plain = run_hooked(sys.executable, tmp_path / "train.py", ok=False)
    ours = run_hooked(sys.executable, tmp_path / "train.py", ok=False, DISTPROF_OUT=str(tmp_path / "run"))
    assert plain.returncode == ours.returncode == 1
    assert ours.stderr == plain.stderr
    why = json.loads((tmp_path / "run" / "rank00000" / "rank.json").read_text())["why"]
    assert why.startswith("ValueError in the script: bad sample (train.py:8) after 3 of")


def test_a_hook_that_fails_breaks_no_script(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for out, steps in ((file / "run", PLAN), (tmp_path / "run", "nonsense=1")):
        done = run_hooked(sys.executable, JOB, "alone", DISTPROF_OUT=str(out), DISTPROF_STEPS=steps)
        assert done.stderr.count("distprof: ") == 1 and "Traceback" not in done.stderr, done.stderr
