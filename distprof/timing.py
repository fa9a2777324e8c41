"""The time pass: module calls and gradients come in as marks, forward and backward time per module and step go out.

Backward is measured by hooks in front of autograd nodes: the node of an output starts a module's backward, the
node of an input ends it. The graph stays as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Variable

from distprof.modules import Site
from distprof.scopes import Frame, ModuleScopes
from distprof.stopwatch import HostStopwatch, Stopwatch, stopwatch
from distprof.tensors import tensors

Guard = Callable[[Callable[..., None]], Callable[..., None]]


@dataclass(slots=True)
class Span:
    """A start and an end mark."""

    start: Any = None
    end: Any = None


@dataclass(slots=True)
class BackwardRun(Span):
    """One pass of the autograd engine."""

    computed: Any = None
    """When the last node had run; until `end` others, like DDP, may still wait for their reductions."""


@dataclass(slots=True)
class BackwardCall(Span):
    """The backward of one forward call."""

    timer: TimePass | None = None
    site: Site | None = None
    step: int = 0
    run: BackwardRun | None = None

    def starts(self, *_: Any) -> None:
        """In front of the node of an output: the gradient arrives."""
        if self.timer is not None and self.start is None:
            self.timer.backward_starts(self)

    def ends(self, *_: Any) -> None:
        """In front of the node of an input: the last gradient leaves."""
        if self.timer is not None:
            self.timer.backward_ends(self)


@dataclass(slots=True)
class ForwardCall(Span):
    """One forward call."""

    site: Site | None = None
    step: int = 0


@dataclass(slots=True)
class StepMarks:
    """What a step is split by."""

    start: Any
    forward: list[ForwardCall] = field(default_factory=list)
    backward: list[BackwardRun] = field(default_factory=list)
    optimizer: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """Parts of a step in ns, None for one that did not happen; they need not add up to it."""

    before_forward_ns: int | None
    fwd_ns: int | None
    bwd_ns: int | None
    optimizer_ns: int | None


class TimePass:
    """Times modules and the parts of steps."""

    def __init__(self, scopes: ModuleScopes, guard: Guard) -> None:
        self.num_steps = 0
        self._scopes = scopes
        self._guard = guard
        self._watch: Stopwatch = HostStopwatch()
        self._forward: list[ForwardCall] = []
        self._backward: list[BackwardCall] = []
        self._steps: list[StepMarks] = []
        self._runs: dict[int, BackwardRun] = {}
        self._on = False
        self.backward_starts = guard(self._on_backward_start)
        self.backward_ends = guard(self._on_backward_end)

    def start(self) -> None:
        """Begins to listen to the modules and opens the first step."""
        self._watch = stopwatch()
        self._on = True
        self._scopes.add(self)
        self._steps.append(StepMarks(self._watch.mark()))

    def stop(self) -> None:
        """Stops listening and waits for the device."""
        self._on = False
        self._scopes.remove(self)
        self._watch.settle()

    def next_step(self) -> None:
        """Ends a step and begins another; one that never ends is in no result."""
        self.num_steps += 1
        self._steps.append(StepMarks(self._watch.mark()))
        self._runs.clear()

    def restart_step(self) -> None:
        """Lets the running step begin now."""
        self._steps[-1].start = self._watch.mark()

    def optimizer_begins(self) -> None:
        """Called in front of every optimizer.step()."""
        self._steps[-1].optimizer.append(Span(self._watch.mark()))

    def optimizer_ends(self) -> None:
        """Called behind it."""
        if self._steps[-1].optimizer:
            self._steps[-1].optimizer[-1].end = self._watch.mark()

    def enter(self, frame: Frame) -> None:
        """Starts the clock of a forward call."""
        frame.data[self] = ForwardCall(site=frame.site, step=self.num_steps, start=self._watch.mark())

    def exit(self, frame: Frame, args: Any, kwargs: Any, result: Any) -> None:
        """Stops it, and puts hooks where the call's backward starts and ends."""
        call: ForwardCall | None = frame.data.get(self)
        if call is None or frame.recompute or frame.repeats_outer:
            return
        call.end = self._watch.mark()
        self._forward.append(call)
        if frame.is_root:
            self._steps[-1].forward.append(call)
        self._watch_backward(frame, args, kwargs, result)

    def split(self, index: int) -> StepSplit:
        """The parts of the step with this number in the pass; call after `stop`."""
        step = self._steps[index]
        first = min((self._watch.resolve(span.start) for span in step.forward), default=None)
        return StepSplit(
            before_forward_ns=None if first is None else first - self._watch.resolve(step.start),
            fwd_ns=self._total(step.forward) if step.forward else None,
            bwd_ns=self._total(step.backward) if step.backward else None,
            optimizer_ns=self._total(step.optimizer) if step.optimizer else None,
        )

    def calls(self) -> dict[Site, int]:
        """Forward calls by module, over all steps that ended."""
        return Counter(call.site for call in self._forward if call.site is not None and call.step < self.num_steps)

    def forward_ns(self) -> dict[Site, int]:
        """Time in forward calls by module, over all steps that ended; call after `stop`."""
        total: dict[Site, int] = defaultdict(int)
        for call in self._forward:
            if call.site is not None and call.step < self.num_steps:
                total[call.site] += self._total([call])
        return total

    def backward_ns(self) -> dict[Site, int]:
        """Time from output gradient to input gradient by module, likewise."""
        total: dict[Site, int] = defaultdict(int)
        for call in self._backward:
            if call.site is not None and call.run is not None and call.step < self.num_steps:
                # where no gradient left the module towards an input it was busy until backward ended
                end = call.end if call.end is not None else call.run.computed
                total[call.site] += self._total([Span(call.start, end)])
        return total

    def _total(self, spans: Iterable[Span]) -> int:
        resolve = self._watch.resolve
        return sum(resolve(span.end) - resolve(span.start) for span in spans
                   if span.start is not None and span.end is not None)

    def _watch_backward(self, frame: Frame, args: Any, kwargs: Any, result: Any) -> None:
        outputs = {tensor.grad_fn for tensor in tensors(result)} - {None}
        if not outputs:
            return
        call = BackwardCall(timer=self, site=frame.site, step=self.num_steps)
        self._backward.append(call)
        inputs = {tensor.grad_fn for tensor in (*tensors(args), *tensors(kwargs))} - {None}
        for node in outputs:
            node.register_prehook(call.starts)  # type: ignore[union-attr]
        for node in inputs:
            node.register_prehook(call.ends)  # type: ignore[union-attr]
        if not inputs and next(frame.module.children(), None) is None:
            for node in outputs:
                node.register_hook(call.ends)  # type: ignore[union-attr]

    def _on_backward_start(self, call: BackwardCall) -> None:
        if self._on:
            call.run = self._run()
            call.start = self._watch.mark()

    def _on_backward_end(self, call: BackwardCall) -> None:
        if self._on:
            call.end = self._watch.mark()

    def _run(self) -> BackwardRun:
        task = torch._C._current_graph_task_id()
        run = self._runs.get(task)
        if run is None:
            run = self._runs[task] = BackwardRun(self._watch.mark())
            if all(other.end is not None for other in self._steps[-1].backward):
                self._steps[-1].backward.append(run)  # else it runs inside another: reentrant checkpointing
            Variable._execution_engine.queue_callback(self._guard(lambda: self._computed(run)))
        return run

    def _computed(self, run: BackwardRun) -> None:
        run.computed = run.end = self._watch.mark()
        # queued only now, it runs after those of DDP and its like
        Variable._execution_engine.queue_callback(self._guard(lambda: self._ended(run)))

    def _ended(self, run: BackwardRun) -> None:
        run.end = self._watch.mark()
