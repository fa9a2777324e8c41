"""Which of the given paths are memory snapshots, and of which rank each is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from distprof.contract.paths import MERGED
from distprof.errors import DataError
from distprof.merge.run.traces.discovery import LEVELS, first_few, is_recorded, trace_times
from distprof.merge.run.traces.rank_from_name import natural, rank_in

SUFFIXES = (".pickle", ".pkl")
PICKLE = b"\x80"
"""Begins every pickle since protocol 2."""


def find_snapshots(paths: Sequence[Path]) -> list[Path]:
    """Snapshots at the given paths; none where these are runs or traces.

    Raises:
        DataError: Some are snapshots, others are not.
    """
    found = {path: _at(path) for path in paths}
    without = [path for path, files in found.items() if not files]
    if len(without) == len(found):
        return []
    if without:
        raise DataError(f"memory snapshots cannot be combined with other files: {without[0]}",
                        hint="call distprof memory for each")
    return list(dict.fromkeys(file for files in found.values() for file in files))


def _at(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.name.endswith(SUFFIXES) or _begins_like_a_pickle(path) else []
    if not path.is_dir() or is_recorded(path) or next(trace_times(path), None) is not None:
        return []
    levels = ("*", "*/*", "*/*/*")[:LEVELS + 1]
    files = [file for level in levels for file in path.glob(level)
             if file.name.endswith(SUFFIXES) and file.is_file() and MERGED not in file.parts]
    return sorted(files, key=lambda file: natural(str(file)))


def _begins_like_a_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(1) == PICKLE
    except OSError:  # who reads it as a trace says so
        return False


def ranks_of(files: Sequence[Path]) -> tuple[Mapping[int, Path], bool]:
    """A file for each rank, and whether names told the ranks: else they are numbered in their order.

    Raises:
        DataError: A rank has several.
    """
    names = [rank_in(PurePosixPath(*file.parts[-1 - LEVELS:])) for file in files]
    if None in names:
        return dict(enumerate(files)), len(files) == 1
    of_rank: dict[int, list[str]] = defaultdict(list)
    for rank, file in zip(names, files, strict=True):
        of_rank[rank or 0].append(str(file))
    twice = next((rank for rank, several in of_rank.items() if len(several) > 1), None)
    if twice is not None:
        raise DataError(f"more than one snapshot per rank: {len(of_rank[twice])} of rank {twice}: "
                        f"{first_few(of_rank[twice])}", hint="pass only the files of one moment")
    return {rank or 0: file for rank, file in sorted(zip(names, files, strict=True), key=lambda one: one[0] or 0)}, True
