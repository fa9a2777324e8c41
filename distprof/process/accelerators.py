"""The accelerator that this process works on: a GPU, an XPU, an NPU or another one that torch has a backend for.

Nothing here initialises a device: a script may still want to fork, or to choose among devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

CPU = "cpu"
KINDS = ("cuda", "xpu", "mtia", "hpu", "npu", "mlu", "musa", "privateuseone", "openreg")
"""Types of devices in torch's own backends, and names of those of others; of ROCm it is cuda."""
MEASURES_PEAK = "max_memory_allocated"


def accelerator() -> ModuleType | None:
    """torch's module of the accelerator in use, like torch.cuda; None before the script has initialised one."""
    kind = device_type()
    return None if kind == CPU else getattr(sys.modules["torch"], kind)


def device_type() -> str:
    """The type of the accelerator in use, like cuda; `cpu` before the script has initialised one."""
    torch = sys.modules.get("torch")
    # torch.accelerator.current_accelerator() may initialise the driver
    modules = {} if torch is None else vars(torch)  # to ask for what torch lacks takes long
    return next((kind for kind in KINDS if kind in modules and _is_initialized(modules[kind])), CPU)


def _is_initialized(module: object) -> bool:
    asks = getattr(module, "is_initialized", None)
    return bool(asks is not None and asks())


def accelerator_name() -> str | None:
    """The name of the current device of the accelerator in use; None without one."""
    module = accelerator()
    names = getattr(module, "get_device_name", None)
    return None if module is None else str(names()) if names is not None else device_type()


def peak_device_bytes() -> int | None:
    """The most memory that this process held on its accelerator; None where its backend does not tell."""
    measures = getattr(accelerator(), MEASURES_PEAK, None)
    return None if measures is None else int(measures())


def is_capturing() -> bool:
    """True where what is sent to the current stream goes into a graph: it runs whenever the graph does, not now."""
    asks = capture_question()
    return bool(asks is not None and asks())


def capture_question() -> Callable[[], bool] | None:
    """What answers that for the accelerator in use; None where there is none, or none that captures."""
    return getattr(accelerator(), "is_current_stream_capturing", None)
