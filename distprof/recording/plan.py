"""Which steps are recorded, and how: `wait=2,count=1,time=3,trace=6` in, the pass of each step out."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields

from distprof.contract.tables import PASSES
from distprof.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Number of steps spent in each pass, in this order, once."""

    wait: int = 2
    """Steps before anything is switched on: warm-up."""
    count: int = 1
    """Steps under the FLOP counter."""
    time: int = 3
    """Steps under module timers alone."""
    trace: int = 6
    """Steps under the timeline recorder; the profiler warms up in the first, and what is habit and what chance shows in
    no fewer."""

    def __post_init__(self) -> None:
        negative = [field.name for field in fields(self) if getattr(self, field.name) < 0]
        if negative:
            raise UsageError(f"expected steps of 0 or more, found {negative[0]}={getattr(self, negative[0])}")
        if not self.count + self.time + self.trace:
            raise UsageError("expected at least one recorded step, found count=0, time=0, trace=0",
                             hint="for example --steps wait=2,count=1,time=3,trace=6")

    @classmethod
    def parse(cls, text: str) -> StepPlan:
        """Reads `wait=2,count=1`; passes that are not named keep their default.

        Raises:
            UsageError: A part is not `pass=number`.
        """
        names = [field.name for field in fields(cls)]
        values: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, number = part.partition("=")
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise UsageError(f"expected passes {', '.join(names)} in --steps, found {name!r}",
                                 hint=f"did you mean {near[0]!r}?" if near else "--steps wait=2,count=1,time=3,trace=6")
            if not number.isdecimal():
                raise UsageError(f"expected a number of steps after {name!r} in --steps, found {number!r}",
                                 hint=f"--steps {name}=1")
            values[name] = int(number)
        return cls(**values)

    def __str__(self) -> str:
        return ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @property
    def num_steps(self) -> int:
        """Steps from the first to the last recorded one."""
        return self.wait + self.count + self.time + self.trace

    def pass_of(self, step: int) -> str | None:
        """Pass of a step counted from 0; None after the last."""
        for name in PASSES:
            step -= getattr(self, name)
            if step < 0:
                return name
        return None
