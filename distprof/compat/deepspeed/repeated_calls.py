"""Repeats the program's calls of a model, because counting, timing modules and timing the model disturb each other."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils._pytree import tree_map

from distprof.compat.deepspeed.forward_record import ForwardRecord
from distprof.model.compiled import ForcedEager
from distprof.model.held_state import attributes_kept
from distprof.model.isolation import undisturbed
from distprof.model.scopes import in_backward
from distprof.process.accelerators import is_capturing

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
SHORT_S, MORE = 1e-3, 4
"""The time of a call shorter than `SHORT_S` depends on what ran before, so it is timed `MORE` more times."""


class RepeatedCalls:
    """While on, repeats each call of a model: to count, to time its modules, and to time it without hooks and mode.

    Repetitions precede the program's own call, which is then not recorded. They get copies of the inputs, their results
    are dropped, and the model is restored after them. If the program could notice them, there are none, and `usual`
    records the program's own call, as it does calls of modules outside calls of the model. Compiled code runs
    uncompiled.

    Args:
        model: The model that the program calls.
        usual: The record that is on, except during calls that were repeated.
        new_record: Creates the record of one call.
    """

    def __init__(self, model: nn.Module, usual: ForwardRecord, new_record: Callable[[], ForwardRecord]) -> None:
        self._model, self._usual, self._new_record = model, usual, new_record
        self.records: list[ForwardRecord] = []
        """One record for each call that was repeated."""
        self._hooks, self._eager = ExitStack(), ForcedEager()
        self._thread = self._depth = 0
        self._is_on = self._has_repeated = False

    def start(self) -> None:
        """Begins to record calls."""
        self._is_on, self._thread, self._depth = True, threading.get_ident(), 0
        self._eager.start()
        self._hook()
        self._usual.start()

    def stop(self) -> None:
        """Stops recording; records are kept."""
        self._is_on = False
        self._usual.stop()
        self._hooks.close()
        self._eager.stop()

    def _hook(self) -> None:
        for handle in (self._model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True),
                       self._model.register_forward_hook(self._after, always_call=True)):
            self._hooks.callback(handle.remove)

    def _before(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth > 1 or in_backward():
            return
        self._hooks.close()
        self._usual.stop()
        try:
            self._has_repeated = may_repeat(self._model) and self._repeat(args, kwargs)
            if not self._has_repeated:
                self._usual.start(inside=self._model)
        finally:
            self._hook()

    def _repeat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Repeats a call; returns False if that fails, as the program's own call will show why."""
        record = self._new_record()
        try:
            calls = self._calls(3, args, kwargs)
            with undisturbed([self._model]), attributes_kept(self._model):
                record.watch(calls[0], times=False)  # first, so that it has the random state of the program's call
                record.watch(calls[1], counts=False)
                began = time.perf_counter()
                record.time_alone(calls[2])
                short = time.perf_counter() - began < SHORT_S
                for call in self._calls(MORE, args, kwargs) if short else ():
                    record.time_alone(call)
        except Exception:  # noqa: BLE001 (whatever a model raises)
            return False
        self.records.append(record)
        return True

    def _calls(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Callable[[], Any]]:
        """Returns calls that have their own copies of the inputs."""
        inputs = [tree_map(_copied, (args, kwargs)) for _ in range(number)]
        return [partial(self._model, *own, **named) for own, named in inputs]

    def _after(self, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth -= 1
        if self._depth == 0 and self._has_repeated and self._is_on:  # a model may stop its own profile
            self._has_repeated = False
            self._usual.start()


def may_repeat(model: nn.Module) -> bool:
    """Returns whether a model can be called again unnoticed.

    Not if other ranks may take part in its collectives, or profilers, modes or hooks (like those of checkpointing) see
    its work.
    """
    distributed = torch.distributed
    noticed_by: list[Any] = [
        distributed.is_available() and distributed.is_initialized(), torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(), torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch._C._autograd._profiler_enabled(), is_capturing(), _has_hooks(model)]
    return not any(noticed_by)


def _has_hooks(model: nn.Module) -> bool:
    """Returns whether there are hooks other than ours, which are off."""
    return (any(getattr(module, name, ()) for module in model.modules() for name in HOOKS)
            or any(getattr(nn_module, name, ()) for name in GLOBAL_HOOKS))


def _copied(leaf: object) -> Any:
    """Returns a copy that a call may change or consume.

    Raises:
        TypeError: The value is a module or cannot be copied.
    """
    if isinstance(leaf, nn.Module):
        raise TypeError("an argument is a module")
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    return copy.deepcopy(leaf)
