"""Who this process is (rank, host, process id), the versions, commit and device it works with, and its memory.

Launchers tell a process its rank by environment variables: one row of `LAUNCHERS` per launcher.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.contract.rank_json import PeakMemory
from distprof.files import read_small
from distprof.own import text_of
from distprof.process.accelerators import accelerator_name, peak_device_bytes
from distprof.system import status_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherVariables:
    """Names of the environment variables of a launcher; `local_rank` is None if it sets none."""

    rank: str
    world_size: str
    local_rank: str | None


LAUNCHERS = (
    # torchrun, accelerate, deepspeed; Lightning sets all but RANK
    LauncherVariables(rank="RANK", world_size="WORLD_SIZE", local_rank="LOCAL_RANK"),
    LauncherVariables(rank="OMPI_COMM_WORLD_RANK", world_size="OMPI_COMM_WORLD_SIZE",  # Open MPI
                      local_rank="OMPI_COMM_WORLD_LOCAL_RANK"),
    LauncherVariables(rank="MV2_COMM_WORLD_RANK", world_size="MV2_COMM_WORLD_SIZE",  # MVAPICH
                      local_rank="MV2_COMM_WORLD_LOCAL_RANK"),
    LauncherVariables(rank="PMI_RANK", world_size="PMI_SIZE", local_rank="MPI_LOCALRANKID"),  # MPICH, Intel MPI
    # not SLURM_NTASKS, which is also set in the shell of a batch job: torchrun started there is not a task of srun
    LauncherVariables(rank="SLURM_PROCID", world_size="SLURM_STEP_NUM_TASKS", local_rank="SLURM_LOCALID"),
)
"""The first row whose variables are set and consistent counts: torchrun may run inside a task of srun."""
LOCAL_BY_RANK = (*LAUNCHERS, LauncherVariables(rank="SLURM_PROCID", world_size="SLURM_NTASKS",
                                               local_rank="SLURM_LOCALID"))


def rank_and_size(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the rank and the number of ranks from a launcher's variables; None if there are none."""
    for one in LAUNCHERS:
        rank, size = number(environ, one.rank), number(environ, one.world_size)
        if rank is not None and (size is None or rank < size) and (size is not None or one is LAUNCHERS[0]):
            return rank, size or 1
    return None


def local_rank(environ: Mapping[str, str], rank: int) -> int | None:
    """Returns the number of a rank on its host from a launcher's variables; None if there are none.

    Variables of an outer launcher, inside whose task the ranks were started by other means, belong to another rank and
    are ignored.
    """
    given = number(environ, "LOCAL_RANK")
    if given is not None and number(environ, "RANK") in (None, rank):
        return given
    for one in LOCAL_BY_RANK:
        if one.local_rank is not None and number(environ, one.rank) == rank:
            found = number(environ, one.local_rank)
            if found is not None:
                return found
    return None


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Returns a variable as a number; None if it is missing, empty (some launchers leave it so) or not a number."""
    text = environ.get(name, "").strip()
    return int(text) if text.isdecimal() else None


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CPUINFO = Path("/proc/cpuinfo")
MOST_GIT_BYTES = 1 << 24
_COMMIT = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process of a job."""

    rank: int
    local_rank: int
    """0 if no launcher gave it, until the ranks of the host have exchanged it."""
    world_size: int
    attempt: int
    """How often torchrun had restarted the job before this process."""
    pid: int
    host: str
    boot_id: str
    """Equal on processes that share a kernel and therefore a clock; '' if unknown."""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Identity:
        """Reads it from the process group, else from the launcher's variables, else assumes rank 0 of 1."""
        rank, world_size = _from_process_group() or rank_and_size(environ) or (0, number(environ, "WORLD_SIZE") or 1)
        return cls(
            rank=rank,
            local_rank=local_rank(environ, rank) or 0,
            world_size=world_size,
            attempt=number(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
            pid=os.getpid(),
            host=socket.gethostname(),
            boot_id=boot_id(),
        )


def boot_id() -> str:
    """Returns the boot id of the running kernel; '' if unknown."""
    return _text(BOOT_ID).strip()


def _text(path: Path) -> str:
    try:
        return text_of(path)
    except OSError:
        return ""  # not Linux, or hidden from this process


def in_process_group() -> bool:
    """True if torch's default process group exists in this process."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _from_process_group() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    return (distributed.get_rank(), distributed.get_world_size()) if distributed and in_process_group() else None


def versions() -> dict[str, str]:
    """Returns the versions of distprof, Python and, if loaded, torch, on which the numbers depend."""
    from distprof import __version__

    found = {"distprof": __version__, "python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found


def git_commit(folder: Path) -> str:
    """Returns the commit checked out in a folder, as gitrepository-layout(5) describes it; '' if that is unclear.

    git is not run: in a rank, the script could see the child process.
    """
    try:
        git = next((place / ".git" for place in (folder, *folder.parents) if (place / ".git").exists()), None)
        return "" if git is None else _head_of(git)
    except (OSError, ValueError):
        return ""


def _head_of(git: Path) -> str:
    if git.is_file():  # a worktree or a submodule
        git = git.parent / _git_text(git).removeprefix("gitdir: ")
    head = _git_text(git / "HEAD")
    name = head.removeprefix("ref: ")
    if name != head:
        common = git / _git_text(git / "commondir") if (git / "commondir").is_file() else git
        loose = common / name
        head = _git_text(loose) if loose.is_file() else _packed_ref(common / "packed-refs", name)
    return head if _COMMIT.fullmatch(head) else ""


def _packed_ref(file: Path, name: str) -> str:
    lines = _git_text(file).splitlines() if file.is_file() else []
    return next((line.split(" ")[0] for line in lines if line.endswith(f" {name}")), "")


def _git_text(file: Path) -> str:
    return read_small(file, MOST_GIT_BYTES).decode(errors="replace").strip()


def peak_memory() -> PeakMemory:
    """Returns the peak memory of this process so far."""
    return PeakMemory(host_bytes=status_bytes("VmHWM"), device_bytes=peak_device_bytes())


def device_name() -> str:
    """Returns the name of the current device of the accelerator in use, else of the CPU."""
    return accelerator_name() or cpu_name()


def tf32() -> dict[str, bool]:
    """Returns whether float32 matrix products and convolutions may use TF32; False without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {"matmul": False, "convolution": False}
    backends = torch.backends
    return {"matmul": _takes_tf32(backends.cuda.matmul), "convolution": _takes_tf32(
        getattr(backends.cudnn, "conv", backends.cudnn))}


def _takes_tf32(settings: Any) -> bool:
    precision = getattr(settings, "fp32_precision", None)
    return bool(settings.allow_tf32) if precision is None else precision == "tf32"  # torch 2.8 has only allow_tf32


def cpu_name() -> str:
    """Returns the CPU model from /proc/cpuinfo, else the architecture."""
    lines = _text(CPUINFO).splitlines()
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
