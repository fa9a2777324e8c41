"""A job in which no step ends: does it hang, and who keeps the others?

Ranks that wait in a collective tell nothing: they may do so while they use a processor. It is on those that wait in
none: where one of them computes, reads or writes, the job is slow and does not hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from distprof.contract.stuck import StackFrame, Stuck
from distprof.merge.blame.hang import LIBRARY, Hangs, hangs

Doing = Literal["busy", "idle", "stopped", "gone", "unknown"]
"""What a process does: it computes, reads or writes; nothing; it was stopped by a signal; it ended; nobody sees it."""
FRAMES = 6
"""Innermost calls by which stacks are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """A job that hangs."""

    hangs: Hangs
    culprits: list[int]
    """Ranks that keep the others; all, where none waits for another."""
    sure: bool
    """False where somebody nobody sees may be busy."""


def standstill(stuck: Mapping[int, Stuck], doing: Mapping[int, Doing], *, moving: bool) -> Standstill | None:
    """Whether a job hangs.

    Args:
        stuck: Where ranks are, of those that told.
        doing: What each rank does.
        moving: A host sends or receives much.

    Returns:
        None where somebody for whom the others wait is busy.
    """
    found = hangs(stuck)
    waiting = {rank for one in found.hangs for rank in one.waiting} | {
        rank for rank, one in found.standing.items() if one.peers}
    outside = [rank for rank in sorted(doing) if rank not in waiting]
    mismatch = [rank for one in found.hangs if one.is_mismatch for rank in _fewer(one.ops, one.shapes)]
    if any(doing[rank] == "busy" for rank in outside) and not mismatch:
        return None
    # where one who is missing waits himself, no data that moves will end that
    all_there = not found.hangs or any(not one.absent and not one.unknown for one in found.hangs)
    if not outside and not mismatch and moving and all_there:
        return None
    culprits = mismatch or [rank for rank in outside if doing[rank] in ("gone", "stopped")] or outside
    return Standstill(hangs=found, culprits=sorted(set(culprits)) or sorted(waiting),
                      sure=bool(mismatch) or not any(doing[rank] == "unknown" for rank in outside))


def _fewer(*values: Mapping[str, Sequence[int]]) -> list[int]:
    """Ranks that do what fewer do; where both are as many, all of them."""
    for by_value in values:
        groups = list(by_value.values())  # those with most ranks first
        others = [rank for ranks in groups[1:] for rank in ranks]
        if others:
            return others if len(groups[0]) > len(others) else sorted([*groups[0], *others])
    return []


def same_stacks(stuck: Mapping[int, Stuck]) -> list[tuple[list[int], list[StackFrame]]]:
    """Ranks whose main threads are at the same place, most of them first, each with the innermost calls."""
    found: dict[tuple[tuple[str, int, str], ...], list[int]] = {}
    frames: dict[tuple[tuple[str, int, str], ...], list[StackFrame]] = {}
    for rank, one in sorted(stuck.items()):
        main = next((thread.frames for thread in one.threads if thread.main), [])
        own = (place for place, frame in enumerate(main) if not any(part in frame.file for part in LIBRARY))
        main = main[next(own, 0):]  # without those that started the script
        key = tuple((frame.file, frame.line, frame.function) for frame in main)
        found.setdefault(key, []).append(rank)
        frames[key] = main[-FRAMES:]
    return [(ranks, frames[key]) for key, ranks in sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))]
