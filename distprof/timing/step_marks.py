"""Marks that split a step into forward, backward and optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from distprof.timing.call_chains import Share
from distprof.timing.thread_tapes import NO_TASK, Tape


@dataclass(slots=True)
class Span:
    """A start and an end mark."""

    start: Any = None
    end: Any = None


@dataclass(slots=True)
class BackwardRun(Span):
    """One backward; it ends after the callbacks of others, such as DDP, that wait for their reductions."""

    task: int = NO_TASK
    joined: list[tuple[Tape, int, Share | None]] = field(default_factory=list)
    """Tapes of the threads that work in it, with their previous task and share: it may run inside another."""


@dataclass(slots=True)
class StepMarks:
    """Marks of one step."""

    start: Any
    forward: list[Span] = field(default_factory=list)
    backward: list[BackwardRun] = field(default_factory=list)
    optimizer: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """Parts of a step in ns, None for one that did not happen; they need not add up to the step."""

    before_forward_ns: int | None
    fwd_ns: int | None
    bwd_ns: int | None
    optimizer_ns: int | None
