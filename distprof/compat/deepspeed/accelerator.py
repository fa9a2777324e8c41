"""DeepSpeed's `get_accelerator`, as far as programs that profile a model need it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch


class Accelerator:
    """The accelerator that torch finds, else the CPU, with DeepSpeed's methods."""

    def __init__(self) -> None:
        found = torch.accelerator.current_accelerator(check_available=True)
        self._kind = "cpu" if found is None else found.type
        self._module: Any = None if found is None else torch.get_device_module(found)

    def device_name(self, device_index: int | None = None) -> str:
        """Returns cuda, or cuda:1 with an index; always cpu without an accelerator."""
        return self._kind if device_index is None or self._module is None else f"{self._kind}:{device_index}"

    def device(self, device_index: int | None = None) -> AbstractContextManager[Any]:
        """Returns a context in which a device is current; without an accelerator, it does nothing."""
        if self._module is None:
            return nullcontext()
        context: AbstractContextManager[Any] = self._module.device(device_index)
        return context

    def set_device(self, device_index: int) -> None:
        """Makes a device current."""
        if self._module is not None:
            torch.accelerator.set_device_index(device_index)

    def current_device(self) -> int:
        """Returns the index of the current device."""
        return 0 if self._module is None else torch.accelerator.current_device_index()

    def current_device_name(self) -> str:
        """Returns cuda:0, or cpu."""
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        """Returns the number of devices; 1 without an accelerator."""
        return 1 if self._module is None else torch.accelerator.device_count()

    def is_available(self) -> bool:
        """Returns True, as the CPU is always available."""
        return True

    def synchronize(self, device_index: int | None = None) -> None:
        """Waits until a device has completed its work."""
        if self._module is not None:
            torch.accelerator.synchronize(device_index)


@cache
def get_accelerator() -> Accelerator:
    """Returns the accelerator of this machine."""
    return Accelerator()
