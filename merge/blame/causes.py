"""Causes: which module, or what else, a rank spends more time in than its peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from distprof.merge.activity.activities import OF_MODULES, Activity
from distprof.merge.blame.culprits import Cause
from distprof.merge.blame.excess import WHOLE, Excess

MOST_OF = 0.7
"""Share of an excess that lies in the module which is named for it."""


def cause_of(excess: Excess, row: int, kind: str, known: Sequence[Activity], gain_ns: float) -> Cause | None:
    """A kind of work as a cause, with the place in which most of the excess lies.

    Args:
        excess: Of the rank and its peers.
        row: Of the rank.
        kind: Of the work.
        known: Activities by number.
        gain_ns: What the job would gain without it.

    Returns:
        None where the rank spends no more time there than its peers.
    """
    where = None if kind == WHOLE else _place(excess, row, kind, known)
    held = np.array([_lies_in(known[label], kind, where) for label in excess.labels.tolist()], bool)
    spent = excess.mean[:, held].sum(axis=1)
    median = float(np.median(np.delete(spent, row)))
    if spent[row] <= median:
        return None
    return Cause(kind=kind, where=where, gain_ns=gain_ns, spent=float(spent[row]), of_peers=median)


def _place(excess: Excess, row: int, kind: str, known: Sequence[Activity]) -> str | None:
    parts: dict[str | None, float] = defaultdict(float)
    beyond = excess.mean[row] - excess.usual[row]
    for label, ns in zip(excess.labels.tolist(), beyond.tolist(), strict=True):
        if known[label].kind == kind:
            parts[known[label].where] += ns
    longer = {where: ns for where, ns in parts.items() if ns > 0}
    if kind in OF_MODULES:
        return _deepest(longer)
    return max(longer, key=lambda where: longer[where], default=None)


def _deepest(parts: Mapping[str | None, float]) -> str | None:
    """The deepest module in which most of it lies."""
    inside: dict[str, float] = defaultdict(float)
    for where, ns in parts.items():
        names = where.split(".") if where else []
        for depth in range(len(names) + 1) if where is not None else ():
            inside[".".join(names[:depth])] += ns
    # of two modules that hold more than half each, one lies in the other
    return max((path for path, ns in inside.items() if ns >= MOST_OF * sum(parts.values())), key=len, default=None)


def _lies_in(activity: Activity, kind: str, where: str | None) -> bool:
    if kind == WHOLE:
        return activity.kind != "communication"
    if activity.kind != kind or where is None:
        return activity.kind == kind
    if kind in OF_MODULES:
        path = activity.where
        return path is not None and (not where or path == where or path.startswith(f"{where}."))
    return activity.where == where
