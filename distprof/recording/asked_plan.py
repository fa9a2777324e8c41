"""The plan of what a user asks for: by `--steps`, by `--topics`, or by both."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.contract.passes import WAIT
from distprof.contract.topics import needing, parse_topics, steps_of
from distprof.errors import UsageError
from distprof.recording.plan import StepPlan, parse_steps

VARIABLE = "DISTPROF_TOPICS"


def asked_plan(steps: str | StepPlan = "", topics: str = "", *, default: StepPlan | None = None,
               also: Sequence[str] = ()) -> StepPlan:
    """The plan; of topics it has the passes that record them, and `--steps` says how long these are, or adds others.

    Args:
        steps: Like `wait=2,count=1`; '' where the user gave none.
        topics: Like `operator,sync`; '' likewise.
        default: The plan without both; its wait pass comes before those of topics too.
        also: Passes that are needed besides those of topics.

    Raises:
        UsageError: There is no such pass or topic, or they contradict each other.
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
