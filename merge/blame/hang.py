"""Where a job got stuck: which collectives are not over, which ranks wait in them and which never entered.

A collective of a group is stuck where a rank has called it and it was not over. Its number is the same on all ranks of
the group, so whose last call has a lower one never entered.

A job in which no step ends need not hang. Ranks that wait in a collective tell nothing: they may do so while they use a
processor. It is on those that wait in none: where one of them computes, reads or writes, the job is slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from distprof.contract.collective_ops import EQUAL_INPUTS
from distprof.contract.paths import STUCK_JSON
from distprof.contract.problems import ScriptInterrupted, Unreadable
from distprof.contract.stuck import StackFrame, Stuck, StuckCollective, StuckGroup, in_brief
from distprof.files import read_small
from distprof.merge.cost.choice import group_label
from distprof.merge.run.flight_recorder import read_dumps
from distprof.merge.run.run_model import Run

LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "/distprof/")
"""Parts of the paths of files that are not the user's."""
Doing = Literal["busy", "idle", "stopped", "gone", "unknown"]
"""What a process does: it computes, reads or writes; nothing; it was stopped by a signal; it ended; nobody sees it."""
FRAMES = 6
"""Innermost calls by which stacks are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """One collective that was called and not over."""

    group: str
    """Label."""
    ranks: list[int]
    number: int
    """Counts the collectives of the group, from 1."""
    ops: dict[str, list[int]]
    """Op -> ranks that called it under this number."""
    shapes: dict[str, list[int]]
    """Sizes and types of the input -> ranks that brought it."""
    waiting: list[int]
    absent: list[int]
    """Ranks that never called it."""
    over: list[int]
    """Ranks on which it is over all the same."""
    unknown: list[int]
    """Ranks that left no report."""
    ranks_known: bool
    """False where there may be more ranks in the group: only a dump of torch's flight recorder tells of it."""
    waited_ns: int
    """How long the rank that came first had been in it."""

    @property
    def is_mismatch(self) -> bool:
        """True where ranks called different things."""
        return len(self.ops) > 1 or (len(self.shapes) > 1 and next(iter(self.ops)) in EQUAL_INPUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank was."""

    rank: int
    why: str
    """What triggered the report: a signal, no progress, an error."""
    cause: str
    frame: StackFrame | None
    """Innermost line of the user's code of the main thread, else of any."""
    module_path: str | None
    phase: str | None
    failure: str | None
    """The exception that ended it."""
    peers: list[tuple[str, int]]
    """Sends and receives that were not over, and the other rank."""

    @property
    def at_last_call(self) -> bool:
        """True where `frame` is of the last collective that the rank called: a dump knows no later place."""
        return self.cause == "dump"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangs:
    """All that is known of a job that got stuck."""

    hangs: list[Hang]
    """Mismatches first, then those whose absent ranks wait for nothing themselves."""
    standing: dict[int, Standing]


def hangs_of(run: Run) -> tuple[Hangs | None, list[Unreadable]]:
    """Reads the reports of the ranks.

    A rank without a report is taken from a dump of torch's flight recorder that lies in the folder of the run.

    Returns:
        Where the ranks got stuck, None where none did; and reports that cannot be read.
    """
    found: dict[int, Stuck] = {}
    problems: list[Unreadable] = []
    for rank in run.ranks:
        path = rank.folder / STUCK_JSON
        if rank.recorded is not None and path.exists():
            try:
                found[rank.number] = msgspec.json.decode(read_small(path), type=Stuck)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
                problems.append(Unreadable(rank=rank.number, file=STUCK_JSON, detail=str(error)))
    dumps, unreadable = read_dumps(run.path) if run.path.is_dir() else ({}, [])
    found = {**dumps, **found}
    stuck = hangs(found) if found else None
    if stuck is not None and not stuck.hangs and ScriptInterrupted() in run.remarks:
        return None, [*problems, *unreadable]  # where the ranks were when the user ended a job that was done
    return stuck, [*problems, *unreadable]


def hangs(stuck: Mapping[int, Stuck]) -> Hangs:
    """Finds the collectives that are not over.

    Args:
        stuck: By rank; not all need be there.
    """
    standing = {rank: _standing(one) for rank, one in sorted(stuck.items())}
    found = list(_hangs(stuck))
    busy = {rank for one in found for rank in one.waiting}
    return Hangs(standing=standing, hangs=sorted(found, key=lambda one: (
        not one.is_mismatch, not any(rank not in busy for rank in one.absent), -one.waited_ns)))


def _hangs(stuck: Mapping[int, Stuck]) -> Iterator[Hang]:
    groups: dict[tuple[str, tuple[int, ...]], dict[int, StuckGroup]] = defaultdict(dict)
    for rank, one in stuck.items():
        for group in one.groups:
            groups[group.name, tuple(group.ranks)][rank] = group
    for (_, members), by_rank in groups.items():
        called = {rank: {one.number: one for one in group.collectives if not one.point_to_point}
                  for rank, group in by_rank.items()}
        pending = [number for mine in called.values() for number, one in mine.items() if not one.completed]
        if pending:
            yield _hang(min(pending), members, by_rank, called, stuck)


def _hang(number: int, members: Sequence[int], by_rank: Mapping[int, StuckGroup],
          called: Mapping[int, Mapping[int, StuckCollective]], stuck: Mapping[int, Stuck]) -> Hang:
    there = {rank: mine[number] for rank, mine in sorted(called.items()) if number in mine}
    waiting = [rank for rank, one in there.items() if not one.completed]
    absent = [rank for rank in members if rank in by_rank and (by_rank[rank].last_called or 0) < number]
    group = next(iter(by_rank.values()))
    return Hang(
        group=group_label(group.name, group.description, members if group.ranks_known else None),
        ranks_known=group.ranks_known, ranks=list(members), number=number,
        ops=_by_value({rank: one.op for rank, one in there.items()}),
        shapes=_by_value({rank: _shape(one) for rank, one in there.items()}),
        waiting=waiting, absent=absent, over=[rank for rank, one in there.items() if one.completed],
        unknown=[rank for rank in members if rank not in stuck],
        waited_ns=max(stuck[rank].time_ns - there[rank].called_ns for rank in waiting))


def _by_value(values: Mapping[int, str]) -> dict[str, list[int]]:
    """Value -> ranks that have it; most ranks first."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        found[value].append(rank)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[1])))


def _shape(one: StuckCollective) -> str:
    parts = [f"{'x'.join(map(str, sizes)) or 'scalar'} {dtype}" for sizes, dtype in zip(
        one.input_sizes, one.input_dtypes, strict=False)]
    return ", ".join(parts) or "nothing"


def _standing(one: Stuck) -> Standing:
    main = next((thread for thread in one.threads if thread.main), one.threads[0] if one.threads else None)
    # after an exception the thread is elsewhere by now
    frames = one.failure.frames if one.failure is not None else main.frames if main is not None else []
    mine = [frame for frame in frames if not any(part in frame.file for part in LIBRARY)]
    peers = [(call.op, call.peer) for call in one.open_calls if call.op in ("send", "recv") and call.peer is not None]
    why = one.failure
    failure = None if why is None else in_brief(f"{why.type}: {why.message}").removesuffix(":")
    return Standing(
        rank=one.rank, why=in_brief(one.why), cause=one.cause, frame=next(reversed(mine or frames), None),
        failure=failure, module_path=one.module_path, phase=one.phase, peers=peers)


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
