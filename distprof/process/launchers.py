"""Environment variables by which launchers tell a process its rank: one row per launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherVariables:
    """Names of the variables of a launcher; None where it has none."""

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
    # not SLURM_NTASKS, which the shell of a batch job has too: torchrun there is no task, and its ranks are not these
    LauncherVariables(rank="SLURM_PROCID", world_size="SLURM_STEP_NUM_TASKS", local_rank="SLURM_LOCALID"),
)
"""The first that fits counts: torchrun may run inside a task of srun."""
LOCAL_BY_RANK = (*LAUNCHERS, LauncherVariables(rank="SLURM_PROCID", world_size="SLURM_NTASKS",
                                               local_rank="SLURM_LOCALID"))


def rank_and_size(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """The rank and the number of ranks as a launcher gave them; None where none did."""
    for one in LAUNCHERS:
        rank, size = number(environ, one.rank), number(environ, one.world_size)
        if rank is not None and (size is None or rank < size) and (size is not None or one is LAUNCHERS[0]):
            return rank, size or 1
    return None


def local_rank(environ: Mapping[str, str], rank: int) -> int | None:
    """The number of a rank on its host as its launcher gave it; None where none did.

    Variables of a launcher further out, in whose task the ranks were started by other means, name another rank.
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
    """A variable as a number; None where it is missing, empty (some launchers leave it so) or something else."""
    text = environ.get(name, "").strip()
    return int(text) if text.isdecimal() else None
