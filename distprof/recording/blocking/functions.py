"""Functions and methods that wait: each is wrapped while waits are recorded."""

from __future__ import annotations

import multiprocessing.process
import multiprocessing.queues
import sys
import threading
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import torch
import torch.distributed as dist
from torch.compiler import is_compiling
from torch.utils.data import dataloader

from distprof.process.accelerators import is_capturing
from distprof.recording.blocking.blocking_log import (
    COMMUNICATION,
    DATA,
    DEVICE,
    PROCESS,
    THREAD,
    BlockingLog,
    Wait,
    is_on_device,
    known,
)

WaitOf = Callable[..., Wait | None]
TENSOR_METHODS = ("cpu", "tolist", "__repr__")
"""The last one is `print(tensor)`, which reads values in torch's Python code."""
DEVICE_FUNCTIONS = {
    "_cuda_synchronize": "cuda.synchronize", "_accelerator_synchronizeDevice": "accelerator.synchronize",
    "_cuda_emptyCache": "cuda.empty_cache"}
"""Name in torch._C -> public name; wrapping the former works whichever way the script imported the function."""
_MISSING = object()


class WaitingFunctions:
    """Wraps waiting functions between `start` and `stop`."""

    def __init__(self, log: BlockingLog) -> None:
        self._log = log
        self._on_device = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        """For each wrapped function: owner, name, the owner's own attribute (or `_MISSING`), our wrapper."""

    def start(self) -> None:
        """Wraps each function."""
        self._on_device = is_on_device()
        for name in TENSOR_METHODS:
            self._watch(torch.Tensor, name, self._on_tensor(f"Tensor.{name}"))
        self._watch(torch.cpu, "synchronize", _always("cpu.synchronize", DEVICE, "cpu", blocking=False))
        if self._on_device:
            for name, op in DEVICE_FUNCTIONS.items():
                self._watch(torch._C, name, _always(op, DEVICE, "cuda"))
            for owner in (torch.cuda.Stream, torch.cuda.Event):
                self._watch(owner, "synchronize", _always(f"{owner.__name__}.synchronize", DEVICE, "cuda"))
        if dist.is_available():
            self._watch_works()
        self._watch(dataloader._BaseDataLoaderIter, "__next__", _loading)
        self._watch(threading.Condition, "wait", _always("", THREAD))
        self._watch(threading.Thread, "join", _while_alive("Thread.join", THREAD))
        self._watch(multiprocessing.process.BaseProcess, "join", _while_alive("Process.join", PROCESS))
        for kind in (multiprocessing.queues.Queue, multiprocessing.queues.SimpleQueue):
            self._watch(kind, "get", _always(f"{kind.__name__}.get", PROCESS))
        self._watch_locks()

    def stop(self) -> None:
        """Restores the functions, except those that somebody has wrapped again."""
        for owner, name, own, ours in reversed(self._replaced):
            if vars(owner).get(name) is ours:
                if own is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, own)
        self._replaced = []

    def _replace(self, owner: object, name: str, ours: object) -> None:
        self._replaced.append((owner, name, vars(owner).get(name, _MISSING), ours))
        setattr(owner, name, ours)

    def _watch(self, owner: object, name: str, wait_of: WaitOf) -> None:
        own = getattr(owner, name, None)
        if own is None:
            return
        log = self._log

        def waits(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # the compiler warns of functions of ours that it cannot compile
                return own(*args, **kwargs)
            return log.call(known(wait_of, *args, **kwargs), sys._getframe(), own, args, kwargs)

        self._replace(owner, name, update_wrapper(waits, own))

    def _on_tensor(self, op: str) -> WaitOf:
        def wait_of(tensor: torch.Tensor, *_args: object, **_kwargs: object) -> Wait | None:
            kind = tensor.device.type
            if kind == "meta" or (kind == "cpu" and self._on_device):
                return None
            return Wait(op, DEVICE, kind, blocking=kind != "cpu")

        return wait_of

    def _watch_works(self) -> None:
        """Wraps `Work.wait`.

        The host has not waited if the work was over before, or still runs when `wait` returns: then a stream waits
        instead.
        """
        own, log, on_device = dist.Work.wait, self._log, self._on_device
        wait = Wait("Work.wait", COMMUNICATION, None, blocking=True)

        def waits(work: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return own(work, *args, **kwargs)
            if not on_device:
                return log.call(wait, sys._getframe(), own, (work, *args), kwargs)
            return log.call(None if _is_over(work) else wait, sys._getframe(), own, (work, *args), kwargs,
                            has_waited=partial(_is_over, work))

        self._replace(dist.Work, "wait", update_wrapper(waits, own))

    def _watch_locks(self) -> None:
        """Wraps locks of multiprocessing (acquiring a free one is no wait); those of `threading` are C code."""
        try:
            from multiprocessing.synchronize import SemLock
        except ImportError:
            return  # no semaphores on this platform
        own, log = SemLock.__enter__, self._log
        wait = Wait("Lock.__enter__", PROCESS, None, blocking=True)

        def waits(lock: Any) -> Any:
            if lock._semlock.acquire(False):
                return True
            return log.call(wait, sys._getframe(), own, (lock,), {})

        self._replace(SemLock, "__enter__", update_wrapper(waits, own))


def _is_over(work: Any) -> bool:
    """Returns whether the work has completed; during a graph capture, where asking may break the capture, False."""
    try:
        return not is_capturing() and bool(work.is_completed())
    except RuntimeError:
        return False


def _always(op: str, waits_for: str, device: str | None = None, *, blocking: bool = True) -> WaitOf:
    wait = Wait(op, waits_for, device, blocking)
    return lambda *_args, **_kwargs: wait


def _while_alive(op: str, waits_for: str) -> WaitOf:
    wait = Wait(op, waits_for, None, blocking=True)
    return lambda one, *_args, **_kwargs: wait if one.is_alive() else None


def _loading(loading: object) -> Wait | None:
    """Without worker processes, the data loader loads in this thread: that is work, not a wait."""
    return Wait("DataLoader.__next__", DATA, None, blocking=True) if hasattr(loading, "_workers") else None
