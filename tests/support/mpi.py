"""Finds MPI launchers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

LAUNCHERS = {"Open MPI": ("mpirun.openmpi", "mpirun"), "HYDRA": ("mpiexec.hydra", "mpiexec.mpich")}
"""Text in the output of `--version` (HYDRA: MPICH) -> names of the program."""
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_plm_rsh_agent": "/bin/true"}
"""Environment variables that allow more ranks than cores, root, and machines without ssh, which it looks for even if
all ranks are local."""


def launcher_of(said: str) -> str:
    """Returns the launcher beside this Python or on PATH; skips the test if there is none."""
    folders = (str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep))
    for name, folder in product(LAUNCHERS[said], folders):  # each MPI has an mpirun
        found = shutil.which(name, path=folder)
        if found and said in subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout:
            return found
    pytest.skip(f"no {' or '.join(LAUNCHERS[said])} whose --version says {said}")
