"""Where a job got stuck: which collectives have not ended, which ranks wait in them and which never entered.

A collective of a group is stuck if a rank has called it and it has not ended. Its number is the same on all ranks of
the group, so a rank whose last call has a lower number never entered it.

A job in which no step ends need not hang. Ranks that wait in a collective tell nothing, because they may use a
processor while they wait. The other ranks decide: if one of them computes, reads or writes, the job is slow but does
not hang.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import msgspec

from distprof.contract.collective_ops import EQUAL_INPUTS
from distprof.contract.paths import STUCK_JSON
from distprof.contract.problems import ScriptInterrupted, Unreadable
from distprof.contract.stuck import StackFrame, Stuck, StuckCollective, StuckGroup, StuckThread, in_brief
from distprof.files import read_small
from distprof.merge.cost.choice import group_label
from distprof.merge.run.flight_recorder import read_dumps
from distprof.merge.run.run_model import Run

LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "/distprof/")
"""Parts of paths that mark a file as not the user's."""
Doing = Literal["busy", "idle", "stopped", "gone", "unknown"]
"""What a process does: busy: it computes, reads or writes; idle: nothing; stopped: by a signal; gone: it ended;
unknown: nobody can see it."""
DEBUGGERS = ("/pdb.py", "/cmd.py", "/bdb.py", "/debugpy/", "/pydevd", "/pudb/", "/IPython/core/debugger.py")
"""Parts of paths of debuggers."""
STOPPED = ("interaction", "cmdloop", "_cmdloop", "do_wait_suspend", "_do_wait_suspend")
"""Functions of theirs that wait for the user."""
FRAMES = 6
"""Number of innermost calls of a stack that `same_stacks` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """One collective that was called and has not ended."""

    group: str
    """Label of the group."""
    ranks: list[int]
    number: int
    """Counts the collectives of the group, from 1."""
    ops: dict[str, list[int]]
    """Op -> ranks that called it under this number."""
    shapes: dict[str, list[int]]
    """Sizes and types of the input -> ranks that passed it."""
    waiting: list[int]
    absent: list[int]
    """Ranks that never called it."""
    over: list[int]
    """Ranks on which it has ended nevertheless."""
    unknown: list[int]
    """Ranks that left no report."""
    ranks_known: bool
    """False if the group may have more ranks, because only a dump of torch's flight recorder mentions it."""
    waited_ns: int
    """How long the rank that entered first had been in it."""

    @property
    def is_mismatch(self) -> bool:
        """True if ranks called different ops, or brought different inputs to an op that needs equal ones."""
        return len(self.ops) > 1 or (len(self.shapes) > 1 and next(iter(self.ops)) in EQUAL_INPUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank was when it reported."""

    rank: int
    why: str
    """What triggered the report: a signal, no progress, an error."""
    cause: str
    frame: StackFrame | None
    """Innermost line of the user's code, or of any code if there is none, of the exception or main thread."""
    module_path: str | None
    phase: str | None
    failure: str | None
    """The exception that ended the rank; None if there was none."""
    peers: list[tuple[str, int]]
    """Sends and receives that have not ended: op and the other rank."""

    @property
    def at_last_call(self) -> bool:
        """True if `frame` is of the last collective that the rank called: a flight recorder dump knows no later
        place."""
        return self.cause == "dump"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangs:
    """All that is known of a job that got stuck."""

    hangs: list[Hang]
    """Mismatches first, then those with absent ranks that do not wait in a collective themselves."""
    standing: dict[int, Standing]


def hangs_of(run: Run) -> tuple[Hangs | None, list[Unreadable]]:
    """Reads the reports of the ranks.

    A rank without a report is taken from a dump of torch's flight recorder in the folder of the run.

    Returns:
        Where the ranks got stuck, None if none did; and the reports that cannot be read.
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
        return None, [*problems, *unreadable]  # where the ranks were when the user interrupted a job that was done
    return stuck, [*problems, *unreadable]


def hangs(stuck: Mapping[int, Stuck]) -> Hangs:
    """Finds the collectives that have not ended.

    Args:
        stuck: Rank -> its report; ranks may be missing.
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
    main = _main_thread(one)
    # the thread has left the place of the exception
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
    """Ranks that hold up the others; all waiting ranks if each waits for another."""
    sure: bool
    """False if a rank whose state is unknown may be busy."""


def standstill(stuck: Mapping[int, Stuck], doing: Mapping[int, Doing], *, moving: bool) -> Standstill | None:
    """Decides whether a job hangs.

    Args:
        stuck: Where ranks are, for those that reported.
        doing: What the process of each rank does.
        moving: Whether a host sends or receives much data.

    Returns:
        None if it does not hang: a rank that others wait for is busy, or data moves and nobody is missing, or a rank
        is stopped in a debugger.
    """
    if any(_is_debugged(one) for one in stuck.values()):
        return None
    found = hangs(stuck)
    waiting = {rank for one in found.hangs for rank in one.waiting} | {
        rank for rank, one in found.standing.items() if one.peers}
    outside = [rank for rank in sorted(doing) if rank not in waiting]
    mismatch = [rank for one in found.hangs if one.is_mismatch for rank in _fewer(one.ops, one.shapes)]
    if any(doing[rank] == "busy" for rank in outside) and not mismatch:
        return None
    # if a missing rank waits in another collective itself, moving data does not end that
    all_there = not found.hangs or any(not one.absent and not one.unknown for one in found.hangs)
    if not outside and not mismatch and moving and all_there:
        return None
    culprits = mismatch or [rank for rank in outside if doing[rank] in ("gone", "stopped")] or outside
    return Standstill(hangs=found, culprits=sorted(set(culprits)) or sorted(waiting),
                      sure=bool(mismatch) or not any(doing[rank] == "unknown" for rank in outside))


def _fewer(*values: Mapping[str, Sequence[int]]) -> list[int]:
    """Returns the ranks in the minority; all of them if no value has a majority."""
    for by_value in values:
        groups = list(by_value.values())  # those with most ranks first
        others = [rank for ranks in groups[1:] for rank in ranks]
        if others:
            return others if len(groups[0]) > len(others) else sorted([*groups[0], *others])
    return []


def _is_debugged(one: Stuck) -> bool:
    """Returns whether the main thread waits for the user in a debugger, which may be installed anywhere."""
    main = _main_thread(one)
    frames = main.frames if main is not None else []
    called = takewhile(lambda frame: any(part in frame.file for part in (*LIBRARY, *DEBUGGERS)), reversed(frames))
    return any(frame.function.rpartition(".")[2] in STOPPED and any(part in frame.file for part in DEBUGGERS)
               for frame in called)


def _main_thread(one: Stuck) -> StuckThread | None:
    return next((thread for thread in one.threads if thread.main), one.threads[0] if one.threads else None)


def same_stacks(stuck: Mapping[int, Stuck]) -> list[tuple[list[int], list[StackFrame]]]:
    """Groups ranks whose main threads are at the same place, largest group first, with the innermost calls of each."""
    found: dict[tuple[tuple[str, int, str], ...], list[int]] = {}
    frames: dict[tuple[tuple[str, int, str], ...], list[StackFrame]] = {}
    for rank, one in sorted(stuck.items()):
        main = next((thread.frames for thread in one.threads if thread.main), [])
        own = (place for place, frame in enumerate(main) if not any(part in frame.file for part in LIBRARY))
        main = main[next(own, 0):]  # without the calls that started the script
        key = tuple((frame.file, frame.line, frame.function) for frame in main)
        found.setdefault(key, []).append(rank)
        frames[key] = main[-FRAMES:]
    return [(ranks, frames[key]) for key, ranks in sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))]
