"""What `--step-every` says: a class of optimizers whose steps end steps, or a number of optimizer steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from distprof.errors import UsageError

VARIABLE = "DISTPROF_STEP_EVERY"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvery:
    """One of the two."""

    text: str
    """As it was given."""
    turns: int | None = None
    class_name: str | None = None

    @classmethod
    def parse(cls, given: str | int, *, where: str = "--step-every") -> Self:
        """Reads `Adam` or `6`.

        Raises:
            UsageError: It is neither.
        """
        text = str(given).strip()
        if text.isdecimal() and int(text) > 0:
            return cls(text=text, turns=int(text))
        if not text.isidentifier():
            raise UsageError(f"{where} takes an optimizer class or a number of optimizer steps above 0, not "
                             f"{str(given)!r}", hint=f"{where} Adam, or {where} 6")
        return cls(text=text, class_name=text)

    @classmethod
    def requested(cls, environ: Mapping[str, str]) -> Self | None:
        """What DISTPROF_STEP_EVERY says; None where it is not set.

        Raises:
            UsageError: It is neither a class nor a number.
        """
        text = environ.get(VARIABLE, "")
        return cls.parse(text, where=VARIABLE) if text else None

    def ends(self, turn: int, class_names: Collection[str]) -> bool:
        """True if a step ends with this optimizer step.

        Args:
            turn: Its number, from 1.
            class_names: The optimizer's class; classes of those that stepped while backward ran.
        """
        return not turn % self.turns if self.turns is not None else self.class_name in class_names
