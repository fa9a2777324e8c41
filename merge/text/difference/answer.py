"""Describes limits of `diff --fail-if` in sentences, and decides how the command ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distprof.errors import BeyondLimit, CannotTell, DistprofError
from distprof.merge.difference.limits import Judged

REMEDIES = {"memory": "; record it with --steps memory=1"}
"""Quantity -> how to record it if it is unknown."""
NOT_JUDGED = {"cpu_time": "the sides were short of CPU time to different degrees, or one run per side does not show "
                          "the variation"}
"""Quantities that have no interval for special reasons -> these reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What `distprof diff` prints, and how it ends."""

    text: str
    limits: Sequence[Judged]
    error: DistprofError | None
    """None if everything is within the limits."""


def error_of(judged: Sequence[Judged]) -> DistprofError | None:
    """Returns an error for limits that are exceeded, else for those that cannot be judged; None if all hold."""
    for kind, outcomes in ((BeyondLimit, ("beyond",)), (CannotTell, ("unsure", "missing"))):
        lines = [limit_line(one) for one in judged if one.outcome in outcomes]
        if lines:
            return kind("; ".join(lines))
    return None


def limit_line(judged: Judged) -> str:
    """Returns one limit as a sentence."""
    limit, change = judged.limit, judged.change
    if judged.outcome == "missing" or change is None:
        return (f"{limit.text}: cannot tell: {limit.what} is unknown on at least one side"
                f"{REMEDIES.get(limit.what, '')}")
    ends = (change.low_ratio, change.high_ratio, change.ratio) if limit.is_ratio else (
        change.low, change.high, change.difference)
    scale, unit = (100, " %") if limit.is_ratio else (1 / limit.unit_size, f" {limit.unit}" if limit.unit else "")
    low, high, at = (None if one is None else f"{scale * one:+.3g}" for one in ends)
    is_known = low is not None and high is not None
    interval = f" [{low}, {high}]" if is_known and not change.is_exact else ""
    said = f"{limit.what} changed by {at}{unit}{interval}" if at is not None else f"{limit.what} did not change"
    match judged.outcome:
        case "beyond":
            return f"{said}, exceeding the limit {limit.text}"
        case "within":
            return f"{said}, within the limit {limit.text}"
        case _:
            why = "half the interval is wider than the limit" if is_known else NOT_JUDGED.get(
                limit.what, "one run per side does not show how much runs vary; give several")
            return f"{limit.text}: cannot tell: {said}: {why}"
