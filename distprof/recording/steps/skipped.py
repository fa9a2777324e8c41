"""Sees optimizer steps that a gradient scaler leaves out: the iteration is over, though the optimizer did not step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class SkippedSteps:
    """Watches `torch.amp.GradScaler.step` between `start` and `stop`."""

    def __init__(self, num_steps: Callable[[], int], on_skipped: Callable[[Optimizer], None]) -> None:
        """Prepares.

        Args:
            num_steps: Optimizer steps so far.
            on_skipped: Called with the optimizer that did not step.
        """
        self._num_steps = num_steps
        self._on_skipped = on_skipped
        self._own: Any = None
        self._ours: Any = None

    def start(self) -> None:
        """Puts a function in front of the scaler's."""
        own = self._own = GradScaler.step

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._num_steps()
            result = own(scaler, optimizer, *args, **kwargs)
            if self._num_steps() == before and isinstance(optimizer, Optimizer):
                self._on_skipped(optimizer)
            return result

        step.__wrapped__ = own  # type: ignore[attr-defined]
        self._ours = step
        setattr(GradScaler, "step", step)  # noqa: B010 (an assignment to a method is an error to type checkers)

    def stop(self) -> None:
        """Takes it away, unless somebody put another one in front of it."""
        if self._own is not None and GradScaler.step is self._ours:
            setattr(GradScaler, "step", self._own)  # noqa: B010
        self._own = None
