"""What a recorder puts into torch, to see that nothing stays."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue, SimpleQueue
from multiprocessing.synchronize import SemLock

import torch
import torch.distributed
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim


def traces_of_us() -> dict[str, object]:
    """Everything a recorder puts somewhere."""
    return {
        "forward hooks": list(nn_module._global_forward_hooks.values()),
        "forward hooks with kwargs": list(nn_module._global_forward_hooks_with_kwargs),
        "forward pre hooks": list(nn_module._global_forward_pre_hooks.values()),
        "any hooks": bool(nn_module._has_any_global_hook()),
        "optimizer hooks": [*optim._global_optimizer_pre_hooks.values(), *optim._global_optimizer_post_hooks.values()],
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "profiler": torch._C._autograd._profiler_enabled(),
        "profiler class": torch.autograd.profiler.profile._prepare_trace,
        "c10d kernels": torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect"),
        "kernels of aten": [name for name in ("_local_scalar_dense", "nonzero", "copy_")
                            if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "BackendSelect")],
        "methods of tensors": [name for name in ("cpu", "tolist") if name in vars(torch.Tensor)],
        # some of them cannot be copied
        "waits of threads": [id(vars(kind)[name]) for kind, name in (
            (threading.Condition, "wait"), (threading.Thread, "join"), (BaseProcess, "join"), (Queue, "get"),
            (SimpleQueue, "get"), (SemLock, "__enter__"), (torch.distributed.Work, "wait"))],
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "environment": dict(os.environ),
    }
