"""Communication that began under the profiler and has not ended: its slice is written to when it does."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from distprof.contract.collective_ops import OP_OF_C10D, POINT_TO_POINT
from distprof.model.scopes import Guard
from distprof.recording.communication.c10d_kernels import C10dKernels, unboxed

HOST = torch.device("cpu")
LOOK_EVERY_S = 0.0005
MOST_AT_FIRST = 64
MOST_POINT_TO_POINT = 64
"""Each keeps its tensors alive until the script waits for it, which some never do."""


class RunningWorks:
    """Works of gloo. Its threads end collectives; a send or receive ends where the script waits for it."""

    def __init__(self, guard: Guard) -> None:
        self.is_on = False
        """True while a session is: what begins later is no part of it."""
        self._collectives: list[Any] = []
        self._most = MOST_AT_FIRST
        self._single: list[Any] = []
        self._kernels = C10dKernels(lambda: None, guard(self._on_call))

    def watch(self) -> None:
        """Looks for works by itself, where nobody else calls `add`."""
        if dist.is_available():
            self._kernels.start()

    def stop_watching(self) -> None:
        """Ends that."""
        self._kernels.stop()

    def _on_call(self, operator: str, given: Mapping[str, Any], _times: object, output: object,
                 _caller: object) -> None:
        self.add(OP_OF_C10D[operator], dist.ProcessGroup.unbox(given["process_group"]), unboxed(output),
                 device_of(given))

    def add(self, op: str, group: object, work: object, device: torch.device) -> None:
        """A group was given work; None where its backend gathers up several calls."""
        # a reduce_scatter is never complete there; who waits for it waits for all parts of it
        if not self.is_on or work is None or op == "reduce_scatter" or backend_name(group, device) != "gloo":
            return
        if op in POINT_TO_POINT:
            self._single = [one for one in self._single if not one.is_completed()]
            self._single += [work] if len(self._single) < MOST_POINT_TO_POINT else []
            return
        self._collectives.append(work)
        if len(self._collectives) > self._most:
            self._drop_completed()
            self._most = max(MOST_AT_FIRST, 2 * len(self._collectives))

    def are_over(self, patience_s: float) -> bool:
        """True once all have ended.

        Args:
            patience_s: How long it may take; sends and receives that the script has not waited for take no time.
        """
        give_up = time.monotonic() + patience_s
        while self._drop_completed():
            if time.monotonic() > give_up:
                return False
            with suppress(OSError):  # where a program shifts the clocks of the process
                time.sleep(LOOK_EVERY_S)
        # a work of which only we know ends with our reference
        known, self._single = [weakref.ref(work) for work in self._single], []
        self._single = [work for work in (one() for one in known) if work is not None and not work.is_completed()]
        return not self._single

    def forget(self) -> None:
        """The session is over."""
        self._collectives, self._single, self._most = [], [], MOST_AT_FIRST

    def _drop_completed(self) -> bool:
        """True if some are left."""
        self._collectives = [work for work in self._collectives if not work.is_completed()]
        return bool(self._collectives)


def backend_name(group: Any, device: torch.device) -> str | None:
    """The backend, like gloo, that communicates data of this device; None where the group has none for it."""
    try:
        return str(group._get_backend(device).name())
    except RuntimeError:
        return None


def device_of(given: Mapping[str, Any]) -> torch.device:
    """Where the tensors of an operator are, by its arguments; the host where it has none."""
    return next((first.device for value in given.values() if (first := _first_tensor(value)) is not None), HOST)


def _first_tensor(value: object) -> torch.Tensor | None:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None
