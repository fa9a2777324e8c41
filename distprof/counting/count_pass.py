"""The count pass: FLOPs and bytes of every operator call of a step, summed per module, operator, shapes and phase.

A torch dispatch mode sees each call with the shapes on this rank (a DTensor is unwrapped first). Forward calls are
attributed to the running module, backward calls to the module whose call created the autograd node.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import unwrap
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from distprof import formulas
from distprof.counting.data_flow import DataFlow, are_real, is_torchscript_tracing, is_traced
from distprof.counting.known_calls import KnownCall, KnownCalls, Operator, Shapes, shapes_of, shapes_text
from distprof.counting.opaque_calls import OpaqueCalls, hidden_results, is_on, without
from distprof.counting.step_sums import StepSums, Sums
from distprof.counting.torch_functions import FunctionPass
from distprof.formulas.bytes_moved import size_bytes
from distprof.formulas.composite_operators import CALL_PRODUCTS, admit_mode, dismiss_mode, run_parts
from distprof.model.call_paths import CallPath, LeftCalls, RunningCall, mark_nodes, owner_of_running_node
from distprof.model.compiled import (
    ABOUT_NO_FRAMES,
    can_skip_compiling,
    has_compiler,
    hidden_operators,
    imports_compiler,
    never_compile,
)
from distprof.model.modules import Site
from distprof.model.quiet import QuietAbout
from distprof.model.scopes import Frame, ModuleScopes, in_backward
from distprof.model.tensors import tensors
from distprof.own import lock
from distprof.shape_formulas.operator_call import Cost

NOT_SEEN = "operators inside are not visible; bytes are those of its inputs and outputs"


class _RunningKernel(threading.local):
    kernel = ""


class CountPass(TorchDispatchMode):
    """Counts while it is on; module hooks show to which module the work is attributed."""

    supports_higher_order_operators = True

    def __init__(self, scopes: ModuleScopes, phase: Callable[[], str | None], *, details: bool = False,
                 flow: DataFlow | None = None, are_work: Callable[[Site], bool] = lambda _: False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functions = FunctionPass(self._path_of_function, flow=flow) if details else None
        """Calls of torch functions, recorded only with `details`."""
        self.shapes: dict[Site, tuple[Shapes, Shapes]] = {}
        """Input and output shapes of the first call, only with `details`."""
        self.num_steps = 0
        self.is_real: bool | None = None
        """Whether the model's tensors have data: calls of a trace on fake or meta tensors are then not counted. None:
        unknown yet."""
        self._sums = StepSums(are_work)
        self._calls: dict[tuple[Site | None, Site], int] = defaultdict(int)
        self._are_work = are_work
        self._flow = flow
        self._error: Exception | None = None
        self._retired = False
        self._step_calls: dict[tuple[Site | None, Site], int] = defaultdict(int)
        """(root, module) -> calls in this step. The root is None unless it was called without gradient, which may be
        evaluation: only all steps together show that."""
        self._scopes = scopes
        self._phase = phase
        self._outside = CallPath(None, None)
        self._lock = lock()
        self._running_here = _RunningKernel()
        self._joined: set[Frame] = set()
        """Root calls for which the mode was switched on in another thread of the script."""
        self._thread = 0
        self._has_compiler = False
        self._known = KnownCalls()
        self._quiet = QuietAbout(ABOUT_NO_FRAMES)
        self.opaque: set[str] = set()
        """Names under which calls with hidden work are listed."""
        self._opaque = OpaqueCalls(self._plainly, self._on_opaque_call)
        self._hides_nothing: set[Site] = set()
        self._left = LeftCalls()
        self._computed = 0
        """Number of operators that computed anything, including communication."""
        self._home: list[Frame] = []
        """Running module calls of the thread that started the pass."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False if `never_compile` can keep the compiler away: torch's own way adds two function calls per
        operator."""
        return not can_skip_compiling()

    def start(self) -> None:
        """Switches the mode on for this thread and the threads that autograd starts."""
        self._retired = False
        self._sums.restart_step()  # drops an interrupted step
        self._step_calls.clear()
        self._scopes.add(self)
        self._thread, self._home = threading.get_ident(), self._scopes.frames
        self._has_compiler = has_compiler()  # once, because there are many calls
        self._known = KnownCalls()
        admit_mode(self)
        self._quiet.start()
        self._opaque.start()
        self._switch_on()

    def _switch_on(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]
        if self.functions is not None:
            self.functions.start()

    def stop(self) -> None:
        self._scopes.remove(self)
        self._left.clear()
        self._retired = True
        dismiss_mode(self)
        self._quiet.stop()
        self._opaque.stop()
        if threading.get_ident() == self._thread:
            self._switch_off()  # on another thread it stays on, and does nothing

    def _switch_off(self) -> None:
        if self.functions is not None:
            self.functions.stop()
        depth = torch._C._len_torch_dispatch_stack()
        if not depth or torch._C._get_dispatch_stack_at(depth - 1) is not self:
            # do not pop a mode that the script entered meanwhile
            raise RuntimeError("a torch dispatch mode that the script entered is still on")
        self.__exit__(None, None, None)

    def is_aside(self) -> bool:
        """Returns whether torch has taken the mode off this thread's stack, to query an operator."""
        return not self._retired and threading.get_ident() == self._thread and not is_on(self)

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """A context in which nothing is counted on this thread."""
        with self.functions.aside() if self.functions is not None else nullcontext(), without(self):
            yield

    def next_step(self) -> None:
        """Adds the step that has ended to the sums; an unfinished step is never added."""
        if self._error is not None:
            raise self._error
        if threading.get_ident() != self._thread:
            raise RuntimeError("steps end on different threads, but the counter is bound to one")
        self._sums.next_step()
        for key, calls in self._step_calls.items():
            self._calls[key] += calls
        self._step_calls.clear()
        self._left.clear()
        self.num_steps += 1

    @property
    def calls(self) -> dict[Site, int]:
        """Number of forward calls in all steps that ended, excluding recomputation and evaluation."""
        found: dict[Site, int] = defaultdict(int)
        for (root, site), calls in self._calls.items():
            if root is None or self._are_work(root):
                found[site] += calls
        return found

    @property
    def sums(self) -> Sums:
        """Sums over all steps that ended."""
        return self._sums.by_key()

    def enter(self, frame: Frame) -> None:
        """Begins a module call: extends the call path."""
        outer: RunningCall | None = frame.outer.data.get(self) if frame.outer is not None else None
        if frame.outer is None:
            if self.is_real is None:
                self.is_real = are_real(frame.module.parameters())
            path = self._static_path(frame.site.parent)
            if self._is_elsewhere():
                # a mode is on in one thread only; other threads of the script get it during calls of root modules
                self._joined.add(frame)
                self._switch_on()
        else:
            path = outer.path if outer is not None else self._outside
        frame.data[self] = RunningCall(path.child(frame.site), torch._C._autograd._get_sequence_nr(), outer,
                                       self._computed, is_torchscript_tracing())
        if not (frame.in_backward or frame.repeats_outer) and (
                not frame.evaluation or frame.without_gradient is not None):
            with self._lock:
                self._step_calls[frame.without_gradient if frame.evaluation else None, frame.site] += 1

    def _is_elsewhere(self) -> bool:
        """Returns whether this is another thread of the script, not one that autograd or TorchScript started."""
        return threading.get_ident() != self._thread and not in_backward() and not is_on(self)

    def exit(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """Marks the autograd nodes of the call; records hidden operators and shapes."""
        call: RunningCall | None = frame.data.get(self)
        if call is None:
            return
        with torch._C.DisableTorchFunction():  # otherwise the function pass would record each query of a tensor
            mark_nodes(result, call)
            if result is not None and isinstance(frame.module, torch.jit.ScriptModule):
                for name, calls in hidden_operators(frame.module).items():
                    self._record_hidden(frame, name, calls, tensors((args, kwargs)), tensors(result),
                                        "hidden inside TorchScript; bytes are those of the whole script")
            if result is not None and call.computed == self._computed and frame.site not in self._hides_nothing:
                self._look_for_hidden_work(frame, args, kwargs, result)
            if self.functions is not None and frame.site not in self.shapes:
                self.shapes[frame.site] = shapes_of((args, kwargs)), shapes_of(result)
        if frame.is_root:
            self._left.left(frame)
        if self._joined and frame in self._joined:
            self._joined.remove(frame)
            self._switch_off()

    def _look_for_hidden_work(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any],
                              result: object) -> None:
        found = hidden_results(frame.module, args, kwargs, result)
        if found:
            self._record_hidden(frame, f"opaque::{frame.site.class_name}", 1, tensors((args, kwargs)), found, NOT_SEEN)
        else:
            self._hides_nothing.add(frame.site)  # the search is slow

    def _on_opaque_call(self, label: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        try:
            with torch._C.DisableTorchFunction():
                self._record_hidden(self._scopes.current, label, 1, tensors((args, kwargs)), tensors(result), NOT_SEEN)
        except Exception as error:  # noqa: BLE001 (as in __torch_dispatch__)
            self._error, self._retired = error, True

    def _record_hidden(self, frame: Frame | None, name: str, calls: int, inputs: list[torch.Tensor],
                       outputs: list[torch.Tensor], note: str) -> None:
        """Adds work that dispatch modes do not see as an uncounted call, with the bytes of its inputs and outputs."""
        self.opaque.add(name)
        self._computed += 1
        cost = Cost(calls=calls, read_bytes=sum(map(size_bytes, inputs)), write_bytes=sum(map(size_bytes, outputs)),
                    note=note)
        self._tally(self._known.of(name, shapes_text(inputs), None, cost), frame)

    def _path_of(self, frame: Frame) -> CallPath:
        entry: RunningCall | None = frame.data.get(self)
        return entry.path if entry is not None else self._outside

    def _static_path(self, site: Site | None) -> CallPath:
        # a module called by backward has no calling module: use its parents in the model
        return self._outside if site is None else self._static_path(site.parent).child(site)

    def __torch_dispatch__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if kwargs is None:
            kwargs = {}
        # fake tensors call prim:: for their device, where an exception would end the process
        if self._retired or getattr(func, "namespace", None) == "prim":
            return func(*args, **kwargs)
        if types and any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            # a subclass like DTensor unwraps itself; this mode then gets its parts
            return NotImplemented
        operator = self._known.operators.get(id(func)) or self._known.operator(func, kwargs)
        if operator.has_parts:
            output = self._run_parts(func, args, kwargs)
            if output is not NotImplemented:
                return output
        output = func(*args, **kwargs)
        try:
            self._record(operator, args, kwargs, output)
            if self._flow is not None:
                with self._lock:
                    self._flow.add_operator(func, args, kwargs, output)
        except Exception as error:  # noqa: BLE001 (raised when the step ends; a mode cannot be removed in here)
            self._error, self._retired = error, True
        return output

    def _run_parts(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, here = formulas.name_of(func), self._running_here
        if name not in CALL_PRODUCTS or here.kernel:
            return run_parts(self, func, args, kwargs)
        here.kernel = name
        try:
            return run_parts(self, func, args, kwargs)
        finally:
            here.kernel = ""

    def _record(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        self._computed += operator.computes
        if not operator.is_work or (not self._has_compiler and imports_compiler()):
            return
        frame = self._running_call()
        if self.is_real and (is_traced(args, output) or self._is_traced(frame)):
            return
        self._tally(self._known.call(operator, args, kwargs, output), frame)

    def _running_call(self) -> Frame | None:
        frame = self._scopes.current
        if frame is None and self._phase() is None and not in_backward():
            frame = self._left.running()
        return frame

    def _is_traced(self, frame: Frame | None) -> bool:
        running: RunningCall | None = frame.data.get(self) if frame is not None else None
        return running is not None and running.traced

    def _tally(self, call: KnownCall, frame: Frame | None) -> None:
        """Adds a call to the step, attributed to its module and phase; `frame` is the innermost running module call."""
        path, phase = self._owner_and_phase(frame)
        functions: tuple[str, ...] = ()
        kernel = ""
        if self.functions is not None:
            functions = tuple(self.functions.stack) if phase == "forward" else ()
            kernel = self._running_here.kernel
        self._sums.count((path, call, phase, functions, kernel), frame)

    def _path_of_function(self) -> CallPath:
        frame = self._running_call()
        entry = frame.data.get(self) if frame is not None else None
        return entry.path if entry is not None else self._owner_and_phase(frame)[0]

    def _owner_and_phase(self, frame: Frame | None) -> tuple[CallPath, str]:
        """Returns the module and phase of this thread's current work; `frame` is its innermost running module call."""
        phase = self._phase()
        if phase is not None:  # work inside an optimizer has its own phase
            return self._path_of(frame) if frame is not None else self._outside, phase
        if frame is not None:
            return self._path_of(frame), frame.phase
        if in_backward():
            path = owner_of_running_node()
            maker = self._left.maker_of_running_node() if path is None else None
            return path or (self._path_of(maker) if maker is not None else self._outside), "backward"
        # a thread forked by TorchScript has the mode but no module call: use the innermost one of the home thread
        caller = next(reversed(self._home), None) if threading.get_ident() != self._thread else None
        return (self._path_of(caller), caller.phase) if caller is not None else (self._outside, "forward")


never_compile(unwrap(CountPass.__torch_dispatch__))
