"""What a recorder puts into torch, to see that nothing stays."""

from __future__ import annotations

import os
import signal

import torch
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
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "environment": dict(os.environ),
    }
