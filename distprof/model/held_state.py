"""Saves and restores the state of modules other than parameters and buffers: objects stay, their content is restored.

State is found through attributes, containers, closures, bound methods and helper objects, but not through classes,
globals, loggers and objects of the compiler.
"""

from __future__ import annotations

import array
import enum
import functools
import io
import logging
import operator
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from distprof.model.held_tensors import Undo, undo_of

MOST = 100_000
"""A model with more mutable objects than this cannot be restored."""
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device,
                   torch.Size, torch.layout})
IGNORED = (type, types.ModuleType, enum.Enum, logging.Logger, logging.Handler, nn.Parameter,
           LazyModuleMixin)
"""Not followed. A logger refers to all others; copies of parameters would double the memory of the model; lazy modules
change their class."""
FOREIGN = ("torch._", "torch.fx", "torch.distributed", "torch.jit", "distprof.")
"""Beginnings of names of Python modules whose objects and functions do not belong to the model."""
HOOKS = "_hooks"
"""End of the names of module attributes that contain hooks."""
SEQUENCES = (list, deque, bytearray, array.array)


class CannotRestoreError(Exception):
    """A model contains something that cannot be restored, like an iterator."""


@contextmanager
def attributes_kept(model: nn.Module, *, strict: bool = True) -> Iterator[None]:
    """Restores the attributes of a model's modules and all objects reachable from them.

    Parameters, and buffers of these modules, are not restored.

    Args:
        model: The model that may be called inside.
        strict: Whether to fail before anything is called if something cannot be restored; otherwise it keeps its
            changes.

    Raises:
        CannotRestoreError: `strict`, and the model contains such an object.
    """
    modules = list(model.modules())
    with _no_modes():
        undo = _Found(buffer for module in modules for buffer in module._buffers.values()).undo(modules, strict=strict)
    try:
        yield
    finally:
        with _no_modes():
            for one in reversed(undo):
                one()


@contextmanager
def _no_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class _Found:
    """A walk over all reachable objects."""

    def __init__(self, others: Iterable[Any]) -> None:
        self._others = list(others)  # alive, so that ids stay valid
        self._seen = set(map(id, self._others))
        self._alive = list[Any]()
        self._waiting = list[Any]()

    def undo(self, roots: Iterable[Any], *, strict: bool) -> list[Undo]:
        """Returns functions that restore each reachable object."""
        found = list[Undo]()
        self._add(roots)
        while self._waiting:
            value = self._waiting.pop()
            try:
                found += self._visited(value)
            except Exception as error:  # an object of the user may raise anything
                if strict:
                    raise CannotRestoreError(
                        f"the model holds a {type(value).__name__}, which cannot be put back: {error}") from error
        return found

    def _add(self, values: Iterable[Any]) -> None:
        for value in values:
            if type(value) in ATOMS or id(value) in self._seen or isinstance(value, IGNORED):
                continue
            self._seen.add(id(value))
            self._alive.append(value)
            if not _module_of(value).startswith(FOREIGN):
                self._waiting.append(value)
        if len(self._alive) > MOST:
            self._waiting.clear()
            raise CannotRestoreError(f"the model holds more than {MOST} objects")

    def _visited(self, value: object) -> list[Undo]:
        """Returns functions that restore the value itself; the objects in it are visited later."""
        if isinstance(value, torch.Tensor):
            return [] if is_lazy(value) or value.is_meta else [undo_of(value)]
        if (known := _state(value)) is not None:
            return [known]
        return [*self._content(value), *self._named(value)]

    def _content(self, value: object) -> list[Undo]:
        if isinstance(value, dict):
            before: Any = dict(value)
            self._add((*before, *before.values()))
            return [functools.partial(_restore_dict, value, before)]
        if isinstance(value, set):
            self._add(value)
            return [functools.partial(_restore_set, value, set(value))]
        if isinstance(value, SEQUENCES):
            before = list(value)
            self._add(before)
            return [functools.partial(_restore_sequence, value, before)]
        if isinstance(value, types.CellType):
            return self._cell(value)
        self._add(_parts(value))
        return []

    def _cell(self, cell: types.CellType) -> list[Undo]:
        try:
            before = cell.cell_contents
        except ValueError:  # still empty
            return []
        self._add([before])
        return [functools.partial(setattr, cell, "cell_contents", before)]

    def _named(self, value: object) -> list[Undo]:
        """Returns functions that restore attributes, including those in slots."""
        found, names = list[Undo](), getattr(value, "__dict__", None)
        if isinstance(names, dict):
            before = dict(names)
            hooks = [held for name, held in names.items() if name.endswith(HOOKS) and isinstance(held, dict)]
            self._seen.update(map(id, hooks))  # state of hooks is not part of the model
            self._add(before.values())
            found += [functools.partial(_restore_dict, one, dict(one)) for one in (names, *hooks)]
        for slot in _slots(type(value)):
            if (held := _get(slot, value)) is not _NOTHING:
                self._add([held])
            found.append(functools.partial(_restore_slot, slot, value, held))
        return found


_NOTHING = object()


def _module_of(value: object) -> str:
    own = value if isinstance(value, types.FunctionType) else type(value)
    name = getattr(own, "__module__", "")
    return name if isinstance(name, str) and not isinstance(value, (torch.Tensor, torch.Generator, nn.Module)) else ""


def _parts(value: object) -> Iterable[Any]:
    """Returns what an object contains and cannot be replaced in it."""
    if isinstance(value, (tuple, frozenset)):
        return value
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, types.BuiltinFunctionType):
        return (value.__self__,)
    if isinstance(value, types.FunctionType):
        return *(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__
    if isinstance(value, io.IOBase) or (hasattr(type(value), "__next__") and not hasattr(value, "__dict__")):
        raise CannotRestoreError("it can only go on")
    return ()


def _slots(kind: type) -> list[types.MemberDescriptorType]:
    return [member for one in kind.__mro__ if "__slots__" in vars(one)
            for member in vars(one).values() if isinstance(member, types.MemberDescriptorType)]


def _get(slot: types.MemberDescriptorType, value: object) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _NOTHING


def _state(value: object) -> Undo | None:
    """Returns a function that restores an object with a state of its own, like a random generator; None for others."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Generator):
        return functools.partial(_restore_generator, value, value.get_state())
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray):
        return functools.partial(numpy.copyto, value, value.copy()) if value.flags.writeable else _nothing
    if isinstance(value, (numpy.random.Generator, numpy.random.RandomState)):
        bits = value.bit_generator if isinstance(value, numpy.random.Generator) else value._bit_generator
        return functools.partial(setattr, bits, "state", bits.state)
    return None


def _restore_generator(generator: torch.Generator, before: torch.Tensor) -> None:
    generator.set_state(before)


def _nothing() -> None:
    """Restores an object that cannot change."""


def _restore_dict(holder: dict[Any, Any], before: dict[Any, Any]) -> None:
    if _same(holder, before) and _same(holder.values(), before.values()):
        return
    # not with methods of a subclass; but an OrderedDict keeps its own order
    base: Any = OrderedDict if isinstance(holder, OrderedDict) else dict
    for name in [name for name in holder if name not in before]:
        base.pop(holder, name)
    if not _same(holder, before):
        base.clear(holder)
    for name, value in before.items():
        base.__setitem__(holder, name, value)


def _restore_sequence(holder: Any, before: Any) -> None:
    if _same(holder, before):
        return
    if isinstance(holder, list):
        list.__setitem__(holder, slice(None), before)
        return
    if isinstance(holder, deque):
        deque.clear(holder)
        deque.extend(holder, before)
    else:
        holder[:] = type(holder)(holder.typecode, before) if isinstance(holder, array.array) else before


def _restore_set(holder: set[Any], before: set[Any]) -> None:
    if holder != before:
        set.clear(holder)
        set.update(holder, before)


def _restore_slot(slot: types.MemberDescriptorType, value: object, before: object) -> None:
    if _get(slot, value) is before:
        return
    if before is _NOTHING:
        slot.__delete__(value)
    else:
        slot.__set__(value, before)


def _same(some: Any, others: Any) -> bool:
    """Returns whether these are the same objects; `==` might compare tensors."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
