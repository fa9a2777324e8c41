"""Describes where a job got stuck, or hangs, in sentences; also from dumps of torch's flight recorder alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distprof.contract.paths import FORMAT
from distprof.contract.problems import Problem, RanksMissing
from distprof.contract.stuck import StackFrame, Stuck
from distprof.errors import DataError
from distprof.merge.blame.hang import LIBRARY, Doing, Hang, Hangs, Standing, Standstill, hangs, same_stacks
from distprof.merge.run.flight_recorder import dump_files, read_dumps
from distprof.merge.run.merged import is_merge
from distprof.merge.run.traces.discovery import discover, is_recorded
from distprof.merge.text.phrases import brief, file_name, rank_list
from distprof.merge.text.problems import show_problems
from distprof.reporters.page import Page
from distprof.units import counted

AT_ONCE_NS = 1_000_000_000
"""A rank that had waited for less time may just have been ended there."""
SHOWN = 8
SHOWN_GROUPS = 4
WITHOUT_REPORT: dict[Doing, str] = {
    "gone": "ended", "stopped": "was stopped by a signal", "idle": "is idle", "busy": "is busy",
    "unknown": "left no report"}


def hang_lines(found: Hangs, *, but_victims: bool = False) -> Iterator[str]:
    """Yields collectives that hang and the ranks missing in them, then all ranks that are in none of these.

    Args:
        found: What the ranks reported.
        but_victims: Whether another rank is known to have failed first; then ranks whose communication failed are left
            out.
    """
    named: set[int] = set()
    waits = {rank: hang for hang in found.hangs for rank in hang.waiting}
    for hang in found.hangs[:SHOWN]:
        yield _hang(hang, found.standing, waits)
        named |= {*hang.waiting, *hang.absent}
    if len(found.hangs) > SHOWN:
        yield f"stuck: {counted(len(found.hangs) - SHOWN, 'more group')}; --json lists all"
    for rank, one in found.standing.items():
        if but_victims and one.cause == "error":
            continue
        if one.failure is not None:
            yield f"rank {rank} gave up: {one.failure}"
        if rank not in named or one.peers:
            yield f"{'ended' if one.cause == 'signal' else 'free' if one.at_last_call else 'stuck'}: {_alone(one)}"


def _hang(one: Hang, standing: Mapping[int, Standing], waits: Mapping[int, Hang]) -> str:
    word = "stuck" if one.waited_ns >= AT_ONCE_NS or one.is_mismatch or any(
        standing[rank].cause != "signal" for rank in one.waiting) else "when it was stopped"
    verb = "waits" if len(one.waiting) == 1 else "wait"
    parts = [f"{word}: {rank_list(one.waiting)} {verb} in {_called(one)} for {brief(one.waited_ns, 2)}"]
    if len(one.ops) > 1:
        parts.append("called differently: " + _differences(one.ops, "called"))
    elif one.is_mismatch:
        parts.append("inputs differ: " + _differences(one.shapes, "passed"))
    if one.absent:
        parts.append(f"{rank_list(one.absent)} never entered: {_places(one.absent, standing, waits)}")
    if one.over:
        parts.append(f"it has finished on {rank_list(one.over)}")
    if one.unknown:
        parts.append(f"{rank_list(one.unknown)} left no report")
    if not one.ranks_known and not one.absent and not one.is_mismatch:
        parts.append("the dumps do not say which other ranks are in the group")
    elif not one.absent and not one.unknown and not one.is_mismatch:
        parts.append("all ranks have entered it: check the network or look for a slow rank")
    return "; ".join(parts)


def _called(one: Hang) -> str:
    return f"{next(iter(one.ops))} #{one.number} of {one.group}"


def _differences(values: dict[str, list[int]], verb: str) -> str:
    (most, ranks), *others = values.items()
    found = ", ".join(f"{rank_list(other)} {verb} {value}" for value, other in others)
    return f"{found} where {rank_list(ranks)} {verb} {most}"


def _places(ranks: Sequence[int], standing: Mapping[int, Standing], waits: Mapping[int, Hang]) -> str:
    """Returns where ranks are instead, which may be another collective; ranks at one place are grouped."""
    at: dict[str, list[int]] = {}
    for rank in ranks:
        where = place(standing[rank]) + (f", in {_called(waits[rank])}" if rank in waits else "")
        at.setdefault(where, []).append(rank)
    if len(at) == 1:
        where = next(iter(at))
        one, several = ("was", "were") if standing[ranks[0]].at_last_call else ("is", "are")
        return f"it {one} {where}" if len(ranks) == 1 else f"they {several} {where}"
    shown = [f"{rank_list(some)} {where}" for where, some in at.items()]
    more = f" and {counted(len(shown) - SHOWN, 'more place')}" if len(shown) > SHOWN else ""
    return ", ".join(shown[:SHOWN]) + more


def place(one: Standing) -> str:
    """Returns `at train.py:57 in load_batch, forward of layers.1`, or from a dump `last seen at ...`: its last call."""
    if one.frame is None:
        return "last seen at an unknown line" if one.at_last_call else "at an unknown line"
    found = f"at {file_name(one.frame.file)}:{one.frame.line} in {one.frame.function}"
    if one.at_last_call:
        return f"last seen {found}"
    phase = one.phase or ("forward" if one.module_path is not None else None)
    if phase is not None:
        found += f", {phase}" + ("" if one.module_path is None else f" of {one.module_path or 'the model'}")
    return found


def _alone(one: Standing) -> str:
    for op, peer in one.peers:
        return f"rank {one.rank} waits in {op} {'to' if op == 'send' else 'from'} rank {peer}, {place(one)} ({one.why})"
    if one.at_last_call:
        return f"rank {one.rank} was {place(one)}, not waiting in a collective"
    return f"rank {one.rank} was {place(one)}, not in a collective ({one.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumps:
    """What the dumps of a job say."""

    hangs: Hangs
    ranks: Sequence[int]
    world_size: int
    problems: list[Problem]


def dumps_alone(path: Path) -> Dumps | None:
    """Reads the dumps at a path; None if there are none, or if there is a run or traces, which say more.

    Raises:
        DataError: None of them can be read.
    """
    if not path.exists() or next(dump_files(path), None) is None:
        return None
    if path.is_dir() and (is_recorded(path) or is_merge(path) or discover([path], named=True).candidates):
        return None
    found, unreadable = read_dumps(path)
    if not found:
        raise DataError(f"no readable flight recorder dumps in {path}: {unreadable[0].file}: {unreadable[0].detail}")
    size = next(iter(found.values())).world_size
    missing = tuple(rank for rank in range(size) if rank not in found)
    problems: list[Problem] = [*unreadable, *([RanksMissing(ranks=missing, world_size=size)] if missing else [])]
    return Dumps(hangs=hangs(found), ranks=list(found), world_size=size, problems=problems)


def dumps_text(found: Dumps, *, as_json: bool) -> str:
    """Returns where the job got stuck, as lines or as `stuck` of `comms --json`."""
    if as_json:
        return json.dumps({
            "format": FORMAT, "kind": "flight_recorder", "world_size": found.world_size, "ranks": found.ranks,
            "problems": msgspec.to_builtins(found.problems),
            "stuck": msgspec.to_builtins({"hangs": found.hangs.hangs, "ranks": list(found.hangs.standing.values())}),
        }, indent=1)
    page = Page()
    for line in _dump_lines(found):
        page.line(line)
    show_problems((), found.problems, page)
    return page.text()


def _dump_lines(found: Dumps) -> Iterator[str]:
    yield f"dumps of torch's flight recorder: {rank_list(found.ranks)}"
    if not found.hangs.hangs:
        yield "no collective was left unfinished"
    yield from hang_lines(found.hangs)
    yield "waiting times are derived from when the files were written: keep those times when copying (cp -p)"


def standstill_lines(found: Standstill, stuck: Mapping[int, Stuck], doing: Mapping[int, Doing],
                     since_ns: int) -> list[str]:
    """Returns first what the job hangs in, then where all ranks are.

    Args:
        found: The standstill.
        stuck: Where ranks are, for those that reported.
        doing: What each rank does.
        since_ns: How long no step has ended.
    """
    told = list(hang_lines(found.hangs)) if found.hangs.hangs else []
    said = {rank for one in found.hangs.hangs for rank in one.unknown}  # their lines say that they left no report
    missing = [f"rank {rank} {WITHOUT_REPORT[doing[rank]]}" for rank in sorted(doing)
               if rank not in stuck and not (rank in said and doing[rank] == "unknown")]
    if told:
        first = "; ".join([told[0], *missing])
    else:
        places = [f"{rank_list(ranks)} {'is' if len(ranks) == 1 else 'are'} at {_place(frames)}"
                  for ranks, frames in same_stacks(stuck)[:SHOWN_GROUPS]]
        first = "; ".join([f"stuck: no step has ended for {brief(since_ns, 2)}", *missing, *places])
    return [first, *told[1:], *_groups(stuck)]


def _groups(stuck: Mapping[int, Stuck]) -> list[str]:
    return [f"{rank_list(ranks)}: {_calls(frames)}" for ranks, frames in same_stacks(stuck)[:SHOWN_GROUPS]]


def _calls(frames: Sequence[StackFrame]) -> str:
    return " > ".join(f"{frame.function} ({file_name(frame.file)}:{frame.line})" for frame in frames) or "no stack"


def _place(frames: Sequence[StackFrame]) -> str:
    own = [frame for frame in frames if not any(part in frame.file for part in LIBRARY)]
    frame = next(reversed(own or list(frames)), None)
    return "an unknown line" if frame is None else f"{file_name(frame.file)}:{frame.line} in {frame.function}"
