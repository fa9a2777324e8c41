"""DeepSpeed's `get_accelerator`, as far as programs need it that profile a model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch


class Accelerator:
    """The accelerator that torch finds, else the CPU, by DeepSpeed's methods."""

    def __init__(self) -> None:
        found = torch.accelerator.current_accelerator(check_available=True)
        self._kind = "cpu" if found is None else found.type
        self._module: Any = None if found is None else torch.get_device_module(found)

    def device_name(self, device_index: int | None = None) -> str:
        """cuda, or cuda:1 with an index; always cpu without an accelerator."""
        return self._kind if device_index is None or self._module is None else f"{self._kind}:{device_index}"

    def device(self, device_index: int | None = None) -> AbstractContextManager[Any]:
        """A context in which a device is the current one; without an accelerator it does nothing."""
        if self._module is None:
            return nullcontext()
        context: AbstractContextManager[Any] = self._module.device(device_index)
        return context

    def set_device(self, device_index: int) -> None:
        """Makes a device the current one."""
        if self._module is not None:
            torch.accelerator.set_device_index(device_index)

    def current_device(self) -> int:
        """The index of the current device."""
        return 0 if self._module is None else torch.accelerator.current_device_index()

    def current_device_name(self) -> str:
        """cuda:0, or cpu."""
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        """The number of devices, 1 without an accelerator."""
        return 1 if self._module is None else torch.accelerator.device_count()

    def is_available(self) -> bool:
        """True; the CPU always is."""
        return True

    def synchronize(self, device_index: int | None = None) -> None:
        """Waits until a device has done what it was given."""
        if self._module is not None:
            torch.accelerator.synchronize(device_index)


@cache
def get_accelerator() -> Accelerator:
    """What there is on this machine."""
    return Accelerator()
