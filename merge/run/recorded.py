"""Reads a run directory of ours: run.json and the rank.json of every rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.contract.mesh import SIZE_FLAGS
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON, RUN_JSON, STEP_LINES, TRACE_JSON
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
from distprof.errors import DataError, FormatError
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.scan.trace_file import TraceFile

FOLDER = re.compile(rf"rank(\d+)({re.escape(PARTIAL_SUFFIX)})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """The folder of a rank and its rank.json."""

    path: Path
    content: RankJson


def recorded_run(path: Path) -> Run:
    """The run that lies in a directory.

    Raises:
        DataError: No rank can be read, or the ranks are not of one run.
        FormatError: It was written by a newer distprof.
    """
    problems: list[Problem] = []
    about = _about(path, problems)
    folders, left_out = _folders(path)
    if not folders:
        raise DataError(f"expected rank folders like rank00000 in {path}, found none that can be read"
                        + "".join(f"; {one.file}: {one.detail}" for one in left_out),
                        hint="only directories written by distprof run or distprof.record can be read")
    problems += left_out
    _check_same_run(folders, about)
    ranks = [one.content for one in folders]
    world_size = _world_size(ranks, about)
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


def _rank(folder: _Folder) -> Rank:
    content, trace = folder.content, folder.path / TRACE_JSON
    return Rank(number=content.rank, folder=folder.path, host=content.host, coordinates=content.coordinates,
                device_name=content.device_name, trace=TraceFile(path=trace) if trace.is_file() else None,
                recorded=content)


def _about(path: Path, problems: list[Problem]) -> RunJson | None:
    try:
        return read(path / RUN_JSON, RunJson) if (path / RUN_JSON).exists() else None
    except FormatError:
        raise
    except DataError as error:
        problems.append(Unreadable(detail=str(error.args[0])))
        return None


def _folders(path: Path) -> tuple[list[_Folder], list[Unreadable]]:
    """Every rank that can be read; a folder that cannot is a problem, not the end."""
    found: dict[int, _Folder] = {}
    left_out: list[Unreadable] = []
    for folder in sorted(child for child in path.iterdir() if FOLDER.fullmatch(child.name) and child.is_dir()):
        if not (folder / RANK_JSON).exists():
            detail = f"it has no {RANK_JSON}" if any(folder.iterdir()) else "it is empty"
            left_out.append(Unreadable(file=folder.name, detail=detail))
            continue
        try:
            one = _Folder(path=folder, content=read(folder / RANK_JSON, RankJson))
        except FormatError:
            raise
        except DataError as error:
            left_out.append(Unreadable(file=folder.name, detail=str(error.args[0])))
            continue
        rank = one.content.rank
        other = found.setdefault(rank, one)
        if other is not one:
            raise DataError(f"expected one folder of rank {rank}, found {other.path.name} and {folder.name}",
                            hint="remove the one that does not belong to this run")
    return [found[number] for number in sorted(found)], left_out


def _check_same_run(folders: Sequence[_Folder], about: RunJson | None) -> None:
    ids = Counter(folder.content.run_id for folder in folders)
    expected = about.run_id if about is not None else ids.most_common(1)[0][0]
    for folder in folders:
        if folder.content.run_id != expected:
            raise DataError(f"expected ranks of run {expected}, found run {folder.content.run_id} in "
                            f"{folder.path.name}", hint=f"remove {folder.path} or put the right folder there")


def _world_size(ranks: Sequence[RankJson], about: RunJson | None) -> int:
    sizes = {rank.world_size for rank in ranks}
    if len(sizes) > 1:
        raise DataError(f"expected one world size in all ranks, found {sorted(sizes)}",
                        hint="the folders are of different jobs")
    size = sizes.pop()
    outside = [rank.rank for rank in ranks if rank.rank >= size]
    if outside:
        raise DataError(f"expected ranks below the world size {size}, found rank {outside[0]}")
    # a rank that ran alone in a job of several never met the others
    return max(size, about.world_size or 0) if about is not None else size


def _sizes(ranks: Sequence[RankJson], world_size: int) -> tuple[int, int]:
    found = {(rank.mp_size, rank.dp_size) for rank in ranks if rank.mp_size is not None}
    if len(found) > 1:
        raise DataError(f"expected one (mp_size, dp_size) in all ranks, found {sorted(map(str, found))}",
                        hint=f"give the sizes to distprof run: {SIZE_FLAGS}")
    mp_size, dp_size = found.pop() if found else (1, world_size)
    if not mp_size or not dp_size or mp_size * dp_size != world_size:
        raise DataError(f"expected mp_size x dp_size = world size {world_size}, found mp_size {mp_size} and dp_size "
                        f"{dp_size}", hint=f"mp_size must divide the world size: check {SIZE_FLAGS}")
    return mp_size, dp_size


def _problems_of(folder: _Folder) -> list[Problem]:
    content, found = folder.content, list[Problem]()
    if content.status != "complete":
        found.append(Unfinished(rank=content.rank, status=content.status, steps=_steps_written(folder),
                                why=content.why))
    lost = [name for name in content.files if not (folder.path / name).is_file()]
    if lost:
        found.append(FilesMissing(rank=content.rank, files=tuple(lost)))
    return found


def _steps_written(folder: _Folder) -> int:
    lines = folder.path / STEP_LINES
    return len(lines.read_bytes().splitlines()) if lines.exists() else folder.content.num_steps or 0
