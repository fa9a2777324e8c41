"""torch's flight recorder: the last collectives of a process, which `stuck.json` shows when the process hangs."""

from __future__ import annotations

import os

SIZE = "TORCH_FR_BUFFER_SIZE"
OLD_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
COLLECTIVES = 2000
"""As many as torch keeps by itself where it has the recorder on."""


def switch_on() -> None:
    """Asks for it in process groups that this process and its children make from now on; torch 2.8 has it off."""
    if OLD_SIZE not in os.environ:
        os.environ.setdefault(SIZE, str(COLLECTIVES))
