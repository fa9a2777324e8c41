"""Finds the folders of ranks in a run directory: which can be read, and which belong together.

If torchrun restarted a job, the folders of the last attempt lie in the run directory itself, and each earlier attempt
in a folder of its own.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distprof.contract.mesh import SIZE_FLAGS
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON, attempt_folder, rank_folder
from distprof.contract.problems import EarlierAttempts, FolderLeftOut, Problem, Unreadable
from distprof.contract.rank_json import RankJson, first_failure, read
from distprof.errors import DataError, FormatError, UsageError
from distprof.merge.run.launches import Launch
from distprof.merge.run.summaries.summaries import Summaries
from distprof.storage.places import ahead, remote

SIZES = "(mp_size, dp_size)"
NAMED = 8
"""Up to this many folders are named one by one in a message."""
FOLDER = re.compile(rf"rank(\d+)({re.escape(PARTIAL_SUFFIX)})?")
ATTEMPT = re.compile(r"attempt(\d{4,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFolder:
    """The folder of a rank and its rank.json."""

    path: Path
    content: RankJson
    label: str
    """How messages call the folder: its name, with the directory if several were given."""
    has_summary: bool = False
    """True if the rank was read from a summary: the folder was not opened and need not exist."""

    @property
    def completeness(self) -> tuple[bool, bool, int]:
        """Sort key for folders of one rank: has its final name, all needed passes are done, number of steps."""
        return (not self.path.name.endswith(PARTIAL_SUFFIX), self.content.status == "complete",
                self.content.num_steps or 0)

    @property
    def is_called_like_its_rank(self) -> bool:
        """True if the number in the folder's name is that of the rank."""
        name = FOLDER.fullmatch(self.path.name)
        return name is not None and name[1].lstrip("0") == str(self.content.rank).lstrip("0")


def rank_folders(paths: Sequence[Path], problems: list[Problem],
                 summaries: Summaries | None = None) -> list[RankFolder]:
    """Finds every rank that can be read in some run directories; an unreadable folder is a problem, not an error.

    Args:
        paths: Run directories of one job.
        problems: Receives what cannot be read.
        summaries: Summaries of ranks whose folders need not be opened.

    Raises:
        DataError: No rank can be read.
        FormatError: No rank can be read, and some were written by a newer distprof.
    """
    found: dict[int, list[RankFolder]] = defaultdict(list)
    left_out, newer = list[Unreadable](), list[FormatError]()
    known = _of_summaries(paths, summaries)
    folders = list[Path]()
    for path in paths:
        for name in names_in(path):
            if name in known:
                known[name] = replace(known[name], path=path / name)
            else:
                folders.append(path / name)
    with ahead(folder / RANK_JSON for folder in folders):
        _read(folders, found, left_out, newer, one_run=len(paths) == 1)
    for one in known.values():
        found[one.content.rank].append(one)
    left_out = _together(left_out)
    if not found and newer:
        raise newer[0]
    if not found:
        where = " and ".join(map(str, paths))
        raise DataError(f"no readable rank folders like rank00000 in {where}"
                        + "".join(f"; {one.file}: {one.detail}" for one in left_out),
                        hint="distprof reads only directories written by distprof run or distprof.record")
    problems += left_out
    return [_one_of(found[number], problems) for number in sorted(found)]


def _read(folders: Sequence[Path], found: dict[int, list[RankFolder]], left_out: list[Unreadable],
          newer: list[FormatError], *, one_run: bool) -> None:
    """Adds each folder to those of its rank, or says why it is left out."""
    for folder in folders:
        label = folder.name if one_run else str(folder)
        try:
            if not (folder / RANK_JSON).exists():
                detail = f"it has no {RANK_JSON}" if any(folder.iterdir()) else "it is empty"
                left_out.append(Unreadable(file=label, detail=detail))
                continue
            one = RankFolder(path=folder, content=read(folder / RANK_JSON, RankJson), label=label)
        except (DataError, OSError) as error:
            newer += [error] if isinstance(error, FormatError) else []
            left_out.append(Unreadable(file=label, detail=str(error.args[0])))
            continue
        found[one.content.rank].append(one)


def _together(left_out: Sequence[Unreadable]) -> list[Unreadable]:
    """Joins problems with the same detail into one line: a failed launch may leave such a folder for each rank."""
    alike = defaultdict[str, list[Unreadable]](list)
    for one in left_out:
        alike[one.detail].append(one)
    return [Unreadable(file=_named([one.file or "" for one in some]), detail=detail) for detail, some in alike.items()]


def _named(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= NAMED else f"{labels[0]} and {len(labels) - 1} more"


def _of_summaries(paths: Sequence[Path], summaries: Summaries | None) -> dict[str, RankFolder]:
    """Returns the ranks with a summary by the name of their folder; a summary without a name gets the usual one."""
    if summaries is None:
        return {}
    names = {rank: summaries.folders[rank] or rank_folder(rank) for rank in summaries.frames}
    return {name: RankFolder(path=paths[0] / name, content=summaries.abouts[rank], label=name, has_summary=True)
            for rank, name in names.items()}


def names_in(path: Path) -> list[str]:
    """Returns the names of the folders of ranks in a run directory, from a single listing."""
    if remote(path) is not None:
        return sorted(child.name for child in path.iterdir() if FOLDER.fullmatch(child.name) and child.is_dir())
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if FOLDER.fullmatch(entry.name) and entry.is_dir())


def _one_of(folders: Sequence[RankFolder], problems: list[Problem]) -> RankFolder:
    """Chooses one of several folders of a rank: preferably one named after the rank, then the most complete one."""
    chosen, *others = sorted(
        folders, key=lambda one: (one.is_called_like_its_rank, *one.completeness), reverse=True)
    problems += [FolderLeftOut(folder=one.label, why=f"{chosen.label} also belongs to rank {one.content.rank}"
                               + (" and is more complete" if one.completeness < chosen.completeness else ""))
                 for one in others]
    return chosen


def agreeing(folders: list[RankFolder], about: Launch | None, problems: list[Problem]) -> list[RankFolder]:
    """Returns the folders of one run; the minority that contradicts the others is left out and noted.

    Raises:
        DataError: Two values are equally frequent, so that there is no majority; or no rank is below the world size.
    """
    folders = _of_most(folders, lambda rank: rank.run_id, "run", about.run_id if about is not None else None, problems)
    folders = _of_most(folders, lambda rank: rank.world_size, "world size",
                       about.world_size if about is not None else None, problems)
    size = folders[0].content.world_size
    problems += [FolderLeftOut(folder=one.label, why=f"it belongs to rank {one.content.rank}, but there are {size} "
                                                     "ranks")
                 for one in folders if one.content.rank >= size]
    folders = [one for one in folders if one.content.rank < size]
    if not folders:
        raise DataError(f"no rank is below the world size {size}",
                        hint="the folders belong to different jobs")
    known = [one for one in folders if one.content.mp_size is not None]
    kept = {one.content.rank for one in _of_most(known, lambda rank: (rank.mp_size, rank.dp_size), SIZES, None,
                                                 problems)}
    return [one for one in folders if one.content.rank in kept or one.content.mp_size is None]


def _of_most(folders: list[RankFolder], value_of: Callable[[RankJson], Any], what: str, known: object,
             problems: list[Problem]) -> list[RankFolder]:
    """Returns the folders with the known value, or else with the most frequent one."""
    counts = Counter(value_of(one.content) for one in folders)
    if len(counts) < 2:
        return folders
    (most, number), (_, next_number), *_ = counts.most_common()
    if known in counts:
        most = known
    elif number == next_number:
        shown = ", ".join(f"{value} in {_names(folders, value_of, value)}" for value in counts)
        hint = f"give the sizes to distprof run: {SIZE_FLAGS}" if what == SIZES else \
            "remove the folders that do not belong to this run"
        raise DataError(f"ranks differ in {what}: {shown}", hint=hint)
    problems += [FolderLeftOut(folder=one.label, why=f"its {what} is {value}, but {most} on others")
                 for one in folders if (value := value_of(one.content)) != most]
    return [one for one in folders if value_of(one.content) == most]


def _names(folders: Sequence[RankFolder], value_of: Callable[[RankJson], Any], value: object) -> str:
    return ", ".join(one.label for one in folders if value_of(one.content) == value)


def of_attempt(paths: Sequence[Path], attempt: int | None) -> tuple[Path, ...]:
    """Returns where an attempt lies in run directories: None means the directories themselves.

    Raises:
        UsageError: There is no such attempt.
    """
    if attempt is None:
        return tuple(paths)
    found = [place for path in paths if (place := _place(path, attempt)) is not None]
    if not found:
        there = sorted({number for path in paths for number in (*_earlier(path), *_last(path))})
        raise UsageError(f"no attempt {attempt}; --attempt can be "
                         f"{', '.join(map(str, there)) or '(none)'}", hint="distprof stats lists the attempts")
    return tuple(found)


def _place(path: Path, attempt: int) -> Path | None:
    folder = path / attempt_folder(attempt)
    if folder.is_dir():
        return folder
    return path if attempt in _last(path) else None


def earlier_attempts(paths: Sequence[Path], shown: int) -> Iterator[EarlierAttempts]:
    """Yields a remark on each attempt before the shown one, with what ended it."""
    for number in sorted({number for path in paths for number in _earlier(path)}):
        folders = [path / attempt_folder(number) for path in paths if (path / attempt_folder(number)).is_dir()]
        ignored: list[Problem] = []
        try:
            ranks = [one.content for one in rank_folders(folders, ignored)]
        except DataError:
            ranks = []
        first = first_failure(ranks)
        yield EarlierAttempts(attempt=number, shown=shown, rank=first.rank if first else None,
                              why=first.failure.what if first and first.failure else None)


def _earlier(path: Path) -> list[int]:
    try:
        return [int(name[1]) for child in path.iterdir() if (name := ATTEMPT.fullmatch(child.name)) and child.is_dir()]
    except OSError:
        return []


def _last(path: Path) -> set[int]:
    found = set()
    for file in path.glob(f"rank*/{RANK_JSON}"):
        try:
            found.add(read(file, RankJson).attempt)
        except DataError:
            continue  # reading the ranks reports it
    return found
