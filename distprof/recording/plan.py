"""The number of steps of each pass, like `wait=2,count=1,time=3,trace=6,arrivals=20`, and a rank's progress through it.

The user asks for a plan by `--steps`, by `--topics`, or by both.

Steps in which the script runs its own profiler do not count, and passes must cover the same steps on all ranks. If all
ranks of the job are profiled by their scripts in a step, the plan is delayed by that step. If only some are, the plan
continues everywhere, and these ranks miss what it had for the step. A rank whose timeline is interrupted misses the
rest of it in both cases. Ranks agree on which it is over the store of the job, without waiting for each other: a rank
that ends a step in which all ranks communicate knows that all have begun it.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distprof.contract.passes import MEMORY, PASS_NAMES, PASSES, TRACE, USUAL, WAIT, needing, parse_topics, steps_of
from distprof.errors import UsageError

EXAMPLE = "--steps " + ",".join(f"{row.name}={row.steps}" for row in USUAL)
OFF = "off"
"""The plan without passes: its only step is used to find out what ends a step; the watch logs all others."""
OPTIONAL = tuple(row.name for row in PASSES if row.optional)


@dataclass(frozen=True, slots=True, init=False)
class StepPlan:
    """Number of steps of each pass; passes run in the order of the contract."""

    steps: dict[str, int]
    """Pass -> steps, in that order; without passes whose default depends on the number of ranks."""

    def __init__(self, **steps: int) -> None:
        """Takes the steps of each pass; passes that are not named keep their default.

        Raises:
            UsageError: There is no such pass, a number is negative, or no step would be recorded.
        """
        for name in steps:
            _check_name(name)
        if steps.get(MEMORY):
            steps.setdefault(TRACE, 0)
        known = [row for row in PASSES if row.name in steps or not row.with_few_ranks]
        object.__setattr__(self, "steps", {row.name: steps.get(row.name, row.steps) for row in known})
        negative = [name for name, number in self.steps.items() if number < 0]
        if negative:
            raise UsageError(f"numbers of steps must be 0 or more, found {negative[0]}={self.steps[negative[0]]}")
        if self.num_steps == self.steps[WAIT] and not self.is_off:
            zeros = ", ".join(f"{name}=0" for name in self._shown() if name != WAIT)
            raise UsageError(f"nothing to record: {zeros}", hint=f"for example {EXAMPLE}")

    @classmethod
    def parse(cls, text: str) -> StepPlan:
        """Parses `wait=2,count=1`; passes that are not named keep their defaults. `off` is the plan without passes.

        Raises:
            UsageError: A part is not `pass=number`.
        """
        return cls.off() if text == OFF else cls(**parse_steps(text))

    @classmethod
    def off(cls) -> StepPlan:
        """Returns the plan without passes."""
        plan = cls()
        object.__setattr__(plan, "steps", _ONE_WAIT)
        return plan

    @property
    def is_off(self) -> bool:
        """True for the plan without passes: only the watch runs."""
        return self.steps == _ONE_WAIT

    @classmethod
    def only(cls, text: str) -> StepPlan:
        """Parses `arrivals=8,trace=3`; passes that are not named have no steps.

        Raises:
            UsageError: A part is not `pass=number`, or no step would be recorded.
        """
        return cls(**{**dict.fromkeys(PASS_NAMES, 0), **parse_steps(text)})

    def also(self, name: str) -> StepPlan:
        """Returns the plan with at least one step of a pass."""
        return StepPlan(**{**self.steps, name: self.steps.get(name, 0) or 1})

    def __str__(self) -> str:
        return OFF if self.is_off else ",".join(f"{name}={number}" for name, number in self._shown().items())

    def _shown(self) -> dict[str, int]:
        """Returns the steps without passes that nobody asked for."""
        usual = {row.name for row in USUAL}
        return {name: number for name, number in self.steps.items() if number or name in usual}

    def for_ranks(self, num_ranks: int) -> StepPlan:
        """Returns the plan for a job with that many ranks."""
        if self.is_off:
            return self
        return StepPlan(**{row.name: self.steps.get(row.name, row.steps_of(num_ranks)) for row in PASSES})

    @property
    def num_steps(self) -> int:
        """Number of steps of all passes."""
        return sum(self.steps.values())

    @property
    def num_required(self) -> int:
        """Number of steps after which a recording is complete."""
        return sum(number for name, number in self.steps.items() if name not in OPTIONAL)

    def pass_of(self, step: int) -> str | None:
        """Returns the pass of a step, counted from 0; None after the last step."""
        for name, number in self.steps.items():
            step -= number
            if step < 0:
                return name
        return None


_ONE_WAIT = {row.name: int(row.name == WAIT) for row in PASSES}


def parse_steps(text: str) -> dict[str, int]:
    """Parses `wait=2,count=1` into steps per named pass.

    Raises:
        UsageError: A part is not `pass=number`.
    """
    steps: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition("=")
        _check_name(name)
        if not number.isdecimal():
            raise UsageError(f"{name!r} in --steps needs a number of steps, not {number!r}",
                             hint=f"--steps {name}=1")
        steps[name] = int(number)
    return steps


def default_plan() -> str:
    """Describes the plan that is used if the user gives none."""
    few = [f"with {'1 rank' if most == 1 else f'up to {most} ranks'} {row.name}={steps}"
           for row in PASSES for most, steps in reversed(row.with_few_ranks)]
    return "; ".join((EXAMPLE.removeprefix("--steps "), *few))


def _check_name(name: str) -> None:
    if name not in PASS_NAMES:
        near = difflib.get_close_matches(name, PASS_NAMES, n=1)
        raise UsageError(f"unknown pass {name!r} in --steps; choose from {', '.join(PASS_NAMES)}",
                         hint=f"did you mean {near[0]!r}?" if near else EXAMPLE)


VARIABLE = "DISTPROF_TOPICS"


def asked_plan(steps: str | StepPlan = "", topics: str = "", *, default: StepPlan | None = None,
               also: Sequence[str] = ()) -> StepPlan:
    """Returns the requested plan; topics select the passes that record them, `--steps` sets lengths or adds passes.

    Args:
        steps: Such as `wait=2,count=1`; '' if the user gave none.
        topics: Such as `operator,sync`; '' if the user gave none.
        default: The plan if both are ''; its wait pass is used with topics as well.
        also: Passes that are needed in addition to those of topics.

    Raises:
        UsageError: There is no such pass or topic, or `steps` and `topics` contradict each other.
    """
    plan = default or StepPlan()
    if not topics:
        return steps if isinstance(steps, StepPlan) else StepPlan.parse(steps) if steps else plan
    asked = parse_topics(topics)
    given = steps.steps if isinstance(steps, StepPlan) else parse_steps(steps)
    numbers = {WAIT: plan.steps[WAIT]} | steps_of(asked) | {name: plan.steps[name] for name in also} | given
    for name in given:
        needed_by = needing(asked, name)
        if not given[name] and needed_by:
            raise UsageError(f"--topics {needed_by[0]} needs steps of the {name} pass, but --steps has {name}=0",
                             hint=f"remove {name} from --steps, or {needed_by[0]} from --topics")
    return StepPlan(**numbers)


NOT_RESUMED = (TRACE, MEMORY)
"""Passes whose steps lie in a single session of the profiler."""


class PlanProgress:
    """The pass of each step, taking the script's own profiler into account."""

    def __init__(self, plan: Callable[[], StepPlan], *, tell: Callable[[int, int], None],
                 all_told: Callable[[int], bool]) -> None:
        """Begins at the first step of the plan.

        Args:
            plan: Returns the plan for the number of ranks that is known by now.
            tell: Tells the other ranks that this one is profiled in a step (1), or that it is not after all (-1).
            all_told: Returns whether all ranks told that, as they agreed.
        """
        self._plan = plan
        self._tell = tell
        self._all_told = all_told
        self._behind = 0
        self._over: set[str | None] = set()
        self.paused = False
        """True in a step in which the script's own profiler runs."""
        self.paused_steps: list[int] = []
        """All such steps of this rank, from 0."""
        self.missed = Counter[str]()
        """Pass -> number of its steps that this rank did not record, since the plan went on in paused steps, or since
        the pass was interrupted and is not resumed."""

    def pass_of(self, step: int) -> str | None:
        """Returns the pass of a step; None after the end of the plan."""
        found = self._plan().pass_of(step - self._behind)
        return WAIT if found in self._over else found

    def has_enough(self, step: int) -> bool:
        """True if all passes that are still to come are optional."""
        return step - self._behind >= self._plan().num_required

    def pause(self, step: int) -> None:
        """Notes that the script's own profiler runs in this step."""
        if not self.paused:
            self.paused = True
            self.paused_steps.append(step)
            plan, at = self._plan(), step - self._behind
            running = plan.pass_of(at)
            if running in NOT_RESUMED and at > 0 and plan.pass_of(at - 1) == running:
                self._over.add(running)
            self._tell(step, 1)

    def resume(self, step: int) -> None:
        """Takes `pause` back: the profiler ended before the step did anything."""
        self.paused = False
        self.paused_steps.remove(step)
        self._tell(step, -1)

    def step_ended(self, step: int) -> None:
        """Ends a step; if it was paused on all ranks, the plan is delayed by one step."""
        if not (self.paused or self._over):
            return
        running, paused = self._plan().pass_of(step - self._behind), self.paused
        self.paused = False
        if paused and self._all_told(step):
            self._behind += 1
        elif paused or running in self._over:
            self.missed[running or WAIT] += 1
