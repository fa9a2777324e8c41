"""Causes of an excess, as far as summaries tell: kinds of work between calls, parts of timed steps, and modules."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.merge.activity.activities import Activity
from distprof.merge.blame.causes import cause_of
from distprof.merge.blame.culprits import Cause
from distprof.merge.blame.excess import WHOLE, Excess
from distprof.merge.blame.summarised.timed import Longer

MOST_OF_IT = 0.5
"""Part of an excess that a timed part or a module has to show, to be a cause."""
MODULES = ("forward", "backward", "recompute")
BEHIND_CALLS = ("optimizer", "backward", "host")
"""What may lie behind the last call of a step."""
TOLD_APART = ("data", "optimizer")
"""What is told from other work before a call by the time pass alone."""
ANYTHING = ("data", *MODULES, "optimizer", "host")


def sketched_causes(excess: Excess, row: int, main: str, known: Sequence[Activity], longer: Sequence[Longer],
                    gain_ns: float) -> list[Cause]:
    """Causes, the largest first.

    Work is known by the call in front of which it lies; a timed part or module names it where that shows as much.

    Args:
        excess: Of the rank and its peers.
        row: Of the rank.
        main: Kind of work that it is judged by, or `WHOLE`.
        known: Activities by number.
        longer: What the time pass shows.
        gain_ns: What the job gains without it.
    """
    by_kind = excess.to_fix[row].mean(axis=0)
    kinds = [kind for kind in excess.kinds if kind != WHOLE]
    top = main if main != WHOLE else max(kinds, key=lambda kind: by_kind[excess.kinds.index(kind)])
    least = MOST_OF_IT * float(by_kind[excess.kinds.index(main)])
    allowed = _allowed(top, {one.kind for one in (known[label] for label in excess.labels.tolist())})
    found = sorted((one for one in longer if one.kind in allowed and one.by_ns >= least), key=lambda one: -one.by_ns)
    if found:
        return [Cause(kind=one.kind, where=one.where, gain_ns=min(gain_ns, one.by_ns), spent=one.spent,
                      of_peers=one.of_peers) for one in found]
    kind = WHOLE if main == WHOLE and by_kind[excess.kinds.index(top)] < least else top
    cause = cause_of(excess, row, kind, known, gain_ns)
    if cause is None:
        return []
    timed = {one.kind for one in longer}
    if kind != WHOLE and any(other not in timed for other in allowed if other in TOLD_APART and other != kind):
        return [Cause(kind="unknown", where=None, gain_ns=gain_ns, spent=cause.spent, of_peers=cause.of_peers)]
    if kind in MODULES or kind == WHOLE:
        return [cause]
    where = "behind the last collective" if kind == "end" else None
    return [Cause(kind={"other": WHOLE}.get(kind, "host"), where=where, gain_ns=gain_ns, spent=cause.spent,
                  of_peers=cause.of_peers)]


def _allowed(top: str, kinds: set[str]) -> tuple[str, ...]:
    """Kinds that may lie in front of calls of a kind: what came before the first call of a step is in front of it."""
    if top == "end":
        return BEHIND_CALLS
    if top == "forward":
        return ("data", "forward", "host")
    if top in ("backward", "recompute") and "forward" in kinds:
        return ("backward", "recompute", "host")
    return ("optimizer",) if top == "optimizer" else ANYTHING
