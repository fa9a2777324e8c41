"""Relief: which work a rank would not do if it worked as its peers do."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.merge.blame.excess import WHOLE, Excess
from distprof.merge.program.job import Job
from distprof.merge.replay.replay import Relief


def relief_of(job: Job, excess: Excess, row: int, kind: str) -> Relief:
    """What a rank does more than its peers, of one kind of work or of all.

    How much it is in a step, `Excess.to_fix` says; of steps that do not count, the mean. It is taken where the rank
    exceeds its peers, where by most first.

    Args:
        job: What ranks did.
        excess: Of the rank and its peers.
        row: Index of the rank among them.
        kind: One of `excess.kinds`.
    """
    number = excess.kinds.index(kind)
    cells = np.flatnonzero((excess.kind_of == number) | (kind == WHOLE))
    beyond = excess.work[row][:, cells] - excess.usual[row, cells]
    amount = np.full((len(excess.steps), 1), excess.to_fix[row, :, number].mean())
    amount[excess.counts, 0] = excess.to_fix[row, :, number]
    sign = np.where(amount < 0, -1.0, 1.0)
    taken = sign * _largest_first(np.clip(sign * beyond, 0, None), np.abs(amount))
    ns = np.zeros(excess.work.shape[1:])
    ns[:, cells] = taken
    share = _of_recorded(excess, row, ns)
    size = share.size
    held = excess.place // size == row if size else np.zeros(0, bool)
    piece = excess.piece[held]
    less = share.reshape(-1)[excess.place[held] % size] * job.pieces.ns[piece] if size else np.zeros(0)
    some = less != 0
    event, where = np.unique(job.pieces.event[piece[some]], return_inverse=True)
    return Relief(event=event, ns=np.bincount(where.reshape(-1), less[some], len(event)))


def _of_recorded(excess: Excess, row: int, ns: Floats) -> Any:
    """What is taken of each cell, as a part of what was recorded; of unknown work, for all that it was divided into."""
    recorded, position = excess.recorded[row], excess.position
    untraced = recorded.any(axis=1) & (excess.work[row] != recorded).any(axis=1)
    if untraced.any():
        total = np.zeros((int(untraced.sum()), int(position.max()) + 1))
        for taken, part in ((ns, total), (recorded, whole := np.zeros_like(total))):
            np.add.at(part.T, position, taken[untraced].T)
        ns, recorded = ns.copy(), recorded.copy()
        ns[untraced], recorded[untraced] = total[:, position], whole[:, position]
    return np.divide(ns, recorded, out=np.zeros_like(ns), where=recorded > 0)


def _largest_first(values: Floats, limit: Floats) -> Floats:
    """Takes of each row the largest values first, up to its limit."""
    order = np.argsort(-values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    found = np.empty_like(values)
    np.put_along_axis(found, order, np.clip(limit - before, 0, ordered), axis=1)
    return found
