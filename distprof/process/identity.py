"""Who this process is (rank, host, process id), and the versions and device it works with."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process of a job."""

    rank: int
    local_rank: int
    world_size: int
    attempt: int
    """How often torchrun had restarted the job."""
    pid: int
    host: str
    boot_id: str
    """Equal on processes that share a kernel and therefore a clock; '' where unknown."""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Identity:
        """By the process group; before there is one, by the environment of torchrun; else rank 0 of 1."""
        rank, world_size = _from_process_group() or (
            _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1))
        return cls(
            rank=rank,
            local_rank=_number(environ, "LOCAL_RANK", 0),
            world_size=world_size,
            attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
            pid=os.getpid(),
            host=socket.gethostname(),
            boot_id=_text(BOOT_ID).strip(),
        )


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environ.get(name, "").strip()
    return int(text) if text.isdecimal() else otherwise  # some launchers leave it empty


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # not Linux, or hidden from this process


def in_process_group() -> bool:
    """True where this process is in a process group of torch."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _from_process_group() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    return (distributed.get_rank(), distributed.get_world_size()) if distributed and in_process_group() else None


def versions() -> dict[str, str]:
    """Versions of distprof, python and, where it is loaded, torch: the numbers depend on them."""
    from distprof import __version__

    found = {"distprof": __version__, "python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found


def device_name() -> str:
    """The device the process works on: its current CUDA device once CUDA is in use, else the CPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    return cpu_name()


def tf32() -> dict[str, bool]:
    """Whether float32 products and convolutions may run in TF32; False without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {"matmul": False, "convolution": False}
    backends = torch.backends
    return {"matmul": backends.cuda.matmul.fp32_precision == "tf32",
            "convolution": backends.cudnn.conv.fp32_precision == "tf32"}


def cpu_name() -> str:
    """The model by /proc/cpuinfo, else the architecture."""
    lines = _text(CPUINFO).splitlines()
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
