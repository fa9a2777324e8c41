"""What a recorder changes in the process of a script, as visible to the script."""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue, SimpleQueue
from multiprocessing.synchronize import SemLock
from pathlib import Path

import pyarrow.parquet  # noqa: F401 (has a function called at exit)
import torch
import torch.distributed
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

WATCHED_OPERATORS = ("_local_scalar_dense", "nonzero", "copy_")


def _kernels() -> list[str]:
    names = ["c10d::allreduce_", *(f"aten::{name}" for name in WATCHED_OPERATORS)]
    return [name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "BackendSelect")]


def _real_time() -> list[int]:
    return [number for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
            if signal.getsignal(number) not in (signal.SIG_DFL, None)]


def _wakeup_descriptor() -> int:
    if threading.current_thread() is not threading.main_thread():
        return -1
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


def _children() -> list[str]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that ended just now
            found.append((task / "children").read_text())
    return sorted(found)


OF_SERVERS = re.compile("ThreadPoolExecutor|process_request_thread")
"""Names of threads of servers of other tests, which may run in the meantime."""
VIEWS: Mapping[str, Callable[[], object]] = {
    "signal handlers": lambda: {number: signal.getsignal(number) for number in signal.valid_signals()
                                    if number < signal.SIGRTMIN},
    "real-time signal": _real_time,
    "wakeup descriptor, signal mask": lambda: (
        _wakeup_descriptor(), signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "threads": lambda: [thread.name for thread in threading.enumerate() if not OF_SERVERS.search(thread.name)],
    "child processes": lambda: [*filter(None, _children())],
    "global module hooks": lambda: (
        [*nn_module._global_forward_pre_hooks.values()], [*nn_module._global_forward_hooks.values()],
        [*nn_module._global_forward_hooks_with_kwargs], [*nn_module._global_forward_hooks_always_called],
        bool(nn_module._has_any_global_hook())),
    "global optimizer hooks": lambda: [
        *optim._global_optimizer_pre_hooks.values(), *optim._global_optimizer_post_hooks.values()],
    "hook numbers": lambda: RemovableHandle.next_id,
    "dispatch modes": lambda: [
        torch._C._get_dispatch_stack_at(place) for place in range(torch._C._len_torch_dispatch_stack())],
    "torch function modes": torch._C._len_torch_function_stack,
    "kernels wrapping operators": _kernels,
    "torch.profiler": torch._C._autograd._profiler_enabled,
    "functions of torch's profiler": lambda: (
        torch.autograd.profiler.profile._prepare_trace, torch.autograd.profiler.profile.__exit__),
    "GradScaler.step": lambda: torch.amp.GradScaler.step,
    "CUDAGraph": lambda: (torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.replay),
    "functions that wait": lambda: [vars(kind).get(name) for kind, name in (
        (threading.Condition, "wait"), (threading.Thread, "join"), (BaseProcess, "join"), (Queue, "get"),
        (SimpleQueue, "get"), (SemLock, "__enter__"), (torch.distributed.Work, "wait"),
        (torch.Tensor, "cpu"), (torch.Tensor, "tolist"), (torch.cpu, "synchronize"))],
    "data loaders": lambda: dataloader._BaseDataLoaderIter.__next__,
    "warning filters": lambda: [*warnings.filters],
    "sys.meta_path": lambda: [*sys.meta_path],
    "sys.path": lambda: [*sys.path],
    "environment": lambda: dict(os.environ),
    "Python hooks": lambda: (
        sys.excepthook, threading.excepthook, sys.unraisablehook, sys.gettrace(), sys.getprofile(),
        threading.gettrace()),
    "atexit": atexit._ncallbacks,
    "the garbage collector": lambda: (gc.isenabled(), gc.get_threshold(), [*gc.callbacks]),
}
"""What a script can inspect -> function that returns its state; each is a row of the table in docs/robustness.md."""


def seen_now() -> dict[str, object]:
    """Returns the current state of everything in `VIEWS`."""
    return {name: view() for name, view in VIEWS.items()}


def traces_of_us() -> dict[str, object]:
    """Returns the state of everything that a recorder or a counting call changes temporarily."""
    return {name: found for name, found in seen_now().items() if name != "hook numbers"}
