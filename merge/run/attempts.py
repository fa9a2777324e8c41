"""Attempts of a job that torchrun restarted: the last lies in the run directory, each earlier one in a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from distprof.contract.paths import RANK_JSON, attempt_folder
from distprof.contract.problems import EarlierAttempts, Problem
from distprof.contract.rank_json import RankJson, first_failure, read
from distprof.errors import DataError, UsageError
from distprof.merge.run.rank_folders import rank_folders

FOLDER = re.compile(r"attempt(\d{4,})")


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
        return [int(name[1]) for child in path.iterdir() if (name := FOLDER.fullmatch(child.name)) and child.is_dir()]
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
