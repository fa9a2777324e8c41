"""Recording together with torch.compile and TorchScript: graphs do not change, and none of our code is compiled.

Keeps functions from being compiled, runs compiled modules eagerly, notices when torch compiles, observes calls of
modules that were compiled in place, and finds the work of scripts that bypasses torch's dispatcher.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from distprof.model.modules import Site

Announce = Callable[..., None]
HIDDEN = ("mkldnn", "onednn", "fusiongroup", "tensorexprgroup")
"""Occur in names of TorchScript operators that no dispatch mode sees: oneDNN convolutions, fused groups."""
CONSTANTS = ("prim::ConstantMKLDNNTensor",)
ABOUT_HOOKS = r"Using `torch\.compile\(module\)` when there are global"
"""Beginning of torch's warning about our hooks, which appears at every call of a compiled module."""
ABOUT_NO_FRAMES = r"torch\.compile with fullgraph=True found no compiled frames"
"""Beginning of torch 2.12's warning about flex attention under a dispatch mode."""


def can_skip_compiling() -> bool:
    """Returns whether this torch can keep a function from being compiled."""
    return hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy")


def never_compile(*functions: Callable[..., Any]) -> None:
    """Keeps functions that compiled code may call, and what they call, from being compiled themselves."""
    try:
        dynamo = torch._C._dynamo.eval_frame
        skip = dynamo._FrameAction.SKIP
        for function in functions:
            dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
    except AttributeError:
        return  # harmless: a torch without this compiles a little more


def has_compiler() -> bool:
    """Returns whether the compiler is completely imported."""
    return "torch._dynamo" in sys.modules and not imports_compiler()


def imports_compiler() -> bool:
    """Returns whether the compiler is being imported, for example by the first call of DDP: it then tries operators on
    tensors of its own."""
    spec = getattr(sys.modules.get("torch._dynamo"), "__spec__", None)
    return getattr(spec, "_initializing", False)


def is_generated(module: nn.Module) -> bool:
    """Returns whether a module is a graph that torch.compile created and calls as a module; the script has no such
    module."""
    return isinstance(module, GraphModule) and "dynamo_flat_name_to_original_fqn" in module.meta


class ForcedEager:
    """Runs compiled code eagerly while it is on; compiled graphs are kept.

    A stance that the script sets meanwhile takes effect at `stop`.
    """

    def __init__(self) -> None:
        self._set: Callable[[Any], Any] | None = None
        """Sets a stance and returns the previous one: torch's function, or that of a `ForcedEager` that was already
        on."""
        self._wanted: Any = None
        """The stance that the script has chosen."""
        self._is_on = False
        self._ours = self._note  # a single object, to recognise it in torch's module

    def start(self) -> None:
        """Switches compiled code off; has no effect if the compiler was never loaded."""
        # importing the compiler takes seconds, usually for nothing; flex attention loads it anyway
        if "torch._dynamo" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules:
            room = import_module("torch._dynamo.decorators")
            self._set, self._is_on = room._set_stance, True
            self._wanted = self._set(import_module("torch._dynamo.eval_frame").DynamoStance("force_eager"))
            setattr(room, "_set_stance", self._ours)  # noqa: B010 (called by the class `set_stance`)

    def stop(self) -> None:
        """Sets the stance that the script has chosen."""
        if self._set is None or not self._is_on:
            return
        room = import_module("torch._dynamo.decorators")
        self._is_on = False
        if room._set_stance is self._ours:
            setattr(room, "_set_stance", self._set)  # noqa: B010
        self._set(self._wanted)

    def _note(self, stance: object) -> Any:
        """Replaces torch's function for the script: remembers the stance and returns the previous one."""
        if not self._is_on:
            assert self._set is not None
            return self._set(stance)
        before, self._wanted = self._wanted, stance
        return before


class CompileWatch:
    """Calls back when torch compiles, so that hooks can be removed: a graph traced with hooks would be recompiled
    without them."""

    def __init__(self, begins: Callable[[], None], ends: Callable[[], None]) -> None:
        # a single object each, to recognise them in torch's lists
        self._begins: Callable[[Any], None] = lambda _: begins()
        self._ends: Callable[[Any], None] = lambda _: ends()
        self.heard: list[Any] = []
        """torch's list of callbacks at the start of a compilation. Empty if the compiler is not loaded or was reset:
        then `start` must be called."""

    def start(self) -> None:
        """Begins to listen if the compiler is loaded. Call it often: the compiler may be loaded or reset at any
        time."""
        handler = self._handler()
        if handler is not None and self._begins not in handler.start_callbacks:
            handler.register_start_callback(self._begins)
            handler.register_end_callback(self._ends)
            self.heard = handler.start_callbacks

    def stop(self) -> None:
        handler = self._handler()
        if handler is not None and self._begins in handler.start_callbacks:
            handler.remove_start_callback(self._begins)
            handler.remove_end_callback(self._ends)
        self.heard = []

    @staticmethod
    def _handler() -> Any:
        return getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)


class CompiledCalls:
    """Announces calls of modules that were compiled in place, for which torch calls no hooks."""

    def __init__(self, enter: Announce, leave: Announce) -> None:
        self._enter = enter
        self._leave = leave
        self._wrapped: list[tuple[nn.Module, Any, Any]] = []

    def add(self, sites: Iterable[Site]) -> None:
        """Wraps the compiled calls of modules; graphs of which they are part do not change."""
        known = {id(module) for module, _, _ in self._wrapped}
        for site in sites:
            module = site.module()
            if module is None or id(module) in known:
                continue
            compiled = module._compiled_call_impl
            if compiled is not None:
                wrapper = self._announced(module, compiled)
                module._compiled_call_impl = wrapper
                self._wrapped.append((module, compiled, wrapper))

    def remove(self) -> None:
        """Restores the compiled calls, except of modules that the script has compiled again."""
        for module, compiled, wrapper in self._wrapped:
            if module._compiled_call_impl is wrapper:
                module._compiled_call_impl = compiled
        self._wrapped.clear()

    def _announced(self, module: nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
        def announced(*args: Any, **kwargs: Any) -> Any:
            self._enter(module, args)
            result = None
            try:
                result = compiled(*args, **kwargs)
            finally:
                self._leave(module, args, kwargs, result)
            return result

        return announced


def hidden_operators(module: nn.Module) -> Counter[str]:
    """Returns operators that bypassed the dispatcher in a TorchScript module that has just returned, with their numbers
    in its graph."""
    if not isinstance(module, torch.jit.ScriptModule):
        return Counter()
    jit: Any = torch.jit
    graph = jit.last_executed_optimized_graph()  # on this thread
    return Counter(name for name in _names(graph) if _is_hidden(name)) if graph is not None else Counter()


def _is_hidden(name: str) -> bool:
    return name.startswith("prim::") and name not in CONSTANTS and any(part in name.lower() for part in HIDDEN)


def _names(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _names(inner)
        if node.kind().startswith("prim::DifferentiableGraph"):
            yield from _names(node.g("Subgraph"))
