"""Which models are called without gradient in every step: a generator for its critic, a teacher, an average of weights.

That is work of the step. What runs without gradient in some steps only is evaluation.
"""

from __future__ import annotations

from collections import Counter

from distprof.model.modules import Site


class CallsWithoutGradient:
    """The steps in which root modules were called without gradient, as far as forward calls were seen.

    A script sets up and tries things before its first optimizer step: the first step counts only for what later ones
    show too.
    """

    def __init__(self) -> None:
        self._now: set[Site] = set()
        self._at_first: set[Site] = set()
        self._steps: Counter[Site] = Counter()
        self._num_steps = 0

    def saw(self, site: Site) -> None:
        """Takes in a call of this root in the running step."""
        self._now.add(site)

    def step_ended(self, number: int) -> None:
        """A step ended in which forward calls were seen; the first one has the number 0."""
        if number:
            self._num_steps += 1
            self._steps.update(self._now)
        else:
            self._at_first |= self._now
        self._now = set()

    def are_work(self, site: Site) -> bool:
        """Whether calls of this root are part of every step, as steps by now tell; two at least have to."""
        steps = self._steps[site]
        return steps == self._num_steps and steps + (site in self._at_first) > 1
