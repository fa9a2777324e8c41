"""The command line as a user types it, and the folders of this repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = ROOT / "tests" / "scripts"
Command = Callable[..., subprocess.CompletedProcess]


def clean_environ() -> dict[str, str]:
    """The environment without what a torchrun or an earlier run may have left."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items()
            if name not in names and not name.startswith(("DISTPROF_", "TORCHELASTIC_", "PET_"))}
    return kept | {"OMP_NUM_THREADS": "1"}


def distprof(*arguments: object, cwd: Path | None = None, timeout: float = 240, **environ: str):
    """Runs the command line and gives exit code, stdout and stderr."""
    return subprocess.run([sys.executable, "-m", "distprof", *map(str, arguments)], cwd=cwd, timeout=timeout,
                          capture_output=True, text=True, env=clean_environ() | environ, check=False)


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
