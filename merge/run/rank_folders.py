"""The folders of ranks in a run directory: which can be read, and which belong together.

Of a job that torchrun restarted, the last attempt lies there, and each earlier one in a folder of its own.
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
"""Folders up to which each is named."""
FOLDER = re.compile(rf"rank(\d+)({re.escape(PARTIAL_SUFFIX)})?")
ATTEMPT = re.compile(r"attempt(\d{4,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFolder:
    """The folder of a rank and its rank.json."""

    path: Path
    content: RankJson
    label: str
    """What to call it: its name, with the directory where several were given."""
    has_summary: bool = False
    """True where the folder was not opened, and need not be there."""

    @property
    def completeness(self) -> tuple[bool, bool, int]:
        """Orders folders of one rank: renamed at its end, all needed passes done, steps."""
        return (not self.path.name.endswith(PARTIAL_SUFFIX), self.content.status == "complete",
                self.content.num_steps or 0)

    @property
    def is_called_like_its_rank(self) -> bool:
        """True where the number in its name is that of the rank."""
        name = FOLDER.fullmatch(self.path.name)
        return name is not None and name[1].lstrip("0") == str(self.content.rank).lstrip("0")


def rank_folders(paths: Sequence[Path], problems: list[Problem],
                 summaries: Summaries | None = None) -> list[RankFolder]:
    """Every rank that can be read in some run directories; a folder that cannot is a problem, not the end.

    Args:
        paths: Run directories of one job.
        problems: What cannot be read is added here.
        summaries: Of ranks whose folders need not be opened.

    Raises:
        DataError: None can be read.
        FormatError: None can be read, and some are of a newer distprof.
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
    """One line for folders of which the same is said: a launch that fails may leave one of each rank."""
    alike = defaultdict[str, list[Unreadable]](list)
    for one in left_out:
        alike[one.detail].append(one)
    return [Unreadable(file=_named([one.file or "" for one in some]), detail=detail) for detail, some in alike.items()]


def _named(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= NAMED else f"{labels[0]} and {len(labels) - 1} more"


def _of_summaries(paths: Sequence[Path], summaries: Summaries | None) -> dict[str, RankFolder]:
    """Ranks with a summary, by the name of their folder, in which a summary need not have been left."""
    if summaries is None:
        return {}
    names = {rank: summaries.folders[rank] or rank_folder(rank) for rank in summaries.frames}
    return {name: RankFolder(path=paths[0] / name, content=summaries.abouts[rank], label=name, has_summary=True)
            for rank, name in names.items()}


def names_in(path: Path) -> list[str]:
    """Names of the folders of ranks in a run directory, by one listing."""
    if remote(path) is not None:
        return sorted(child.name for child in path.iterdir() if FOLDER.fullmatch(child.name) and child.is_dir())
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if FOLDER.fullmatch(entry.name) and entry.is_dir())


def _one_of(folders: Sequence[RankFolder], problems: list[Problem]) -> RankFolder:
    """The folder of a rank: of several the one that is called like it, of these the most complete one."""
    chosen, *others = sorted(
        folders, key=lambda one: (one.is_called_like_its_rank, *one.completeness), reverse=True)
    problems += [FolderLeftOut(folder=one.label, why=f"{chosen.label} also belongs to rank {one.content.rank}"
                               + (" and is more complete" if one.completeness < chosen.completeness else ""))
                 for one in others]
    return chosen


def agreeing(folders: list[RankFolder], about: Launch | None, problems: list[Problem]) -> list[RankFolder]:
    """Those of one run; a few that contradict the others are left out.

    Raises:
        DataError: As many ranks say one thing as another.
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
    """Those with the known value, or the one that most of them have."""
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
    """Where an attempt lies in run directories; the directories themselves for the last one.

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
    """A remark on each attempt before the one that is shown, with what ended it."""
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
            continue  # who reads the ranks will say so
    return found
