"""What the first recording of a process found out about its job, with which later ones begin at once."""

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
    """Shared with the first recording, not copied: what is learned later is known to both."""

    rank: KnownRank
    finder: StepFinder
    """What ends a step."""
    modules: ModuleMap
    """The same paths as before."""
    calls: CallsWithoutGradient
    judge: EvaluationJudge
    thread: StepThread
    """Whose steps these are."""
    num_evaluations: int
    """Above 0 where the script says just now that it evaluates."""
    signals_seen: bool
    """Whether the first recording still watches for signals, and passes them on."""
    written: Callable[[], None]
    """Called whenever files were written by the main thread: a signal may have waited for that."""
