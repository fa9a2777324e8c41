"""Jobs of many kinds, run with and without distprof, and what each leaves: `tests/unharmed/jobs`.

A job says in comments below its first line how it is run, each with a default:

    # command: -m package word     what follows `python`; the file itself
    # environ: NAME=value ...      variables
    # ends: 3                      its exit code, -15 for a signal; 0
    # recorded: partial            what becomes of the recording: complete, partial, failed, nothing or any; complete
    # says: words                  what a line of distprof has; it says nothing
    # ranks: 2                     as ranks of torchrun, and of `distprof run`
    # real                         in a Python that starts: one that is forked makes a difference
    # telling                      one of those that are run every time
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from distprof import launch
from support import forked
from support.jobs import PATIENCE_S
from support.processes import clean_environ

JOBS = Path(__file__).parents[1] / "unharmed" / "jobs"
COMMON = JOBS / "small.py"
WORKER = Path(launch.__file__).with_name("worker.py")
PLAN = "wait=1,count=1,time=1,trace=1,sync=1,arrivals=1"
OURS = "distprof: "
BY_KINETO = "ERROR: External init callback must run in same thread as registerClient"
"""What Kineto writes where torch.profiler first begins on a thread that did not import torch, ours or a script's."""


class Job(NamedTuple):
    """A script, or a folder with one, and how it is run."""

    path: Path
    command: list[str]
    environ: dict[str, str]
    ends: int
    recorded: str
    says: str
    ranks: int
    real: bool
    telling: bool

    @property
    def name(self) -> str:
        return self.path.stem

    @classmethod
    def read(cls, path: Path) -> Job:
        """As its comments say."""
        main = path if path.is_file() else path / "job.py"
        text = main.read_text()
        said = dict(re.findall(r"^# (command|environ|ends|recorded|says|ranks): (.+)$", text, re.MULTILINE))
        return cls(path, said.get("command", main.name).split(),
                   dict(word.split("=", 1) for word in said.get("environ", "").split()), int(said.get("ends", 0)),
                   said.get("recorded", "complete"), said.get("says", ""), int(said.get("ranks", 1)),
                   "\n# real\n" in text, "\n# telling\n" in text)


def jobs() -> list[Job]:
    """All of them."""
    return [Job.read(path) for path in sorted(JOBS.iterdir())
            if path != COMMON and (path.suffix == ".py" or (path / "job.py").exists())]


class Left(NamedTuple):
    """What is left of a job: what it said, how it ended, and its files."""

    code: int
    out: str
    err: str
    files: Mapping[str, str]


def left_by(job: Job, folder: Path, *words: object, real: bool, **environ: str) -> tuple[Left, str]:
    """Runs it in a folder that is then another one's, and gives what it left, and the lines of distprof."""
    if job.path.is_file():
        folder.mkdir()
        shutil.copy(job.path, folder)
    else:
        shutil.copytree(job.path, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(COMMON, folder)
    run = subprocess.run if real or job.real else forked.run
    with (folder / job.command[-1]).open() if job.command[0] == "-" else Path("/dev/null").open() as given:
        command = [*map(str, words), *(job.command if job.command[0] != "-" else ["-"])]
        done = run(command, cwd=folder, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                   errors="replace", timeout=PATIENCE_S, check=False,
                   env=clean_environ() | {"PYTHONDONTWRITEBYTECODE": "1"} | job.environ | environ)
    files = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
             for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"}
    shutil.rmtree(folder)
    ours = [line for line in done.stderr.splitlines() if line.startswith(OURS)]
    theirs = [re.sub("0x[0-9a-f]+", "0x", line) for line in done.stderr.splitlines()
              if not line.startswith((OURS, BY_KINETO))]
    out = "\n".join(sorted(done.stdout.splitlines())) if job.ranks > 1 else done.stdout
    return Left(done.returncode, out, "" if job.ranks > 1 else "\n".join(theirs), files), "\n".join(ours)


def status_of(run: Path) -> str:
    """Of rank 0."""
    about = next(iter(sorted(run.glob("rank00000*/rank.json"))), None)
    return json.loads(about.read_text())["status"] if about is not None else "nothing"


def plainly(job: Job, folder: Path, python: Path | str = sys.executable, *, real: bool = False) -> Left:
    """Without distprof."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", job.ranks] if job.ranks > 1 else []
    return left_by(job, folder, python, *ranks, real=real)[0]


def as_rank(job: Job, folder: Path, run: Path) -> tuple[Left, str]:
    """As our launcher starts it, or by the launcher where it is about several ranks."""
    if job.ranks > 1:
        return left_by(job, folder, sys.executable, "-m", "distprof", "run", "--no-merge", "--out", run, "--steps",
                       PLAN, "--nproc-per-node", job.ranks, real=False)
    return left_by(job, folder, sys.executable, WORKER, real=False, DISTPROF_OUT=str(run), DISTPROF_STEPS=PLAN)


def by_start_hook(job: Job, folder: Path, run: Path, python: Path | str, *, real: bool) -> tuple[Left, str]:
    """As somebody starts it who has distprof installed and sets a variable."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", job.ranks] if job.ranks > 1 else []
    return left_by(job, folder, python, *ranks, real=real, DISTPROF_OUT=str(run), DISTPROF_STEPS=PLAN)
