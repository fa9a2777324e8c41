"""The changes to a job that a prediction assumes, and their parsers: `rank=2,module=layers.1: 0.5`, `2x`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distprof.errors import UsageError

KEYS = ("rank", "module", "phase", "step", "op")
"""Conditions of `--scale`."""
EXAMPLE = "--scale 'rank=2,module=layers.1: 0.5'"
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Work whose duration is multiplied by a factor. All conditions must hold; None always holds."""

    text: str
    """The option's value as the user wrote it."""
    factor: float
    rank: tuple[int, int] | None = None
    """First and last rank."""
    module: str | None = None
    """A pattern of module paths; submodules of a matching module match, too."""
    phase: str | None = None
    step: tuple[int, int] | None = None
    """First and last step."""
    op: str | None = None
    """A pattern of operator names."""

    @property
    def needs_timeline(self) -> bool:
        """Whether only a timeline shows which work matches."""
        return self.module is not None or self.phase is not None or self.op is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All changes of one prediction."""

    scales: Sequence[Scale] = ()
    """Work that matches several of them belongs to the first."""
    no_stragglers: bool = False
    free_communication: bool = False
    bandwidth: float | None = None
    """Factor by which the bandwidth is multiplied; None: unchanged."""
    defer_waits: bool = False
    """Whether ranks wait for a collective only when they first use its tensors."""
    no_overlap: bool = False
    """Whether ranks wait for a collective as soon as they have called it."""

    @property
    def needs_timeline(self) -> bool:
        """Whether only steps with a timeline can be predicted."""
        return self.defer_waits or any(scale.needs_timeline for scale in self.scales)

    @property
    def needs_ranks(self) -> bool:
        """Whether something is changed that needs several ranks: peers, or sizes and waits of collectives."""
        return self.no_stragglers or self.defer_waits or self.no_overlap or self.bandwidth is not None


def scale_of(text: str) -> Scale:
    """Parses `rank=2,module=layers.1: 0.5`.

    Raises:
        UsageError: The text has another form.
    """
    conditions, colon, factor = text.rpartition(":")
    if not colon:
        raise UsageError(f"--scale takes conditions, a colon and a factor, not {text!r}", hint=EXAMPLE)
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, conditions.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in KEYS or key in found or not value:
            raise UsageError(f"--scale takes each of {', '.join(KEYS)} once, with a value, not {part!r}",
                             hint=EXAMPLE)
        found[key] = value
    return Scale(text=text.strip(), factor=factor_of(factor, "--scale", least=0.0), rank=_span(found, "rank"),
                 step=_span(found, "step"), module=found.get("module"), phase=found.get("phase"), op=found.get("op"))


def factor_of(text: str, flag: str, *, least: float) -> float:
    """Parses `0.5` or `2x`.

    Raises:
        UsageError: It is not a number, or too small.
    """
    try:
        found = float(text.strip().removesuffix("x"))
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= least):
        raise UsageError(f"{flag} takes a factor of {least:g} or more, not {text.strip()!r}",
                         hint=EXAMPLE if flag == "--scale" else f"{flag} 2x")
    return found


def _span(found: dict[str, str], key: str) -> tuple[int, int] | None:
    value = found.get(key)
    if value is None or value == "all":
        return None
    first, _, last = value.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
        raise UsageError(f"{key} in --scale must be a number, a range like 2-5, or all, not {value!r}",
                         hint=EXAMPLE)
    return int(first), int(last or first)
