"""Reads the run directories of one job: run.json of each directory, and rank.json of every rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from distprof.contract.mesh import SIZE_FLAGS, part_of
from distprof.contract.paths import (
    EXECUTION_TRACE_JSON,
    PARTIAL_SUFFIX,
    PLAIN_EXECUTION_TRACE_JSON,
    RUN_JSON,
    STEP_LINES,
    TRACE_JSON,
)
from distprof.contract.problems import (
    AttemptsDiffer,
    FilesMissing,
    Problem,
    RanksMissing,
    RecordedAgain,
    RecordedLater,
    RecordedLightly,
    ScriptInterrupted,
    ScriptProfiled,
    StepsUnsure,
    TimelinesCapped,
    Unfinished,
)
from distprof.contract.rank_json import RankJson, StepRule, StepsFound
from distprof.contract.tables import STEPS
from distprof.contract.watch_state import WINDOWS
from distprof.errors import DataError
from distprof.files import MOST_LINES_BYTES, read_small
from distprof.freed_memory import uncollected
from distprof.merge.run.launches import Launch, check_one_run, failed_first, joined, launch_in
from distprof.merge.run.rank_folders import RankFolder, agreeing, earlier_attempts, names_in, rank_folders
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.summaries.summaries import JOINED, MANY_RANKS, Summaries, read_summaries
from distprof.merge.scan.trace_file import TraceFile
from distprof.storage.places import real, remote
from distprof.summaries.host_file import files_of

LEFT: dict[StepRule, Literal["late", "explicit"]] = {"forward": "late", "explicit": "explicit"}
"""Step rule -> what it means that optimizers did not step as the rule says; `left` for other rules."""


def recorded_run(*paths: Path, by_host: bool = False, only: Collection[str] = tuple(JOINED)) -> Run:
    """Opens the run in one directory, or in several that the hosts of one job wrote separately.

    Args:
        *paths: The directories.
        by_host: Whether the files of hosts may be read in place of the folders of ranks, if there are many ranks.
        only: With `by_host`, the tables that are wanted.

    Raises:
        DataError: No rank can be read, or the ranks do not belong to one run.
        FormatError: It was written by a newer distprof.
    """
    paths = tuple({real(path): path for path in paths}.values())
    problems: list[Problem] = []
    launches = [launch_in(path, problems) for path in paths]
    if len(paths) > 1:
        check_one_run(paths, launches)
    about = joined(launches)
    summaries = _summaries(paths, only, about) if by_host else None
    folders = agreeing(rank_folders(paths, problems, summaries), about, problems)
    ranks = [one.content for one in folders]
    # a rank that ran alone in a job of several never met the others, so its world size is too small
    world_size = max(ranks[0].world_size, about.world_size or 0) if about is not None else ranks[0].world_size
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    interrupted = about is not None and about.interrupted
    problems += failed_first(about, ranks) if not interrupted else ()
    if missing:
        where = about.places_of(missing, apart_from=paths) if about is not None else ()
        problems.append(RanksMissing(ranks=tuple(missing), world_size=world_size, where=where))
    problems += [problem for folder in folders for problem in _problems_of(folder)]
    problems += _capped(ranks)
    problems += unsure(ranks)
    problems += summaries.problems if summaries is not None else ()
    attempts = {rank.attempt for rank in ranks}
    if len(attempts) > 1:
        problems.append(AttemptsDiffer(attempts=tuple(sorted(attempts))))
    mp_size, dp_size = _sizes(ranks, world_size)
    known = next((rank for rank in ranks if rank.topology is not None), None)
    return Run(path=paths[0], more=paths[1:], run_id=ranks[0].run_id, world_size=world_size, mp_size=mp_size,
               dp_size=dp_size, topology=(known.topology if known else None) or {"dp": world_size},
               topology_source=(known.topology_source if known else None) or "unknown",
               ranks=[_rank(one) for one in folders], missing=missing, problems=tuple(problems),
               remarks=(*earlier_attempts(paths, max(attempts)), *_lightly(ranks), *_profiled(ranks),
                        *_later(about, ranks), *_again(paths[0]), *((ScriptInterrupted(),) if interrupted else ())),
               summaries=summaries)


def _summaries(paths: Sequence[Path], only: Collection[str], about: Launch | None) -> Summaries | None:
    """Returns the summaries of a run of more than `MANY_RANKS` ranks, if most ranks have one."""
    names = [name for path in paths for name in names_in(path)]
    if len(names) <= MANY_RANKS:  # there may be more, without folders
        if about is not None and about.world_size is not None and about.world_size <= MANY_RANKS:
            return None
        if not any(True for path in paths for _ in files_of(path)):
            return None
    with uncollected():
        found = read_summaries(paths, folders=names, only=only)
    if found is None or len(found.frames) <= MANY_RANKS:
        return None
    described = set(found.folders.values())
    return found if sum(name not in described for name in names) <= len(found.frames) else None


def _capped(ranks: Sequence[RankJson]) -> Iterator[TimelinesCapped]:
    found = {one.rank: one.left_out for one in ranks if one.left_out is not None}
    if found:
        each = found.values()
        yield TimelinesCapped(
            ranks=tuple(found), num_events=sum(one.num_events for one in each),
            total_ns=sum(one.total_ns for one in each), longest_ns=max(one.longest_ns for one in each),
            most_bytes=max(one.most_bytes for one in each))


def _lightly(ranks: Sequence[RankJson]) -> Iterator[RecordedLightly]:
    full = [one for one in ranks if not one.light]
    if len(full) < len(ranks):
        counted = {part_of(one.coordinates) for one in full}
        yield RecordedLightly(full=tuple(one.rank for one in full), of=len(ranks),
                              parts_counted=all(part_of(one.coordinates) in counted for one in ranks))


def _later(about: Launch | None, ranks: Sequence[RankJson]) -> Iterator[RecordedLater]:
    num_steps = max((one.num_steps or 0 for one in ranks), default=0)
    if about is not None and about.first_step and num_steps:
        yield RecordedLater(first=about.first_step, last=about.first_step + num_steps - 1)


def _again(path: Path) -> Iterator[RecordedAgain]:
    found = list((path / WINDOWS).glob(f"[0-9]*/{RUN_JSON}")) if remote(path) is None else []
    if found:
        yield RecordedAgain(num_runs=len(found), folder=str(path / WINDOWS))


def _profiled(ranks: Sequence[RankJson]) -> Iterator[ScriptProfiled]:
    by_steps: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for one in ranks:
        if one.profiled_steps:
            by_steps[tuple(one.profiled_steps)].append(one.rank)
    for steps, found in by_steps.items():
        yield ScriptProfiled(ranks=tuple(found), steps=steps)


def _rank(folder: RankFolder) -> Rank:
    content = folder.content
    if folder.has_summary:
        return Rank(number=content.rank, folder=folder.path, host=content.host, coordinates=content.coordinates,
                    device_name=content.device_name, recorded=content,
                    trace=TraceFile(path=folder.path / TRACE_JSON) if TRACE_JSON in content.files else None)
    return Rank(number=content.rank, folder=folder.path, host=content.host, coordinates=content.coordinates,
                device_name=content.device_name, trace=_file(folder.path / TRACE_JSON),
                recorded=content,
                execution_trace=_file(folder.path / EXECUTION_TRACE_JSON)
                or _file(folder.path / PLAIN_EXECUTION_TRACE_JSON))


def _file(path: Path) -> TraceFile | None:
    return TraceFile(path=path) if path.is_file() else None


def _sizes(ranks: Sequence[RankJson], world_size: int) -> tuple[int, int]:
    mp_size, dp_size = next(((rank.mp_size, rank.dp_size) for rank in ranks if rank.mp_size is not None),
                            (1, world_size))
    if not mp_size or not dp_size or mp_size * dp_size != world_size:
        raise DataError(f"mp_size x dp_size must be the world size {world_size}, found mp_size {mp_size} and dp_size "
                        f"{dp_size}", hint=f"mp_size must divide the world size: check {SIZE_FLAGS}")
    return mp_size, dp_size


def _problems_of(folder: RankFolder) -> list[Problem]:
    content, found = folder.content, list[Problem]()
    if folder.has_summary and content.status == "complete":
        return found
    # everything needed was recorded before the rank died in the arrivals pass
    cut = content.status == "complete" and folder.path.name.endswith(PARTIAL_SUFFIX)
    if content.status != "complete" or cut:
        found.append(Unfinished(rank=content.rank, status="recording" if cut else content.status,
                                steps=_steps_written(folder), why=content.why))
    lost = [] if folder.has_summary else [name for name in content.files if not (folder.path / name).is_file()]
    if lost:
        found.append(FilesMissing(rank=content.rank, files=tuple(lost)))
    return found


def _steps_written(folder: RankFolder) -> int:
    in_table = folder.content.files.get(STEPS.file)
    if in_table is not None:
        return in_table
    lines = folder.path / STEP_LINES
    try:
        return len(read_small(lines, MOST_LINES_BYTES).splitlines())
    except OSError:
        return folder.content.num_steps or 0


def unsure(ranks: Sequence[RankJson]) -> Iterator[StepsUnsure]:
    """Yields each reason why a step may not be what the user takes it for, once."""
    known = [(rank.rank, rank.steps_found) for rank in ranks if rank.steps_found is not None]
    if not known:
        return
    usual = _alike(known[0][1])
    others = tuple(number for number, found in known if _alike(found) != usual)
    if others:
        yield StepsUnsure(what="differ", ranks=others)
    found = known[0][1]
    names = tuple(one.name for one in found.optimizers)
    if found.rule == "irregular":
        yield StepsUnsure(what="irregular", num_turns=found.looked_at, names=names)
    if found.silent:
        yield StepsUnsure(what="silent", num_turns=found.looked_at, names=tuple(dict.fromkeys(found.silent)))
    if found.left_in is not None:
        yield StepsUnsure(what=LEFT.get(found.rule, "left"), step=found.left_in)


def _alike(found: StepsFound) -> Any:
    """Returns what must be equal on all ranks; not names of optimizers: pipeline stages hold different modules."""
    in_order = [] if found.rule in ("backward", "given") else [one.steps for one in found.optimizers]
    return found.rule, in_order, found.given, found.looked_at
