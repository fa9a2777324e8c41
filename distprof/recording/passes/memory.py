"""The memory pass: the profiler's timeline with every allocation, and the tensors that the script held meanwhile.

Held tensors are parameters, buffers, gradients, optimizer state and inputs; they are identified by their storage.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from distprof.contract.paths import ENDED_EARLY, MEMORY_JSON
from distprof.contract.tables import TENSORS, USES, TableRow
from distprof.model.modules import ModuleMap
from distprof.model.scopes import Frame
from distprof.model.tensors import dtype_name, tensors
from distprof.own import time
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder
from distprof.recording.steps.optimizers import live_optimizers
from distprof.recording.tensor_uses import MOST_EVENTS, tensor_uses
from distprof.recording.tracing.profiler_room import VARIABLE, ProfilerRoom
from distprof.recording.tracing.timeline import Timeline
from distprof.units import size

Place = tuple[str | None, str | None]
"""Module path and tensor name."""


class HeldTensors:
    """Rows of tensors.parquet; it listens to module calls to see the inputs."""

    def __init__(self, modules: ModuleMap) -> None:
        self.rows: list[TableRow] = []
        self._modules = modules
        self._optimizers: list[weakref.ref[Optimizer]] = []

    def start(self) -> None:
        """Finds the optimizers and records the tensors that are held now."""
        self._optimizers = [weakref.ref(optimizer) for optimizer in live_optimizers()]  # finding them takes 0.1 s
        self.look()

    def look(self) -> None:
        """Records the tensors that are held now."""
        now, places = time.time_ns(), dict[int, Place]()
        for path, name, tensor, category in self._of_modules():
            self._add(now, tensor, category, (path, name))
            if category == "parameter":
                places[id(tensor)] = path, name
                self._add(now, tensor.grad, "gradient", (path, name))
        for optimizer in self._optimizers:
            for owner, state in getattr(optimizer(), "state", {}).items():
                self._add_state(now, state, places.get(id(owner), (None, None)))

    def _of_modules(self) -> Iterator[tuple[str, str, torch.Tensor, str]]:
        for site in self._modules.sites():
            module = site.module()
            if isinstance(module, nn.Module):
                for category, held in (("parameter", module._parameters), ("buffer", module._buffers)):
                    yield from ((site.path, name, tensor, category) for name, tensor in held.items()
                                if tensor is not None)

    def _add_state(self, now: int, state: object, place: Place) -> None:
        path, name = place
        for key, value in (state.items() if isinstance(state, dict) else ()):
            if isinstance(value, torch.Tensor):
                self._add(now, value, "optimizer_state", (path, f"{name}.{key}" if name else str(key)))

    def enter(self, frame: Frame) -> None:
        """Does nothing: a call's inputs are passed when it returns."""

    def exit(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], _result: object) -> None:
        """Records the inputs of a root module."""
        if frame.is_root:
            now = time.time_ns()
            for tensor in tensors((args, kwargs)):
                self._add(now, tensor, "input", (frame.site.path, None))

    def _add(self, now: int, tensor: torch.Tensor | None, category: str, place: Place) -> None:
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor; to_local() would be an operator
        storage = _storage(local)
        if local is not None and storage is not None:
            self.rows.append({
                "time_ns": now, "device": str(local.device), "address": storage[0], "size_bytes": storage[1],
                "category": category, "module_path": place[0], "name": place[1],
                "shape": json.dumps(list(local.shape)), "dtype": dtype_name(local.dtype)})


def _storage(tensor: torch.Tensor | None) -> tuple[int, int] | None:
    """Returns address and bytes; None for a tensor without memory of its own."""
    if tensor is None:
        return None
    try:
        storage = tensor.untyped_storage()
        return (storage.data_ptr(), storage.nbytes()) if storage.nbytes() and storage.data_ptr() else None
    except (RuntimeError, NotImplementedError):  # sparse, lazy, fake
        return None


class MemorySteps(Pass):
    """Steps in which the profiler records allocations."""

    name = "memory"
    slowed_by_compilation = True
    lost_elsewhere = "the timeline of allocations is lost: only the thread that started it can end it"

    def __init__(self, context: PassContext) -> None:
        self._scopes, self._note, self._step = context.scopes, context.note, context.step
        self._ended: dict[str, Any] = {}
        """Added to the trace's tags if the pass ended early."""
        self._timeline = Timeline(context.scopes, context.sessions, context.note,
                                  lambda: context.tags() | self._ended, memory=True)
        self._works = context.sessions.works
        self._held = HeldTensors(context.scopes.modules)
        self._room = ProfilerRoom()

    def start(self) -> None:
        self._held.start()
        self._room.start()
        self._timeline.start()
        self._works.watch()
        self._scopes.add(self._held)
        self._scopes.add(self)

    def stop(self) -> None:
        self._scopes.remove(self)
        self._scopes.remove(self._held)
        self._works.stop_watching()
        self._timeline.stop()

    def enter(self, frame: Frame) -> None:
        """Ends the pass early if the profiler's records take too much memory."""
        if self._timeline.recording and self._room.is_full_now_and_then():
            self._end_early(self._step())

    def exit(self, frame: Frame, _args: tuple[Any, ...], _kwargs: dict[str, Any], _result: object) -> None:
        """Does nothing."""

    def _end_early(self, step: int) -> None:
        taken, most = self._room.taken_bytes, self._room.most_bytes
        self._ended = {ENDED_EARLY: {"step": step, "taken_bytes": taken, "most_bytes": most}}
        self._timeline.end()
        self._note(f"the memory pass stopped in step {step}: its records would take {size(taken)}, and the limit is "
                   f"{size(most)}. Later allocations and frees are unknown. Fewer steps (memory=1) take less; "
                   f"{VARIABLE}={size(2 * taken).replace(' ', '')} allows more")

    def _look(self) -> None:
        if self._timeline.recording:
            self._held.look()

    def next_step(self) -> None:
        self._look()
        if self._timeline.recording and self._room.is_full():
            self._end_early(self._step())

    def optimizer_begins(self) -> None:
        """Records held tensors while gradients are complete; some scripts drop them before the step ends."""
        self._look()

    def closure_begins(self) -> None:
        self._timeline.closure_begins()

    def closure_ends(self) -> None:
        self._timeline.closure_ends()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        is_due = ended and not elsewhere and not self._timeline.is_written
        uses = self._uses() if is_due else []
        own = [step for step in steps if step["pass"] == self.name]
        if is_due and self._timeline.save(folder.path / MEMORY_JSON, own):
            folder.files[MEMORY_JSON] = None
            folder.write_rows(TENSORS, self._held.rows)
            if uses:
                folder.write_rows(USES, uses)

    def _uses(self) -> list[TableRow]:
        try:
            found = tensor_uses(self._timeline.events())
        except (AttributeError, RuntimeError, TypeError) as error:  # torch guarantees nothing about its own events
            self._note(f"this torch does not report when allocations were last used: {error}")
            return []
        if found is None:
            self._note(f"the memory pass recorded more than {MOST_EVENTS} events, so last uses of allocations were not "
                       "computed. Fewer steps (memory=1) take less")
        return found or []
