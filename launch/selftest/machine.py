"""This machine: which jobs of the self-test it can record, and what a bug report needs to say of it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from distprof.launch.selftest.device_claims import ALONE, AMONG_SEVERAL, SHARED
from distprof.launch.selftest.host_claims import SAID
from distprof.launch.selftest.recording import Job
from distprof.merge.scan.engine import described
from distprof.process.identity import cpu_name, versions

DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))
ASKED = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
PATIENCE_S = 10


def machine() -> dict[str, Any]:
    """What the results depend on; what is unknown is None. Loads torch."""
    import torch
    import torch.distributed as dist

    backends = [name for name in ("gloo", "nccl", "mpi", "ucc", "xccl") if _has(dist, name)]
    return {
        **versions(), "system": platform.platform(), "cpu": cpu_name(), "cpus": os.cpu_count(),
        "merge_engine": described(), "backends": backends, "cards": cards(), "driver": driver() if cards() else None,
        "cuda": torch.version.cuda, "hip": torch.version.hip, "nccl": _nccl() if "nccl" in backends else None}


def cards() -> list[str]:
    """Names of the GPUs that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def driver() -> str | None:
    """The version of the GPU's driver."""
    for file in DRIVERS:
        with suppress(OSError):
            text = file.read_text()
            found = re.search(r"\d+\.\d+(\.\d+)*", text)
            if found is not None:
                return found[0]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.check_output(ASKED, text=True, timeout=PATIENCE_S, stderr=subprocess.DEVNULL)
        return said.strip().partition("\n")[0] or None
    return None


def _has(dist: object, name: str) -> bool:
    is_there = getattr(dist, f"is_{name}_available", None)
    return is_there is not None and bool(is_there())


def _nccl() -> str | None:
    import torch

    with suppress(Exception):
        return ".".join(map(str, torch.cuda.nccl.version()))
    return None


JOBS = Path(__file__).with_name("jobs")
MOST_GPUS = 4
HOST_PLAN, HOST_STEPS = "wait=2,count=1,time=4,trace=12,arrivals=0", 19
"""Two ranks need some ten steps with a timeline before one of them is late by more than chance."""
DEVICE_PLAN, DEVICE_STEPS = "wait=2,count=1,time=4,trace=6,arrivals=0", 13
NO_GPU = "no GPU"
ONE_GPU = "a late rank among GPUs: one GPU"
NOT_ASKED = "GPUs: --cpu"


def jobs_here(num_gpus: int, *, on_cpu: bool, has_nccl: bool) -> tuple[list[Job], list[str]]:
    """Jobs for this machine.

    Args:
        num_gpus: GPUs that torch sees.
        on_cpu: Leave them out.
        has_nccl: Whether torch has NCCL, or RCCL.

    Returns:
        The jobs, and what is not tested, with the reason.
    """
    if on_cpu or not num_gpus:
        return [_on_cpus()], [NOT_ASKED if on_cpu else NO_GPU]
    if not has_nccl:
        return [_shared()], ["kernels, copies, streams and graphs: torch has no NCCL"]
    return [_shared(), _on_gpus(min(num_gpus, MOST_GPUS))], [ONE_GPU] if num_gpus == 1 else []


def _on_cpus() -> Job:
    return Job(name="2 ranks on CPUs, gloo", script=JOBS / "host.py", ranks=2, plan=HOST_PLAN, steps=HOST_STEPS,
               claims=SAID, arguments=("--device=cpu",), environ=(("CUDA_VISIBLE_DEVICES", ""),))


def _shared() -> Job:
    return Job(name="2 ranks on one GPU, gloo", script=JOBS / "host.py", ranks=2, plan=HOST_PLAN, steps=HOST_STEPS,
               claims=(*SAID, *SHARED), arguments=("--device=cuda:0",))


def _on_gpus(ranks: int) -> Job:
    if ranks == 1:
        return Job(name="1 rank on a GPU, NCCL", script=JOBS / "device.py", ranks=1, plan=DEVICE_PLAN,
                   steps=DEVICE_STEPS, claims=ALONE)
    return Job(name=f"{ranks} ranks with a GPU each, NCCL", script=JOBS / "device.py", ranks=ranks, plan=HOST_PLAN,
               steps=HOST_STEPS, claims=(*ALONE, *AMONG_SEVERAL))
