"""Runs `distprof demo` as a user without a clone would; recorded once for all tests of its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support import forked
from support.jobs import PATIENCE_S
from support.processes import clean_environ

DEMO = (sys.executable, "-m", "distprof", "demo")
OUT = "runs/demo"
OTHERS = {"RANK": "1", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "1",
          "PET_NNODES": "2", "PET_NO_PYTHON": "1", "TORCHELASTIC_RUN_ID": "other",
          "DISTPROF_OUT": "elsewhere", "DISTPROF_STEPS": "wait=1", "DISTPROF_TOPICS": "steps", "DISTPROF_TP": "2",
          "DISTPROF_RANKS": "0", "DISTPROF_DISABLE": "1"}
"""Environment variables that another job in the same shell may have left."""
PRINTED = "printed.json"


def demo(folder: Path, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a folder."""
    return forked.run([*DEMO, *map(str, arguments)], cwd=folder, env=clean_environ() | environ, text=True,
                      capture_output=True, timeout=PATIENCE_S)


def record(folder: Path) -> None:
    """Creates a folder, runs the command in it with `OTHERS` in the environment, and stores its output."""
    folder.mkdir()
    done = demo(folder, "--out", OUT, **OTHERS)
    (folder / PRINTED).write_text(json.dumps([done.returncode, done.stdout, done.stderr]))


def printed(folder: Path) -> subprocess.CompletedProcess[str]:
    """Returns the stored output."""
    return subprocess.CompletedProcess(DEMO, *json.loads((folder / PRINTED).read_text()))
