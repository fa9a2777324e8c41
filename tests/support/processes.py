"""Processes that tests start: which of them are jobs, and which still run; limits of this process."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPTS = str(Path(__file__).parents[1] / "scripts")
PR_SET_CHILD_SUBREAPER = 36
LOOKS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "LANGUAGE")
"""Environment variables of a terminal and its user."""
LEFT = ("LC_", "DISTPROF_", "TORCHELASTIC_", "PET_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "ACCELERATE_")
"""Prefixes of environment variables of locales, distprof, torchrun, srun, mpirun and accelerate."""


def clean_environ() -> dict[str, str]:
    """Returns the environment without variables of launchers, earlier runs, test workers (terminal size) and users."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", *LOOKS)
    kept = {name: value for name, value in os.environ.items()
            if name not in names and not name.startswith(LEFT)}
    return kept | {"OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}


def is_job(command: Iterable[object]) -> bool:
    """Returns whether a command line is `distprof` with a command, torchrun, or a script of tests/scripts."""
    words = [str(word) for word in command]
    return ("torch.distributed.run" in words or any(word.startswith(SCRIPTS) for word in words)
            or words[1:3] == ["-m", "distprof"])


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process, so that `children` finds them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> dict[int, str]:
    """Returns pid -> command line of the running children of this process, without zombies."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            listed = (task / "children").read_text().split()
        except FileNotFoundError:
            continue  # a thread that ended just now
        for child in listed:
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes()
            except FileNotFoundError:
                continue
            if line:
                found[int(child)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def left_after(seconds: float, before: Iterable[int]) -> list[str]:
    """Returns command lines of new children that still run after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        left = [line for child, line in children().items()
                if child not in before and "multiprocessing.resource_tracker" not in line]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    """Limits the size of files that this process writes in the block, to simulate a full disk: setrlimit(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
