"""This machine, for a bug report: versions, cards, driver, backends."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def _has(dist: Any, name: str) -> bool:
    is_there = getattr(dist, f"is_{name}_available", None)
    return is_there is not None and bool(is_there())


def _nccl() -> str | None:
    import torch

    with suppress(Exception):
        return ".".join(map(str, torch.cuda.nccl.version()))
    return None
