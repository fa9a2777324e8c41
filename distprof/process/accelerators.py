"""The accelerator that this process uses: a GPU, an XPU, an NPU or another one that torch has a backend for.

Nothing here initialises a device: a script may still want to fork, or to choose a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

CPU = "cpu"
KINDS = ("cuda", "xpu", "mtia", "hpu", "npu", "mlu", "musa", "privateuseone", "openreg")
"""Device types of torch's own backends and of those of vendors; ROCm uses cuda."""
MEASURES_PEAK = "max_memory_allocated"


def accelerator() -> ModuleType | None:
    """Returns torch's module of the accelerator in use, such as torch.cuda; None until the script initialises one."""
    kind = device_type()
    return None if kind == CPU else getattr(sys.modules["torch"], kind)


def device_type() -> str:
    """Returns the type of the accelerator in use, such as cuda; `cpu` until the script has initialised one."""
    torch = sys.modules.get("torch")
    # torch.accelerator.current_accelerator() may initialise the driver
    modules = {} if torch is None else vars(torch)  # vars, because looking up an attribute that torch lacks is slow
    return next((kind for kind in KINDS if kind in modules and _is_initialized(modules[kind])), CPU)


def _is_initialized(module: object) -> bool:
    asks = getattr(module, "is_initialized", None)
    return bool(asks is not None and asks())


def accelerator_name() -> str | None:
    """Returns the name of the current device of the accelerator in use; None without one."""
    module = accelerator()
    names = getattr(module, "get_device_name", None)
    return None if module is None else str(names()) if names is not None else device_type()


def peak_device_bytes() -> int | None:
    """Returns the peak memory of this process on its accelerator; None if the backend does not report it."""
    measures = getattr(accelerator(), MEASURES_PEAK, None)
    return None if measures is None else int(measures())


def is_capturing() -> bool:
    """True while the current stream captures a graph: work is then recorded and runs whenever the graph is replayed."""
    asks = capture_question()
    return bool(asks is not None and asks())


def capture_question() -> Callable[[], bool] | None:
    """Returns torch's function behind `is_capturing`; None without an accelerator, or if it has no graph capture."""
    return getattr(accelerator(), "is_current_stream_capturing", None)
