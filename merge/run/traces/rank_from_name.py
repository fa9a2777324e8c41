"""Reads the rank, or the coordinates in the mesh, from the path of a trace."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import PurePosixPath

from distprof.contract.run_json import MOST_RANKS

SUFFIX = re.compile(r"(\.pt)?(\.trace|_trace)?(\.json)?(\.gz|\.zst|\.bz2|\.xz)?$")
RANK = re.compile(r"(?<![a-z])(?:([a-z]+)[-_])?rank[-_.= \[]?(\d{1,7})(?!\d)", re.IGNORECASE)
"""Matches rank0_trace, rank-34, rank[5], profile_rank_3, ep0-ba3-rank2."""
PARTIAL = ("local", "node", "group", "tp", "pp", "dp", "cp", "ep", "mp", "moe")
"""Words before `rank` that mean it is not the global rank."""
WORKER = re.compile(r"(?<![a-z])worker[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)
"""Matches worker3_step_12.<ms>: scripts often pass such a name with the rank to TensorBoard's handler."""
PROFILE = re.compile(r"profile_(\d{1,7})")
"""Matches the whole name profile_3.json of accelerate. In the folder of a rank, the number means something else."""
AXIS = re.compile(r"(?<![a-z])(pp|dp|tp)(?:[-_]?rank)?[-_]?(\d{1,5})(?!\d)", re.IGNORECASE)
"""Matches dp0_pp0_tp1, TP-3-DP-0: inference servers name the coordinates of a rank."""
WRITTEN = re.compile(r"\.(\d{13,19})\.pt\.trace\.")
"""Matches host_4711.<ms or ns>.pt.trace.json: when TensorBoard's handler wrote it. 4711 stands for the process id."""
STEP_FOLDER = re.compile(r"(iteration|iter|step|epoch|cycle|global_step)[-_]?\d+$", re.IGNORECASE)
NUMBER = re.compile(r"[0-9]{1,18}")
"""Longer digit strings match several times: Python refuses to read a number of thousands of digits."""
Place = Mapping[str, int]


def rank_in(path: PurePosixPath) -> int | None:
    """Returns the rank in a file name, or else in the name of the nearest folder above it."""
    title = SUFFIX.sub("", path.name)
    for name in (title, *reversed(path.parts[:-1])):
        ranks = [int(rank) for before, rank in RANK.findall(name) if before.lower() not in PARTIAL]
        ranks += [int(rank) for rank in WORKER.findall(name)]
        if ranks:
            return ranks[0]
    of_accelerate = PROFILE.fullmatch(title)
    return None if of_accelerate is None else int(of_accelerate[1])


def place_in(path: PurePosixPath) -> Place:
    """Returns the coordinates (axis -> index) in a file name, or else in the nearest folder above it; empty if none."""
    for name in (SUFFIX.sub("", path.name), *reversed(path.parts[:-1])):
        if found := AXIS.findall(name):
            return {axis.lower(): int(index) for axis, index in found}
    return {}


def ranks_of_places(places: Sequence[Place]) -> list[int] | None:
    """Returns the ranks of files that name their coordinates, tp varying fastest; None if two have the same
    coordinates.

    With data-parallel attention the tp index counts all ranks of a stage and dp is a part of it, so dp is ignored if pp
    and tp are unique.
    """
    if not all("tp" in place for place in places) and not all("dp" in place for place in places):
        return None
    for axes in (("pp", "tp"), ("dp", "pp", "tp")):
        indices = [tuple(place.get(axis, 0) for axis in axes) for place in places]
        if len(set(indices)) == len(indices):
            return ranks_in_grid(indices)
    return None


def ranks_in_grid(indices: Sequence[tuple[int, ...]]) -> list[int] | None:
    """Returns the ranks of places in a grid, the last index varying fastest; None if the grid exceeds `MOST_RANKS`."""
    sizes = [max(column) + 1 for column in zip(*indices, strict=True)]
    return [_flat(index, sizes) for index in indices] if math.prod(sizes) <= MOST_RANKS else None


def _flat(index: Iterable[int], sizes: Iterable[int]) -> int:
    rank = 0
    for one, size in zip(index, sizes, strict=True):
        rank = rank * size + one
    return rank


def natural(name: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts rank10 after rank2."""
    parts = re.split(r"([0-9]+)", name)
    # without leading zeros, a longer number is greater
    return [(-1, text) for text in parts] if len(parts) == 1 else [
        (len(part.lstrip("0")), part.lstrip("0")) if place % 2 else (-1, part) for place, part in enumerate(parts)]


def shape(name: str) -> str:
    """Returns the name with its numbers replaced by #: equal for files named by the same scheme."""
    return NUMBER.sub("#", name)


def written_in(name: str) -> str:
    """Returns the digits of the time that TensorBoard's handler wrote into a name; '' if there are none."""
    found = WRITTEN.search(name)
    return found[1] if found is not None else ""


def suggested_pattern(names: Sequence[str]) -> str | None:
    """Suggests a regular expression whose group is a different number, counting from 0, in each file; or whose two
    groups are coordinates in a grid that the files fill, like node and GPU. Returns None if there is none."""
    if len(names) < 2 or len({shape(name) for name in names}) > 1:
        return None
    columns = [*zip(*(list(NUMBER.finditer(name)) for name in names), strict=True)]
    values = [[int(number[0]) for number in column] for column in columns]
    for column, found in zip(columns, values, strict=True):
        if sorted(found) == list(range(len(names))):
            return rf"{_before(names[0], column[0])}(\d+)"
    for first, second in combinations(range(len(columns)), 2):
        grid = sorted(zip(values[first], values[second], strict=True))
        if grid == [*product(range(max(values[first]) + 1), range(max(values[second]) + 1))]:
            one, two = columns[first][0], columns[second][0]
            between = names[0][one.end():two.start()]
            middle = _escaped(between) if len(between) < 13 else f".*{_before(names[0], two)}"
            return rf"{_before(names[0], one)}(\d+){middle}(\d+)"
    return None


def _before(name: str, number: re.Match[str]) -> str:
    return _escaped(re.split(r"\d|/", name[:number.start()])[-1][-12:])


def _escaped(text: str) -> str:
    return re.sub(r"\d+", r"\\d+", re.escape(text).replace(r"\-", "-"))
