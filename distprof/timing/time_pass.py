"""The time pass: time per module and per part of a step.

Forward, backward and recomputation are measured alike: a mark is taken whenever another module begins to run, so that
self times add up. Marks are resolved to times only at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch.autograd import Variable

from distprof.model.modules import Site
from distprof.model.scopes import Frame, Guard, ModuleScopes, in_backward
from distprof.model.tensors import tensors
from distprof.timing.latency import Chain, Latency, Share, latencies
from distprof.timing.stopwatch import Stopwatch, stopwatch
from distprof.timing.thread_tapes import NO_TASK, Tape, Tapes, hook_backward

sequence_number = torch._C._autograd._get_sequence_nr
MOST_MARKS = 1 << 16
"""Number of marks of finished steps from which on they are resolved to times; below it, this waits for `stop`. Only
for stopwatches that can resolve at once."""


@dataclass(slots=True)
class Span:
    """A start and an end mark."""

    start: Any = None
    end: Any = None


@dataclass(slots=True)
class BackwardRun(Span):
    """One backward; it ends after the callbacks of others, such as DDP, that wait for their reductions to finish."""

    task: int = NO_TASK
    outermost: bool = False
    joined: list[tuple[Tape, int, Share | None]] = field(default_factory=list)
    """Tapes of the threads that work on it, each with its previous task and share, as backward may be nested."""


@dataclass(slots=True)
class StepMarks:
    """Marks of one step."""

    start: Any
    forward: list[Span] = field(default_factory=list)
    backward: list[BackwardRun] = field(default_factory=list)
    evaluation: list[Span] = field(default_factory=list)
    """Root forward calls without gradients, in a job that trains."""
    optimizer: list[Span] = field(default_factory=list)
    optimizer_in_backward: list[Span] = field(default_factory=list)
    """The spans of `optimizer` that are inside `backward`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """Parts of a step in ns, None for parts that did not happen; they need not add up to the step."""

    before_forward_ns: int | None
    fwd_ns: int | None
    bwd_ns: int | None
    optimizer_ns: int | None
    evaluation_ns: int | None


@dataclass(slots=True)
class OutermostCall:
    """An outermost forward call while it runs."""

    first: int
    """Sequence number of the first autograd node that it may create."""
    span: Span | None = None
    """None if the call is a recomputation, which is part of backward, or not of a root module."""
    outputs: list[Any] = field(default_factory=list)
    """Autograd nodes of its results, and of the results of the calls inside."""


ForwardCall = tuple[Chain, Share | None, Chain | None, OutermostCall, Tape, bool]
"""A running forward call: its call path; the share that ran before it, which continues when it ends; the owner of the
autograd nodes created before it; the outermost call; the tape of its thread; whether it is itself the outermost call.
A tuple because one is created per module call."""


class TimePass:
    """Times modules and the parts of steps."""

    def __init__(self, scopes: ModuleScopes, guard: Guard) -> None:
        self.num_steps = 0
        self._scopes = scopes
        self._watch = Stopwatch()
        self._mark: Callable[[], Any] = self._watch.mark
        self._every: list[Tape] = []
        self._tapes = Tapes(self._watch, self._every)
        self._finished: list[tuple[list[Any], list[Share | None]]] = []
        self._num_marks = 0
        """Number of marks in `_finished`."""
        self._steps: list[StepMarks] = []
        self._entered: list[Chain] = []
        self._runs: dict[int, BackwardRun] = {}
        self._outside = Chain(None, None)
        self._repeated: dict[Site, Chain] = {}
        self._on = False
        self._optimizer: Span | None = None
        """The optimizer's own work, while an optimizer runs and does not call a closure."""
        self._inside_optimizer = 0
        """Nesting depth of closures, forward calls and backward passes inside the running optimizer."""
        begins = guard(self._on_backward)
        self._backward_hook = cache(lambda share: partial(begins, share))
        self._backward_computed, self._backward_ended = guard(self._computed), guard(self._ended)

    def start(self) -> None:
        """Starts timing and the first step."""
        del self._steps[self.num_steps:]  # of an interrupted step
        self._entered.clear()
        self._runs.clear()
        self._watch = stopwatch()
        self._mark = self._watch.mark
        self._every = []
        self._tapes = Tapes(self._watch, self._every)
        self._on = True
        self._scopes.add(self)
        self._steps.append(StepMarks(self._mark()))

    def stop(self) -> None:
        """Stops timing and waits for the device."""
        self._on = False
        self._scopes.remove(self)
        self._watch.settle()
        self._play()

    def next_step(self) -> None:
        """Ends a step and begins the next; an unfinished step is not part of any result."""
        self.num_steps += 1
        self._steps.append(StepMarks(self._mark()))
        for tape in self._every:
            if tape.task != NO_TASK and not in_backward():  # an optimizer may step inside backward
                tape.abandon()
            self._num_marks += len(tape.marks)
            self._finished.append(tape.cut())
        for chain in self._entered:
            chain.calls += 1
        self._entered.clear()
        self._runs.clear()
        if self._watch.resolves_at_once and self._num_marks > MOST_MARKS:
            self._play()

    def restart_step(self) -> None:
        """Moves the start of the running step to now."""
        self._steps[-1].start = self._mark()

    def optimizer_begins(self) -> None:
        """Called before every optimizer.step() that is not called by another one."""
        self._inside_optimizer = 0
        self._optimizer_goes_on()
        tape = self._tapes.mine
        if self._optimizer is not None and tape.task != NO_TASK:
            self._steps[-1].optimizer_in_backward.append(self._optimizer)
            tape.runs(self._optimizer.start, None)

    def optimizer_ends(self) -> None:
        """Called after every such optimizer.step()."""
        if self._optimizer is None:
            return
        self._optimizer.end = self._mark()
        tape = self._tapes.mine
        if tape.task != NO_TASK and len(tape.shares) > 1:
            tape.runs(self._optimizer.end, tape.shares[-2])
        self._optimizer = None

    def closure_begins(self) -> None:
        """Called when the optimizer calls its closure."""
        self._begins_inside_optimizer()

    def closure_ends(self) -> None:
        """Called when the closure returns."""
        self._ends_inside_optimizer()

    def _optimizer_goes_on(self) -> None:
        self._optimizer = Span(self._mark())
        self._steps[-1].optimizer.append(self._optimizer)

    def _begins_inside_optimizer(self) -> None:
        if self._optimizer is not None:
            if not self._inside_optimizer:
                self._optimizer.end = self._mark()
            self._inside_optimizer += 1

    def _ends_inside_optimizer(self) -> None:
        if self._optimizer is not None and self._inside_optimizer:
            self._inside_optimizer -= 1
            if not self._inside_optimizer:
                self._optimizer_goes_on()

    def enter(self, frame: Frame) -> None:
        """Marks that the module begins to run."""
        if frame.evaluation:
            self._enter_evaluation(frame)
            return
        tape = self._tapes.mine
        if tape.task != NO_TASK and not frame.in_backward:
            tape.abandon()
        caller: ForwardCall | None = None if frame.outer is None else frame.outer.data.get(self)
        first, shares, chains = sequence_number(), tape.shares, tape.chains
        if caller is not None:
            chain, outermost = caller[0].child(frame.site), caller[3]
        else:
            chain, outermost = self._outermost_chain(frame), OutermostCall(first)
            if frame.is_root:
                self._begins_inside_optimizer()
        frame.data[self] = chain, shares[-1], chains[-1], outermost, tape, caller is None
        tape.sequence.append(first)  # nodes from here on are the module's
        chains.append(chain)
        if not frame.in_backward and not chain.repeats:
            self._entered.append(chain)
        shares.append(chain.recompute if frame.recompute else chain.backward if frame.in_backward else chain.forward)
        mark = self._mark()
        tape.marks.append(mark)
        if caller is None and frame.is_root:
            outermost.span = Span(mark)
            self._steps[-1].forward.append(outermost.span)

    def exit(self, frame: Frame, _args: tuple[Any, ...], _kwargs: dict[str, Any], result: object) -> None:
        """Marks that the caller continues; after the outermost call, hooks nodes where backward changes modules."""
        if frame.evaluation:
            self._exit_evaluation(frame)
            return
        call: ForwardCall | None = frame.data.get(self)
        if call is None:
            return
        mark = self._mark()
        _, before, makers, outermost, tape, is_outermost = call
        tape.sequence.append(sequence_number())  # nodes from here on are the caller's
        tape.chains.append(makers)
        if type(result) is torch.Tensor:
            node = result.grad_fn
            if node is not None:
                outermost.outputs.append(node)
        else:
            outermost.outputs.extend(_nodes(result))
        if is_outermost:
            self._leave(outermost, before, mark, tape)
        else:
            tape.runs(mark, before)

    def _leave(self, call: OutermostCall, before: Share | None, mark: object, tape: Tape) -> None:
        if call.span is not None:
            call.span.end = mark
        tape.runs(mark, None)  # time spent setting hooks belongs to no module
        hook_backward(call.outputs, call.first, tape, self._backward_hook)
        if before is not None:
            tape.runs(self._mark(), before)
        if call.span is not None:
            self._ends_inside_optimizer()

    def _enter_evaluation(self, frame: Frame) -> None:
        """Starts an evaluation, whose time belongs to the step and to no module."""
        if frame.is_root:
            self._begins_inside_optimizer()
            tape, span = self._tapes.mine, Span(self._mark())
            frame.data[self] = span, tape.running
            tape.runs(span.start, None)
            self._steps[-1].evaluation.append(span)

    def _exit_evaluation(self, frame: Frame) -> None:
        found: tuple[Span, Share | None] | None = frame.data.get(self)
        if found is not None:
            span, before = found
            span.end = self._mark()
            self._tapes.mine.runs(span.end, before)
            self._ends_inside_optimizer()

    def latencies(self) -> dict[Site, Latency]:
        """Returns mean times per step of each module over all finished steps; call it after `stop`."""
        self._play()
        return {site: latency.over(self.num_steps) for site, latency in latencies(self._outside.walk()).items()}

    def split(self, index: int) -> StepSplit:
        """Returns the parts of step `index` of the pass; call it after `stop`."""
        step = self._steps[index]
        first = min((self._watch.resolve(span.start) for span in step.forward), default=None)
        return StepSplit(
            before_forward_ns=None if first is None else (
                first - self._watch.resolve(step.start) - self._total(self._until(step.optimizer, first))),
            fwd_ns=self._total(step.forward) if step.forward else None,
            bwd_ns=(self._total(step.backward) - self._total(step.optimizer_in_backward)) if step.backward else None,
            optimizer_ns=self._total(step.optimizer) if step.optimizer else None,
            evaluation_ns=self._total(step.evaluation) if step.evaluation else None,
        )

    def _outermost_chain(self, frame: Frame) -> Chain:
        if not frame.in_backward:
            return self._outside.child(frame.site)
        # a forward repeated in backward has no callers, so it uses the call path of the first call
        chain = self._repeated.get(frame.site)
        if chain is None:
            found = (known for known in self._outside.walk() if known.site is frame.site)
            chain = self._repeated[frame.site] = next(found, None) or self._outside.child(frame.site)
        return chain

    def _on_backward(self, share: Share | None, *_gradients: object) -> None:
        if not self._on:
            return
        tape = self._tapes.mine
        task = torch._C._current_graph_task_id()
        if tape.task != task:
            self._join(tape, task)
        tape.runs(self._mark(), share)

    def _join(self, tape: Tape, task: int) -> None:
        run = self._runs.get(task)
        if run is None:
            run = self._runs[task] = BackwardRun(self._mark(), task=task)
            if tape.task == NO_TASK:
                self._begins_inside_optimizer()
                run.outermost = True
                self._steps[-1].backward.append(run)  # else it runs inside another backward (reentrant checkpointing)
            Variable._execution_engine.queue_callback(partial(self._backward_computed, run))
        run.joined.append((tape, tape.task, tape.running))
        tape.task = task

    def _computed(self, run: BackwardRun) -> None:
        run.end = self._mark()
        self._runs.pop(run.task, None)
        for tape, task, before in run.joined:
            tape.runs(run.end, before)
            tape.task = task
        # queued at this point, it runs after the callbacks of DDP and the like
        Variable._execution_engine.queue_callback(partial(self._backward_ended, run))

    def _ended(self, run: BackwardRun) -> None:
        run.end = self._mark()
        if run.outermost:
            self._ends_inside_optimizer()

    def _play(self) -> None:
        """Adds the times between marks to the shares."""
        for marks, shares in self._finished:
            times = pairwise(self._watch.resolve(mark) for mark in marks)
            for share, (start, end) in zip(shares, times, strict=False):
                if share is not None:
                    share.add(end - start)
        self._finished.clear()
        self._num_marks = 0

    def _until(self, spans: Iterable[Span], at_ns: int) -> Iterator[Span]:
        """Yields spans that ended by then: an optimizer's span ends when it calls its closure with forward in it."""
        return (span for span in spans if span.end is not None and self._watch.resolve(span.end) <= at_ns)

    def _total(self, spans: Iterable[Span]) -> int:
        resolve = self._watch.resolve
        return sum(resolve(span.end) - resolve(span.start) for span in spans
                   if span.start is not None and span.end is not None)


def _nodes(result: object) -> list[Any]:
    return [tensor.grad_fn for tensor in tensors(result) if tensor.grad_fn is not None]
