"""Reads a run directory of ours: run.json and the rank.json of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distprof.contract.mesh import SIZE_FLAGS
from distprof.contract.paths import PARTIAL_SUFFIX, RUN_JSON, STEP_LINES, TRACE_JSON
from distprof.contract.problems import (
    AttemptsDiffer,
    FilesMissing,
    Problem,
    RankFailed,
    RanksMissing,
    Unfinished,
    Unreadable,
)
from distprof.contract.rank_json import RankJson, RunJson, read
from distprof.contract.tables import STEPS
from distprof.errors import DataError
from distprof.merge.run.rank_folders import RankFolder, agreeing, rank_folders
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.scan.trace_file import TraceFile


def recorded_run(path: Path) -> Run:
    """The run that lies in a directory.

    Raises:
        DataError: No rank can be read, or the ranks are not of one run.
        FormatError: It was written by a newer distprof.
    """
    problems: list[Problem] = []
    about = _about(path, problems)
    folders = agreeing(rank_folders(path, problems), about, problems)
    ranks = [one.content for one in folders]
    # a rank that ran alone in a job of several never met the others
    world_size = max(ranks[0].world_size, about.world_size or 0) if about is not None else ranks[0].world_size
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    if about is not None and about.failed_rank is not None:
        why = next((one.why for one in ranks if one.rank == about.failed_rank and one.status == "complete"), None)
        problems.append(RankFailed(rank=about.failed_rank, exit_code=about.failed_with or 0, why=why))
    if missing:
        problems.append(RanksMissing(ranks=tuple(missing), world_size=world_size))
    problems += [problem for folder in folders for problem in _problems_of(folder)]
    attempts = {rank.attempt for rank in ranks}
    if len(attempts) > 1:
        problems.append(AttemptsDiffer(attempts=tuple(sorted(attempts))))
    mp_size, dp_size = _sizes(ranks, world_size)
    known = next((rank for rank in ranks if rank.topology is not None), None)
    return Run(path=path, run_id=ranks[0].run_id, world_size=world_size, mp_size=mp_size, dp_size=dp_size,
               topology=(known.topology if known else None) or {"dp": world_size},
               topology_source=(known.topology_source if known else None) or "unknown",
               ranks=[_rank(one) for one in folders], missing=missing, problems=tuple(problems))


def _rank(folder: RankFolder) -> Rank:
    content, trace = folder.content, folder.path / TRACE_JSON
    return Rank(number=content.rank, folder=folder.path, host=content.host, coordinates=content.coordinates,
                device_name=content.device_name, trace=TraceFile(path=trace) if trace.is_file() else None,
                recorded=content)


def _about(path: Path, problems: list[Problem]) -> RunJson | None:
    try:
        return read(path / RUN_JSON, RunJson) if (path / RUN_JSON).exists() else None
    except DataError as error:
        problems.append(Unreadable(detail=str(error.args[0])))
        return None


def _sizes(ranks: Sequence[RankJson], world_size: int) -> tuple[int, int]:
    mp_size, dp_size = next(((rank.mp_size, rank.dp_size) for rank in ranks if rank.mp_size is not None),
                            (1, world_size))
    if not mp_size or not dp_size or mp_size * dp_size != world_size:
        raise DataError(f"expected mp_size x dp_size = world size {world_size}, found mp_size {mp_size} and dp_size "
                        f"{dp_size}", hint=f"mp_size must divide the world size: check {SIZE_FLAGS}")
    return mp_size, dp_size


def _problems_of(folder: RankFolder) -> list[Problem]:
    content, found = folder.content, list[Problem]()
    # all that is needed was there, and then the rank died in the arrivals pass
    cut = content.status == "complete" and folder.path.name.endswith(PARTIAL_SUFFIX)
    if content.status != "complete" or cut:
        found.append(Unfinished(rank=content.rank, status="recording" if cut else content.status,
                                steps=_steps_written(folder), why=content.why))
    lost = [name for name in content.files if not (folder.path / name).is_file()]
    if lost:
        found.append(FilesMissing(rank=content.rank, files=tuple(lost)))
    return found


def _steps_written(folder: RankFolder) -> int:
    in_table = folder.content.files.get(STEPS.file)
    if in_table is not None:
        return in_table
    lines = folder.path / STEP_LINES
    return len(lines.read_bytes().splitlines()) if lines.exists() else folder.content.num_steps or 0
