"""Which module is running: global forward hooks create a frame per call and pass it to listeners.

The hooks are balanced under exceptions and activation checkpointing, keep a stack per thread, and are silent
while torch.compile traces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules import module as nn_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from distprof.contract.tables import EVALUATION
from distprof.model.compiled import ABOUT_HOOKS, CompiledCalls, CompileWatch, is_generated, never_compile
from distprof.model.modules import Model, ModuleMap, Site
from distprof.model.quiet import QuietAbout
from distprof.model.tensors import tensors
from distprof.process.accelerators import is_capturing

Guard = Callable[[Callable[..., None]], Callable[..., None]]
"""Wraps a callback that torch runs on threads of the script, so that an error in it does not reach the script."""


class GradientWatch:
    """Observes whether a gradient reaches the results of a model."""

    __slots__ = ("_model", "seen")

    def __init__(self, model: Model) -> None:
        self._model = model
        self.seen = False

    def watch(self, result: object) -> None:
        """Registers hooks for the gradient of these results."""
        for node in {tensor.grad_fn for tensor in tensors(result) if tensor.grad_fn is not None}:
            node.register_prehook(self._on_gradient)

    def _on_gradient(self, _gradients: object) -> None:
        self.seen = self._model.trained = True


class Frame:
    """One running forward call of a module."""

    __slots__ = ("data", "evaluation", "gradient", "in_backward", "learns", "module", "outer", "recompute", "site",
                 "without_gradient")

    def __init__(self, module: nn.Module, site: Site, outer: Frame | None, *, in_backward: bool = False,
                 recompute: bool = False) -> None:
        self.module = module
        self.site = site
        self.outer = outer
        self.evaluation: bool = outer is not None and outer.evaluation
        """True inside a root call without gradient in a job that trains: validation, a teacher, a rollout."""
        self.gradient: GradientWatch | None = outer.gradient if outer is not None else None
        """Observes whether a gradient arrives, if that is still unknown: without one, the call was evaluation."""
        self.without_gradient: Site | None = outer.without_gradient if outer is not None else None
        """The root of a call that may get no gradient: whether that is evaluation can only be decided from all
        steps."""
        self.in_backward = in_backward
        """True if it is called during backward: by activation checkpointing, a custom backward or a hook."""
        self.learns: bool = outer is not None and outer.learns
        """True inside a root call with gradients on, in a job that trains."""
        self.recompute = recompute
        """True if it has already run forward in this step: activation checkpointing repeats the call."""
        self.data: dict[object, Any] = {}
        """Data of listeners between enter and exit; each uses itself as the key."""

    @property
    def phase(self) -> str:
        """forward, evaluation, recompute, or backward for a module that runs only in backward."""
        if self.in_backward:
            return "recompute" if self.recompute else "backward"
        return EVALUATION if self.evaluation else "forward"

    @property
    def is_root(self) -> bool:
        """True for the outermost call of a root module in forward."""
        return self.outer is None and not self.in_backward

    @property
    def repeats_outer(self) -> bool:
        """True if a call of the same site is already running: that of a wrapper, or a recursion."""
        outer = self.outer
        while outer is not None:
            if outer.site is self.site:
                return True
            outer = outer.outer
        return False


class Listener(Protocol):
    """An instrument that is called when a module is entered and left."""

    def enter(self, frame: Frame) -> None: ...

    def exit(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None: ...


graph_task = torch._C._current_graph_task_id
NO_GRAPH_TASK = -1


class _Stack(threading.local):
    def __init__(self, by_thread: dict[int, list[Frame]]) -> None:
        self.frames: list[Frame] = []
        by_thread[threading.get_ident()] = self.frames


def in_backward() -> bool:
    """Returns whether this thread runs a backward pass."""
    return graph_task() != NO_GRAPH_TASK


class ModuleScopes:
    """The global module hooks, installed only while some instrument listens."""

    def __init__(self, modules: ModuleMap, guard: Guard,
                 before_root: Callable[[Frame], None], *, one_thread: bool = False,
                 judge: Callable[[Frame], None] = lambda _: None) -> None:
        """Begins without listeners.

        Args:
            modules: Gets every root module that is called.
            guard: Wraps the hooks.
            before_root: Called before each outermost call.
            one_thread: Whether to ignore modules that other threads call, unless `modules` already has them.
            judge: Called after `before_root`; decides whether the call is evaluation.
        """
        self.modules = modules
        self._judge = judge
        self._one_thread = one_thread
        self._thread = 0
        self.left_out: Collection[int] = ()
        """Native ids of threads whose calls are ignored."""
        self.compilations = 0
        """Number of compilations by torch.compile while there were listeners."""
        self._before_root = before_root
        self._by_thread: dict[int, list[Frame]] = {}
        self._stack = _Stack(self._by_thread)
        self._listeners: list[Listener] = []
        self._listeners_inside: list[Listener] = []
        """Listeners that are also called for calls other than the outermost ones."""
        self._ran: set[Site] = set()
        """Modules that ran forward in this step."""
        self._handles: list[Any] = []
        self.failed_in: Site | None = None
        """The innermost module whose forward call the last exception left."""
        self._enter, self._exit = guard(self._on_enter), guard(self._on_exit)
        self._compiled = CompiledCalls(self._enter, self._exit)
        self._quiet = QuietAbout(ABOUT_HOOKS)
        self._compile_watch = CompileWatch(self._on_compile, self._hook)
        never_compile(type(self)._on_enter, type(self)._on_exit)

    def add(self, listener: Listener, *, roots_only: bool = False) -> None:
        """Adds a listener, of all calls or only of outermost calls in forward; the first one installs the hooks."""
        self._listeners.append(listener)
        if not roots_only:
            self._listeners_inside.append(listener)
        if not self._handles:
            self._thread = threading.get_ident()
            self._ran.clear()
            self._hook()
            self._quiet.start()
            self._compiled.add(self.modules.sites())
            self._compile_watch.start()

    def remove(self, listener: Listener) -> None:
        """Removes a listener; the last one removes the hooks."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        if listener in self._listeners_inside:
            self._listeners_inside.remove(listener)
        if not self._listeners:
            self._unhook()
            self._quiet.stop()
            self._compile_watch.stop()
            self._compiled.remove()
            self._by_thread = {}
            self._stack = _Stack(self._by_thread)

    def begin_inside(self, module: nn.Module) -> None:
        """Enters a module for a listener that was added during its call, before its forward, as if it had been there
        before."""
        self._enter(module, ())

    def next_step(self) -> None:
        """Begins a new step: what runs in a later backward pass repeats nothing of the previous one."""
        self._ran.clear()

    @property
    def current(self) -> Frame | None:
        """The innermost running call on this thread."""
        frames = self._stack.frames
        return frames[-1] if frames else None

    def current_on(self, thread: int) -> Frame | None:
        """Returns the innermost running call on another thread, by its `ident`."""
        frames = self._by_thread.get(thread)
        return frames[-1] if frames else None

    @property
    def frames(self) -> list[Frame]:
        """The running calls on this thread, outermost first; this list keeps changing."""
        return self._stack.frames

    def _hook(self) -> None:
        if self._listeners and not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._exit, with_kwargs=True, always_call=True),
            ]

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
            # torch 2.13 forgets to remove this, and would believe for ever that there are hooks
            nn_module._global_forward_hooks_with_kwargs.pop(handle.id, None)
        self._handles = []

    def _on_compile(self) -> None:
        self.compilations += 1
        self._unhook()

    def _on_enter(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        if is_compiling() or is_generated(module):
            return
        frames = self._stack.frames
        if frames:
            outer = frames[-1]
            site = self.modules.find_called(module, outer.site) or self.modules.adopt(module, outer.site)
        elif self._is_foreign(module) or is_capturing() or (
                self.left_out and threading.get_native_id() in self.left_out):
            return
        else:
            outer, site = None, self._root_site(module)
        if graph_task() == NO_GRAPH_TASK:
            frame = Frame(module, site, outer)
            self._ran.add(site)
        else:
            repeats = outer.recompute if outer is not None and outer.in_backward else site in self._ran
            frame = Frame(module, site, outer, in_backward=True, recompute=repeats)
        listeners = self._listeners_inside
        if frame.is_root:
            self.failed_in = None
            self._compile_watch.start()
            self._before_root(frame)  # may switch listeners, so it comes first
            self._judge(frame)
            listeners = self._listeners
        frames.append(frame)
        for listener in listeners:
            listener.enter(frame)

    def _is_foreign(self, module: nn.Module) -> bool:
        return (self._one_thread and threading.get_ident() != self._thread and not in_backward()
                and self.modules.find(module) is None)

    def _root_site(self, module: nn.Module) -> Site:
        site = self.modules.find(module)
        if site is None:
            site = self.modules.add_root(module)
            self._compiled.add(site.model.sites.values())
        return site

    def _on_exit(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        # after an exception, torch omits the kwargs even with with_kwargs
        returned_well = len(rest) == 2
        kwargs, result = rest if returned_well else ({}, *rest)
        frames = self._stack.frames
        if not frames or is_compiling():
            return
        if frames[-1].module is not module and not any(frame.module is module for frame in frames):
            return
        while frames:
            frame = frames.pop()
            returned = frame.module is module
            if frame.gradient is not None and frame.is_root and returned:
                frame.gradient.watch(result)
            if not returned_well and self.failed_in is None:
                self.failed_in = frame.site
            for listener in reversed(self._listeners if frame.is_root else self._listeners_inside):
                listener.exit(frame, args if returned else (), kwargs, result if returned else None)
            if returned:
                return
