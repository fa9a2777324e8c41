"""Which forward calls of a job that trains are evaluation: those of which no gradient comes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distprof.model.in_autograd import in_autograd_function
from distprof.model.modules import Model
from distprof.model.scopes import Frame, GradientWatch


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
        """Called before a root call; sets `evaluation` and `learns` of its frame, and `gradient` to see more."""
        model, root = frame.site.model, frame.site.module()
        trains = self._trains()
        frame.learns = trains and torch.is_grad_enabled()
        if self._marked():
            frame.evaluation = True
        elif trains and not torch.is_grad_enabled():
            frame.evaluation = not (frame.module.training and in_autograd_function())
        elif trains and root is not None and not root.training:
            self._watch(frame)
        model.trained |= not frame.evaluation and frame.gradient is None

    def _watch(self, frame: Frame) -> None:
        model = frame.site.model
        watch, since = self._watched.setdefault(model, (GradientWatch(model), self._step()))
        if not watch.seen:
            frame.gradient = watch
            frame.evaluation = since < self._step()  # backward of an earlier call would have come
