"""Runs jobs of many kinds with and without distprof, and compares their results: `tests/unharmed/jobs`.

Comments below the first line of a job specify how it is run; defaults are in brackets:

    # command: -m package word     arguments of `python` [the file itself]
    # environ: NAME=value ...      environment variables
    # ends: 3                      exit code, -15 for a signal [0]
    # recorded: partial            status of the recording: complete, partial, failed, nothing or any [complete]
    # says: words                  text in a message of distprof [no message]
    # ranks: 2                     number of ranks of torchrun, and of `distprof run` [1, without a launcher]
    # real                         needs a new Python process instead of a forked one
    # telling                      is one of the jobs that are always run
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
"""Message of Kineto if torch.profiler first starts on a thread that did not import torch, with or without distprof."""


class Job(NamedTuple):
    """A script or a folder with one, and how it is run."""

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
        """Reads a job from its comments."""
        main = path if path.is_file() else path / "job.py"
        text = main.read_text()
        said = dict(re.findall(r"^# (command|environ|ends|recorded|says|ranks): (.+)$", text, re.MULTILINE))
        return cls(path, said.get("command", main.name).split(),
                   dict(word.split("=", 1) for word in said.get("environ", "").split()), int(said.get("ends", 0)),
                   said.get("recorded", "complete"), said.get("says", ""), int(said.get("ranks", 1)),
                   "\n# real\n" in text, "\n# telling\n" in text)


def jobs() -> list[Job]:
    """Returns all jobs."""
    return [Job.read(path) for path in sorted(JOBS.iterdir())
            if path != COMMON and (path.suffix == ".py" or (path / "job.py").exists())]


class Left(NamedTuple):
    """The results of a job: exit code, output, and files with their SHA-256."""

    code: int
    out: str
    err: str
    files: Mapping[str, str]


def left_by(job: Job, folder: Path, *words: object, real: bool, **environ: str) -> tuple[Left, str]:
    """Runs a job in a temporary folder; returns its results, and the messages of distprof."""
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
    """Returns the status of rank 0; `nothing` if there is none."""
    about = next(iter(sorted(run.glob("rank00000*/rank.json"))), None)
    return json.loads(about.read_text())["status"] if about is not None else "nothing"


def plainly(job: Job, folder: Path, python: Path | str = sys.executable, *, real: bool = False) -> Left:
    """Runs a job without distprof."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", job.ranks] if job.ranks > 1 else []
    return left_by(job, folder, python, *ranks, real=real)[0]


def as_rank(job: Job, folder: Path, run: Path) -> tuple[Left, str]:
    """Runs a job with the worker as distprof's launcher does, or with the launcher if it has several ranks."""
    if job.ranks > 1:
        return left_by(job, folder, sys.executable, "-m", "distprof", "run", "--no-merge", "--out", run, "--steps",
                       PLAN, "--nproc-per-node", job.ranks, real=False)
    return left_by(job, folder, sys.executable, WORKER, real=False, DISTPROF_OUT=str(run), DISTPROF_STEPS=PLAN)


def by_start_hook(job: Job, folder: Path, run: Path, python: Path | str, *, real: bool) -> tuple[Left, str]:
    """Runs a job in a Python with distprof installed, with DISTPROF_OUT set."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", job.ranks] if job.ranks > 1 else []
    return left_by(job, folder, python, *ranks, real=real, DISTPROF_OUT=str(run), DISTPROF_STEPS=PLAN)
