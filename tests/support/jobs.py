"""The command line as a user types it, and the folders of this repository."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = ROOT / "tests" / "scripts"
PATIENCE_S = 600
"""How long anything may take before it counts as hanging: far longer than on a busy machine."""
LOOKS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "LANGUAGE")
"""Of a terminal and its user."""
LEFT = ("LC_", "DISTPROF_", "TORCHELASTIC_", "PET_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "ACCELERATE_")
"""Of a locale, torchrun, srun, mpirun and accelerate."""
Command = Callable[..., subprocess.CompletedProcess]


def clean_environ() -> dict[str, str]:
    """The environment without what a launcher, an earlier run, a test worker (a terminal's size) or a user left."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", *LOOKS)
    kept = {name: value for name, value in os.environ.items()
            if name not in names and not name.startswith(LEFT)}
    return kept | {"OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}


def distprof(*arguments: object, cwd: Path | None = None, **environ: str):
    """Runs the command line and gives exit code, stdout and stderr.

    What only reads a run is called in this process: to start Python and import what it needs takes longer than it does.
    What `run` records is not merged at its end, which takes time: `run_and_merge` does that.
    """
    words = [str(argument) for argument in arguments]
    if words[0] == "run":
        words.insert(1, "--no-merge")
    if words[0] in ("merge", "report", "stats", "comms", "critical-path", "whatif") and cwd is None and not environ:
        return called(*words)
    return subprocess.run([sys.executable, "-m", "distprof", *words], cwd=cwd, timeout=PATIENCE_S,
                          capture_output=True, text=True, env=clean_environ() | environ, check=False)


def run_and_merge(*arguments: object, **environ: str):
    """`distprof run` with all that it does."""
    return subprocess.run([sys.executable, "-m", "distprof", "run", *map(str, arguments)], timeout=PATIENCE_S,
                          capture_output=True, text=True, env=clean_environ() | environ, check=False)


def called(*arguments: object) -> subprocess.CompletedProcess:
    """The command line in this process; of `run` only what starts no rank."""
    from distprof.launch.cli import main

    words = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(words)
    return subprocess.CompletedProcess(words, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def torchrun(nproc: int, *arguments: object, **environ: str):
    """A job without us, unless its script records itself, that must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc),
         *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environ() | environ,
        check=False)
    assert done.returncode == 0, done.stderr
    return done


def record_run(out: Path, nproc: int, script: Path, *arguments: object, flags: tuple[object, ...] = (), **environ: str):
    """`distprof run` of a script that must succeed."""
    done = distprof("run", "--out", out, "--nproc-per-node", nproc, *flags, script, *arguments, **environ)
    assert done.returncode == 0, done.stderr
    return done


def merged(out: Path) -> Path:
    """Merges a run that must succeed."""
    done = distprof("merge", out)
    assert done.returncode == 0, done.stderr
    return out


def wait_for(job: subprocess.Popen, *files: Path) -> None:
    """Until a running job has written all of them."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(file.exists() for file in files):
        assert job.poll() is None, f"the job ended, and there is no {', '.join(map(str, files))}"
        assert time.monotonic() < deadline, files
        time.sleep(0.05)
