"""One claim of the self-test, and how what is expected is compared with what is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from distprof.errors import in_one_line
from distprof.units import duration

if TYPE_CHECKING:
    from distprof.launch.selftest.evidence import Evidence

RATIO, LEAST_NS = 0.1, 2e6
"""By how much a time may differ: a tenth, and 2 ms of what is shorter than 20 ms."""
SAMPLE_NS = 25e6
"""Lines of the script are sampled that often: a time may lack or have one sample more in every step."""


class Judged(NamedTuple):
    """What a claim expects, what was found, and whether it holds."""

    expected: str
    found: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that is known of a job, and where distprof says it."""

    text: str
    judge: Callable[[Evidence], Judged]
    part: str | None = None
    """The part of the job without which nothing can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A claim about one job, judged."""

    job: str
    claim: str
    expected: str
    found: str
    holds: bool


def rows(job: str, claims: tuple[Claim, ...], evidence: Evidence) -> list[Row]:
    """All claims about a job; one that cannot be judged does not hold, and says why."""
    return [Row(job=job, claim=claim.text, **_judged(claim, evidence)._asdict()) for claim in claims]


def _judged(claim: Claim, evidence: Evidence) -> Judged:
    try:
        failed = evidence.failure(claim.part) if claim.part is not None else None
        return claim.judge(evidence) if failed is None else Judged("-", f"the job could not do it: {failed}", False)
    except Exception as error:  # noqa: BLE001 (the other claims are judged)
        return Judged("-", in_one_line(error), False)


def exact(expected: float, found: float | None, unit: str = "") -> Judged:
    """Counts and bytes: every one."""
    return Judged(_number(expected, unit), _number(found, unit), found is not None and found == expected)


def same(expected: str, found: str) -> Judged:
    """Names and places."""
    return Judged(expected, found, expected == found)


def near(expected_ns: float, found_ns: float | None, slack_ns: float = LEAST_NS, ratio: float = RATIO) -> Judged:
    """Times: within a part of what is expected, or `slack_ns`, whichever is more."""
    within = max(ratio * expected_ns, slack_ns)
    holds = found_ns is not None and abs(found_ns - expected_ns) <= within
    return Judged(f"{duration(expected_ns)} ± {duration(within)}", duration(found_ns), holds)


def at_most(limit_ns: float, found_ns: float) -> Judged:
    """Times that have a limit."""
    return Judged(f"at most {duration(limit_ns)}", duration(found_ns), found_ns <= limit_ns)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    text = f"{int(value):,}" if float(value).is_integer() else f"{value:,.3f}"
    return f"{text} {unit}".rstrip()
