"""Which forward calls of a job that trains are evaluation: those without gradients that are not part of every step.

Models that are called without gradients in every step, such as a generator for its critic, a teacher, or an average of
weights, are part of the step's work. Calls without gradients in some steps only are evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch

from distprof.model.modules import Model, Site
from distprof.model.scopes import Frame, GradientWatch
from distprof.model.tensors import in_autograd_function


class CallsWithoutGradient:
    """The steps in which root modules were called without gradients, among steps whose forward calls were seen.

    A script sets up and tries things before its first optimizer step: calls of the first step only count if later steps
    have them too.
    """

    def __init__(self) -> None:
        self._now: set[Site] = set()
        self._at_first: set[Site] = set()
        self._steps: Counter[Site] = Counter()
        self._num_steps = 0

    def saw(self, site: Site) -> None:
        """Notes a call of this root in the running step."""
        self._now.add(site)

    def step_ended(self, number: int) -> None:
        """Ends a step whose forward calls were seen; the first one has number 0."""
        if number:
            self._num_steps += 1
            self._steps.update(self._now)
        else:
            self._at_first |= self._now
        self._now = set()

    def start_over(self) -> None:
        """Forgets all steps."""
        self._now, self._at_first, self._num_steps = set(), set(), 0
        self._steps.clear()

    def are_work(self, site: Site) -> bool:
        """Returns whether calls of this root are part of every step, judging by the steps so far, at least two."""
        steps = self._steps[site]
        return steps == self._num_steps and steps + (site in self._at_first) > 1


class EvaluationJudge:
    """Decides for each root call whether it is evaluation.

    A call in no_grad mode is. A call in eval mode is if no gradient arrives: validation may leave gradients on, and a
    network in eval mode may be trained through. So each model is watched until a step has shown which it is. What is
    called without gradients in every step is work of the step, except a model that is trained in training mode and
    switched to eval mode for the call: that is validation.
    """

    def __init__(self, trains: Callable[[], bool], step: Callable[[], int], calls: CallsWithoutGradient,
                 marked: Callable[[], bool] = lambda: False) -> None:
        """Stores its inputs.

        Args:
            trains: Returns False in inference, where calls without gradients are the work.
            step: Returns the number of the running step.
            calls: Gets every call without gradients.
            marked: Returns True while the script has declared that it evaluates.
        """
        self._trains = trains
        self._marked = marked
        self._step = step
        self._calls = calls
        self._watched: dict[Model, tuple[GradientWatch, int]] = {}
        self._in_training_mode: set[Site] = set()
        """Roots that were called in training mode with gradients."""

    def judge(self, frame: Frame) -> None:
        """Called before a root call; sets `evaluation`, `learns`, `gradient` and `without_gradient` of its frame."""
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
        if trains and root is not None and not self._marked():
            self._weigh(frame, in_training_mode=root.training)

    def _weigh(self, frame: Frame, *, in_training_mode: bool) -> None:
        site = frame.site
        if not frame.evaluation and frame.gradient is None:
            if in_training_mode:
                self._in_training_mode.add(site)
        else:
            frame.without_gradient = site
            if in_training_mode or site not in self._in_training_mode:
                self._calls.saw(site)
            frame.evaluation = frame.evaluation and not self._calls.are_work(site)

    def _watch(self, frame: Frame) -> None:
        model = frame.site.model
        watch, since = self._watched.setdefault(model, (GradientWatch(model), self._step()))
        if not watch.seen:
            frame.gradient = watch
            frame.evaluation = since < self._step()  # by now, backward of an earlier call would have run
