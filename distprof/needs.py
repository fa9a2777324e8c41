"""What distprof needs to record and to count, and what is said where that is not there.

Reading runs needs none of it. Of torch, recording also wants the flight recorder on.
"""

from __future__ import annotations

import os
import re
import sys
from types import ModuleType

from distprof.errors import LackingError
from distprof.system import LINUX

LEAST = (2, 8)
"""The oldest torch that can be recorded; pyproject.toml says the same."""
SYSTEMS = {"darwin": "macOS", "win32": "Windows"}
INSTALL = "pip install 'distprof[record]'"


def import_torch(purpose: str) -> ModuleType:
    """Imports torch.

    Args:
        purpose: What for, like "record".

    Raises:
        LackingError: There is none, it is too old, or it cannot be imported.
    """
    try:
        import torch

        version = torch.__version__
    except AttributeError as error:  # a folder of that name
        raise LackingError(purpose, "no torch", hint=INSTALL) from error
    except (ImportError, OSError) as error:  # a library of CUDA that is missing is an OSError
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise LackingError(purpose, "no torch", hint=INSTALL) from error
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise LackingError(purpose, f"torch is installed but cannot be imported: {what}",
                           hint="reinstall it; python -c 'import torch' shows the full error") from error
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise LackingError(purpose, f"torch {version} is older than {least}", hint=f"pip install 'torch>={least}'")
    return torch


def expect_linux(purpose: str) -> None:
    """Raises a LackingError on another system."""
    if not LINUX:
        raise LackingError(purpose, f"that needs Linux, but this is {SYSTEMS.get(sys.platform, sys.platform)}",
                           hint="record on Linux; reading a run works on every system: distprof report RUN")


RECORDER_SIZE = "TORCH_FR_BUFFER_SIZE"
OLD_RECORDER_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
RECORDED_COLLECTIVES = 2000
"""Of which `stuck.json` shows the last when the process hangs: as many as torch keeps where it has its flight recorder
on by itself."""


def switch_on_flight_recorder() -> None:
    """Asks for torch's flight recorder in process groups that this process and its children make from now on.

    torch 2.8 has it off.
    """
    if OLD_RECORDER_SIZE not in os.environ:
        os.environ.setdefault(RECORDER_SIZE, str(RECORDED_COLLECTIVES))
