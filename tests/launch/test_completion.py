"""What shells offer on Tab: commands, flags, run directories; asked as their scripts ask, and by bash itself."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distprof.contract import rank_json
from distprof.launch.job_arguments import job_parser
from distprof.launch.options import USUAL_OF_TORCHRUN
from distprof.recording.run_directory import this_launch
from support.jobs import PATIENCE_S, ROOT, clean_environ

pytestmark = pytest.mark.job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two runs, a folder, a script, and `distprof` as a program."""
    folder = tmp_path_factory.mktemp("work")
    for name in ("runs/train-1", "runs/train-2", "other"):
        (folder / name).mkdir(parents=True)
    for name in ("runs/train-1", "runs/train-2"):
        rank_json.write(folder / name / "run.json", this_launch(run_id="a", plan="", world_size=1, sizes={}))
    (folder / "train.py").touch()
    (folder / "bin").mkdir()
    program = folder / "bin" / "distprof"
    program.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m distprof \"$@\"\n")
    program.chmod(0o755)
    return folder


def shell(folder: Path, *command: str, **environ: str) -> str:
    paths = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{':'.join(filter(None, sys.path))}"}
    done = subprocess.run(command, cwd=folder, env=clean_environ() | paths | environ, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


def offered(folder: Path, line: str, how: str) -> list[str]:
    """What the script of a shell gets for a line that ends where the cursor is."""
    words = line.split(" ")
    number = "" if how == "fish" and not words[-1] else words[-1] if how == "fish" else str(len(words) - 1)
    found = shell(folder, "distprof", COMP_WORDS=line, COMP_CWORD=number, _DISTPROF_COMPLETE=f"{how}_complete")
    if how == "zsh":  # type, value and help in a line each
        lines = found.splitlines()
        return [f"{kind},{value}" for kind, value in zip(lines[::3], lines[1::3], strict=True)]
    return [one.partition("\t")[0] for one in found.splitlines()]


@pytest.mark.parametrize("how", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_and_what_it_asks_for(folder, how):
    script = shell(folder, "distprof", _DISTPROF_COMPLETE=f"{how}_source")
    assert f"_DISTPROF_COMPLETE={how}_complete" in script
    assert offered(folder, "distprof cr", how) == ["plain,critical-path"]
    assert offered(folder, "distprof stats --mod", how) == ["plain,--modules"]


@pytest.mark.parametrize(("line", "found"), [
    ("distprof run --no-m", ["plain,--no-merge"]),
    ("distprof run --nproc", ["plain,--nproc-per-node"]),
    ("distprof run tr", ["file,tr"]),
    ("distprof comms r", ["plain,runs/train-1", "plain,runs/train-2"]),
    ("distprof merge --force runs/train-1 runs/train-2", ["plain,runs/train-2"]),
    ("distprof view --step 7 r", ["plain,runs/train-1", "plain,runs/train-2"]),
    ("distprof diff runs/train-1 runs/train-2", ["plain,runs/train-2"]),
    ("distprof diff --base runs/train-1 --new runs/train-2", ["plain,runs/train-2"]),
    ("distprof stats oth", ["file,oth"]),
    ("distprof nonsense r", ["plain,run", "plain,report", "plain,reconcile"]),
])
def test_commands_flags_and_runs(folder, line, found):
    assert offered(folder, line, "bash") == found


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_itself_completes(folder):
    """As the line in `distprof --help` sets it up."""
    ask = ('eval "$(_DISTPROF_COMPLETE=bash_source distprof)"\nCOMP_WORDS=(distprof comms r)\nCOMP_CWORD=2\n'
           'function=$(complete -p distprof | sed "s/.*-F \\([^ ]*\\).*/\\1/")\n$function distprof r comms\n'
           'printf "%s\\n" "${COMPREPLY[@]}"')
    assert shell(folder, "bash", "-c", ask).split() == ["runs/train-1", "runs/train-2"]


def test_the_flags_of_torchrun_are_those_that_it_has():
    known = {flag for action in job_parser()._actions for flag in action.option_strings}
    assert set(USUAL_OF_TORCHRUN) <= known
