"""Each command of the table in docs/recording.md starts a job, on two ranks: one run, with steps and totals right."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from support import forked
from support.hooked import PLAN, PROGRAMS, right_run, run_hooked
from support.jobs import ROOT, SCRIPTS
from support.mpi import OPEN_MPI, launcher_of
from support.ports import free_port

pytestmark = pytest.mark.job


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How a command becomes one of a test."""

    script: str = "by_any_launcher.py"
    arguments: tuple[str, ...] = ("group",)
    """Of the script; PORT and FOLDER stand for what is known later."""
    flags: tuple[str, ...] = ()
    """Of the launcher, which has a port of its own for each job otherwise."""
    needs: str = "torch"
    macs: int = 4 * 4 * 4
    """Of a step, by hand."""


ACCELERATE = Case(script="accelerated.py", arguments=(), flags=("--main_process_port", "PORT"), needs="accelerate",
                  macs=2 * 4 * 4 * 4)
TASKS = Case(arguments=("tcp", "PORT"))
CASES = {
    "distprof run --nproc-per-node 2": Case(flags=("--out", "runs/a", "--steps", PLAN)),
    "torchrun --nproc-per-node 2": Case(flags=("--standalone",)),
    "srun -n 2 python": TASKS,
    "mpirun -n 2 python": TASKS,
    "mpiexec -n 2 python": TASKS,
    "accelerate launch --multi_gpu --num_processes 2": ACCELERATE,
    "accelerate launch --cpu --mpirun_hostfile hosts --num_processes 2": ACCELERATE,
    "deepspeed --num_gpus 2": Case(flags=("--master_port", "PORT"), needs="deepspeed"),
    "Lightning: python": Case(script="lightning_fit.py", arguments=("FOLDER",), needs="lightning",
                              macs=8 * 8 * (3 * 2 * 32 * 128 + 32)),
    "python": Case(arguments=("spawn", "PORT")),
}
FORKED = ("srun -n 2 python", "mpirun -n 2 python", "accelerate launch --multi_gpu --num_processes 2")
"""To our ranks, the other launchers are like one of these."""


def documented() -> list[str]:
    """Commands of the table, between DISTPROF_OUT and the script."""
    text = (ROOT / "docs" / "recording.md").read_text()
    table = text[text.index("| ranks are started by |"):].partition("\n\n")[0]
    found = re.findall(r"^\| ([^|]*)\| `(.*) train\.py` \|", table, re.MULTILINE)
    commands = [(by, command.removeprefix("DISTPROF_OUT=runs/a ")) for by, command in found]
    return [f"{by.strip()}: {command}" if by.startswith("Lightning") else command for by, command in commands]


def test_the_table_names_what_is_tested():
    assert documented() == [*CASES]


@pytest.mark.core
@pytest.mark.parametrize(("command", "real"), [
    *((command, False) for command in FORKED),
    *(pytest.param(command, True, marks=pytest.mark.stress) for command in CASES)])
def test_a_documented_command_is_one_run(python, tmp_path, monkeypatch, request, command, real):
    case = CASES[command]
    if find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed")
    if "--mpirun_hostfile" in command and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("localhost\nlocalhost\n")  # a slot each
    environ = _environ(command, request) | {"DISTPROF_OUT": "runs/a", "DISTPROF_STEPS": PLAN}
    programs = python.parent if real else _forked_programs(tmp_path / "bin")
    environ["PATH"] = os.pathsep.join((str(programs), environ.get("PATH", os.environ["PATH"])))
    done = run_hooked(*_words(command, case, programs), **environ)
    assert "recording stopped" not in done.stderr and "not recording" not in done.stderr, done.stderr
    right_run(Path("runs/a"), macs=case.macs)


def _environ(command: str, request: pytest.FixtureRequest) -> dict[str, str]:
    if command.startswith("srun"):
        return dict(request.getfixturevalue("cluster"))
    return {**OPEN_MPI, "DS_ACCELERATOR": "cpu"}


def _forked_programs(folder: Path) -> Path:
    folder.mkdir()
    forked.write_program(folder / "python")
    forked.write_program(folder / "accelerate", "-m", PROGRAMS["accelerate"])
    return folder


def _words(command: str, case: Case, programs: Path) -> list[str]:
    program, *words = shlex.split(command.removeprefix("Lightning: "))
    if program in ("mpirun", "mpiexec"):
        program = launcher_of("Open MPI" if program == "mpirun" else "HYDRA")
    elif program != "srun":
        program = str(programs / program)
    at = 1 if words[:1] in (["launch"], ["run"]) else 0
    known = {"PORT": str(free_port()), "FOLDER": "."}
    given = [*words[:at], *case.flags, *words[at:], str(SCRIPTS / case.script), *case.arguments]
    return [program, *(known.get(word, word) for word in given)]
