"""Runs the command line as a user does; folders of this repository."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from support import forked
from support.processes import clean_environ as clean_environ

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = ROOT / "tests" / "scripts"
PATIENCE_S = 600
"""Timeout in seconds after which anything counts as hanging: far longer than needed on a busy machine."""
READING = ("merge", "report", "stats", "comms", "critical-path", "whatif", "ops", "memory", "waits", "diff", "export")
"""Commands that only read a run."""
Command = Callable[..., subprocess.CompletedProcess]


def distprof(*arguments: object, cwd: Path | None = None, real: bool = False, **environ: str):
    """Runs the command line; returns exit code, stdout and stderr.

    Commands that only read a run are called in this process. The launcher of `run` and its ranks are forked from a
    process that has imported torch, unless `real` requests new Python processes. To save time, a recording is not
    merged at the end; `run_and_merge` does that.
    """
    words = [str(argument) for argument in arguments]
    if words[0] == "run":
        words.insert(1, "--no-merge")
    elif words[0] in READING and cwd is None and not environ:
        return called(*words)
    return started("-m", "distprof", *words, cwd=cwd, real=real, **environ)


def run_and_merge(*arguments: object, **environ: str):
    """Runs `distprof run` with the merge at its end."""
    return started("-m", "distprof", "run", *arguments, **environ)


def started(*words: object, cwd: Path | None = None, real: bool = False, **environ: str):
    """Runs Python with these arguments; returns exit code, stdout and stderr."""
    run = subprocess.run if real else forked.run
    return run([sys.executable, *map(str, words)], cwd=cwd, timeout=PATIENCE_S, env=clean_environ() | environ,
               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def called(*arguments: object) -> subprocess.CompletedProcess:
    """Calls the command line in this process; for `run`, only uses that start no ranks."""
    from distprof.launch.cli import main

    words = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(words)
    return subprocess.CompletedProcess(words, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def torchrun(nproc: int, *arguments: object, **environ: str):
    """Runs a job with torchrun, which must succeed; not recorded unless its script does so itself."""
    done = started("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", nproc, *arguments, **environ)
    assert done.returncode == 0, done.stderr
    return done


def record_run(out: Path, nproc: int, script: Path, *arguments: object, flags: tuple[object, ...] = (), **environ: str):
    """Runs a script with `distprof run`, which must succeed."""
    done = distprof("run", "--out", out, "--nproc-per-node", nproc, *flags, script, *arguments, **environ)
    assert done.returncode == 0, done.stderr
    return done


def merged(out: Path) -> Path:
    """Merges a run, which must succeed."""
    done = distprof("merge", out)
    assert done.returncode == 0, done.stderr
    return out


def wait_for(job: subprocess.Popen, *files: Path) -> None:
    """Waits until a running job has written all files."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(file.exists() for file in files):
        assert job.poll() is None, f"the job ended, and there is no {', '.join(map(str, files))}"
        assert time.monotonic() < deadline, files
        time.sleep(0.05)
