"""Checks what distprof needs for recording and counting, and the errors if it is missing.

Reading runs needs none of it. Recording also enables torch's flight recorder.
"""

from __future__ import annotations

import os
import re
import sys
from types import ModuleType

from distprof.errors import LackingError
from distprof.system import LINUX

LEAST = (2, 8)
"""Oldest supported version of torch; as in pyproject.toml."""
SYSTEMS = {"darwin": "macOS", "win32": "Windows"}
INSTALL = "pip install 'distprof[record]'"


def import_torch(purpose: str) -> ModuleType:
    """Imports torch.

    Args:
        purpose: What it is needed for, such as "record".

    Raises:
        LackingError: torch is missing or too old, or cannot be imported.
    """
    try:
        import torch

        version = torch.__version__
    except AttributeError as error:  # it is only a folder with this name
        raise LackingError(purpose, "no torch", hint=INSTALL) from error
    except (ImportError, OSError) as error:  # a missing CUDA library raises an OSError
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
    """Raises a LackingError if this is not Linux."""
    if not LINUX:
        raise LackingError(purpose, f"that needs Linux, but this is {SYSTEMS.get(sys.platform, sys.platform)}",
                           hint="record on Linux; reading a run works on every system: distprof report RUN")


RECORDER_SIZE = "TORCH_FR_BUFFER_SIZE"
OLD_RECORDER_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
RECORDED_COLLECTIVES = 2000
"""Number of collectives that the flight recorder keeps for `stuck.json` of a hanging process: torch's default where it
is on by default."""


def switch_on_flight_recorder() -> None:
    """Enables torch's flight recorder for process groups that this process and its children create from now on.

    In torch 2.8 it is off by default.
    """
    if OLD_RECORDER_SIZE not in os.environ:
        os.environ.setdefault(RECORDER_SIZE, str(RECORDED_COLLECTIVES))
