"""What the first recording of a process learned about its job; later recordings use it to begin at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distprof.model.modules import ModuleMap
from distprof.recording.rank_recording import KnownRank
from distprof.recording.steps.evaluation import CallsWithoutGradient, EvaluationJudge
from distprof.recording.steps.finder import StepFinder
from distprof.recording.steps.step_thread import StepThread


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """State shared with the first recording, not copied: what one learns later, both know."""

    rank: KnownRank
    finder: StepFinder
    """Finds what ends a step."""
    modules: ModuleMap
    """Modules with the paths of the first recording."""
    calls: CallsWithoutGradient
    judge: EvaluationJudge
    thread: StepThread
    """The thread that runs the steps."""
    num_evaluations: int
    """Above 0 while the script has declared that it evaluates."""
    signals_seen: bool
    """Whether the first recording still handles signals, and passes them on."""
    written: Callable[[], None]
    """Called whenever the main thread has written files, since a signal may have been postponed until then."""
