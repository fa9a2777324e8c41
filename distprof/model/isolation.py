"""A context in which a model may be called, and after which everything is restored."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from distprof.model.compiled import ForcedEager
from distprof.own import reentrant_lock

_ALONE = reentrant_lock()
"""Random state and the compiler's stance belong to the process: two threads must not restore them concurrently."""


@contextmanager
def undisturbed(modules: Iterable[nn.Module]) -> Iterator[Callable[[nn.Module], None]]:
    """Restores random state, buffers, gradients, training flags and the compiler's stance, also after an error.

    Inside, compiled models run eagerly: nothing is compiled, and nothing has to be recompiled afterwards. A second
    thread waits until the first is done.

    Yields:
        A function that protects one more module, found only when it was called.
    """
    with _ALONE, ExitStack() as stack:
        stack.enter_context(_random_state())
        eager = ForcedEager()
        eager.start()
        stack.callback(eager.stop)
        kept: set[int] = set()  # ids of modules that the contexts below keep alive

        def keep(module: nn.Module) -> None:
            if id(module) in kept:
                return
            inside = list(module.modules())
            kept.update(map(id, inside))
            with torch._C.DisableTorchFunction(), _disable_current_modes():  # these copies are not work of the model
                for context in (_buffers, _gradients, _training):
                    stack.enter_context(context(inside))

        for module in modules:
            keep(module)
        yield keep


@contextmanager
def _random_state() -> Iterator[None]:
    python, numpy = random.getstate(), sys.modules.get("numpy")
    arrays = numpy.random.get_state() if numpy is not None else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(arrays)


@contextmanager
def _buffers(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restores buffers: a forward call in training mode changes running means."""
    places = [(owner._buffers, name, buffer) for owner in modules for name, buffer in owner._buffers.items()]
    contents = [(buffer, buffer.detach().clone()) for _, _, buffer in places
                if buffer is not None and not is_lazy(buffer) and not buffer.is_meta and not buffer.is_inference()]
    try:
        yield
    finally:
        for holder, name, buffer in places:
            holder[name] = buffer
        for buffer, content in contents:
            # through .data: a graph of the user that awaits its backward must not see a new version
            buffer.data.copy_(content)


@contextmanager
def _gradients(modules: Sequence[nn.Module]) -> Iterator[None]:
    parameters = {id(parameter): parameter for module in modules for parameter in module._parameters.values()
                  if parameter is not None}
    kept = [(parameter, parameter.grad) for parameter in parameters.values()]
    for parameter, gradient in kept:
        if gradient is not None:
            parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            if parameter.grad is not gradient:
                parameter.grad = gradient


@contextmanager
def _training(modules: Sequence[nn.Module]) -> Iterator[None]:
    kept = [(sub, sub.training) for sub in modules if hasattr(sub, "training")]  # frozen scripts lack it
    try:
        yield
    finally:
        for sub, training in kept:
            if sub.training is not training:
                sub.training = training
