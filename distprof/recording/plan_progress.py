"""How far the plan of a rank has come: steps in which the script runs its own profiler are no part of it.

Passes have to meet the same steps on all ranks. Where every rank of the job is profiled by its script in a step, the
plan waits for that step to end. Where only some are, it goes on everywhere, and these ranks miss what it had for the
step. Which of the two it is, the ranks agree on over the store of the job, without waiting for each other: a rank that
ends a step in which all ranks communicate knows that all have begun it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from distprof.contract.passes import MEMORY, TRACE, WAIT
from distprof.recording.plan import StepPlan

NOT_RESUMED = (TRACE, MEMORY)
"""Passes whose steps lie in one session of the profiler."""


class PlanProgress:
    """The pass of each step."""

    def __init__(self, plan: Callable[[], StepPlan], *, tell: Callable[[int, int], None],
                 all_told: Callable[[int], bool]) -> None:
        """Begins at the first step of the plan.

        Args:
            plan: It, for as many ranks as are known by now.
            tell: Tells the other ranks that this one is profiled in a step (1), or after all is not (-1).
            all_told: Whether all ranks told that, as they agreed.
        """
        self._plan = plan
        self._tell = tell
        self._all_told = all_told
        self._behind = 0
        self._over: set[str | None] = set()
        self.paused = False
        """True in a step in which the script is profiled."""
        self.paused_steps: list[int] = []
        """All such steps, from 0."""
        self.missed = Counter[str]()
        """Pass -> steps that other ranks recorded meanwhile."""

    def pass_of(self, step: int) -> str | None:
        """The pass of a step; None after the last of the plan."""
        found = self._plan().pass_of(step - self._behind)
        return WAIT if found in self._over else found

    def has_enough(self, step: int) -> bool:
        """True where the passes that are still to come may be missing."""
        return step - self._behind >= self._plan().num_required

    def pause(self, step: int) -> None:
        """The script is profiled in this step."""
        if not self.paused:
            self.paused = True
            self.paused_steps.append(step)
            plan, at = self._plan(), step - self._behind
            running = plan.pass_of(at)
            if running in NOT_RESUMED and at > 0 and plan.pass_of(at - 1) == running:
                self._over.add(running)
            self._tell(step, 1)

    def resume(self, step: int) -> None:
        """The script is not profiled in this step after all: that ended before the step did anything."""
        self.paused = False
        self.paused_steps.remove(step)
        self._tell(step, -1)

    def step_ended(self, step: int) -> None:
        """This step ended; the plan goes on, or stays where it was."""
        if not self.paused:
            return
        self.paused = False
        if self._all_told(step):
            self._behind += 1
        else:
            self.missed[self._plan().pass_of(step - self._behind) or WAIT] += 1
