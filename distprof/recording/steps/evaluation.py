"""Which forward calls of a job that trains are evaluation: those of which no gradient comes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from distprof.model.modules import Model
from distprof.model.scopes import Frame, GradientWatch

FORWARD = "forward"


class EvaluationJudge:
    """Says of each root call whether it is evaluation.

    Without gradient mode it is. In eval mode it is one if no gradient comes: validation may leave gradients on, and a
    network in eval mode may be trained through. So each model is watched until a step has shown which of the two holds.
    """

    def __init__(self, trains: Callable[[], bool], step: Callable[[], int],
                 marked: Callable[[], bool] = lambda: False) -> None:
        """Prepares.

        Args:
            trains: False in inference, where calls without gradient are the work.
            step: The number of the running step.
            marked: True while the script says that it evaluates.
        """
        self._trains = trains
        self._marked = marked
        self._step = step
        self._watched: dict[Model, tuple[GradientWatch, int]] = {}

    def judge(self, frame: Frame) -> None:
        """Called before a root call; sets `evaluation` of its frame, and `gradient` where that is to be seen."""
        model, root = frame.site.model, frame.site.module()
        trains = self._trains()
        if self._marked():
            frame.evaluation = True
        elif trains and not torch.is_grad_enabled():
            frame.evaluation = not (frame.module.training and _in_autograd_function())
        elif trains and root is not None and not root.training:
            self._watch(frame)
        model.trained |= not frame.evaluation and frame.gradient is None

    def _watch(self, frame: Frame) -> None:
        model = frame.site.model
        watch, since = self._watched.setdefault(model, (GradientWatch(model), self._step()))
        if not watch.seen:
            frame.gradient = watch
            frame.evaluation = since < self._step()  # backward of an earlier call would have come


def _in_autograd_function() -> bool:
    """True inside the forward of an autograd function, which switches gradients off.

    Activation checkpointing (the reentrant kind) calls modules in there whose forward backward repeats.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == FORWARD and code.co_argcount:
            first: Any = frame.f_locals.get(code.co_varnames[0])
            if BackwardCFunction in type(first).__mro__:  # not isinstance(): some objects answer that by running code
                return True
        frame = frame.f_back
    return False
