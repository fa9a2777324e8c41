"""Decides which rank each trace belongs to, and which trace of a rank is merged."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from distprof.contract.problems import (
    FilesLeftOut,
    Problem,
    RanksFromNames,
    Remark,
    SeveralTraces,
    TracesBeside,
    TraceWithoutRank,
)
from distprof.contract.run_json import MOST_RANKS
from distprof.errors import DataError, UsageError
from distprof.merge.run.traces.discovery import NAMED, Candidate, first_few
from distprof.merge.run.traces.rank_from_name import (
    STEP_FOLDER,
    natural,
    place_in,
    rank_in,
    ranks_in_grid,
    ranks_of_places,
    shape,
    suggested_pattern,
    written_in,
)
from distprof.units import counted
from distprof.units import numbered as named

SHOWN_FILES = 8
OF_JAX = re.compile(r"/plugins/profile/[^/]+/$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Where ranks are taken from if the traces do not contain them; at most one of the three."""

    pattern: str | None = None
    """A regular expression searched in each path. A single group is the rank; several groups are coordinates in a grid,
    like node and GPU, the last one varying fastest."""
    in_order: bool = False
    """Whether ranks are 0, 1, ... in the order of the files."""
    of_files: Mapping[str, int] | None = None
    """Path of a file, relative to the given folder, -> rank."""

    def __bool__(self) -> bool:
        return len(self.given) > 0

    @property
    def given(self) -> list[str]:
        """The command-line flags that were given."""
        return [flag for flag, value in (("--rank-pattern", self.pattern is not None), ("--rank-map", self.of_files is
                not None), ("--ranks-in-order", self.in_order)) if value]


def read_rank_map(file: Path) -> dict[str, int]:
    """Reads a file with a rank and a path per line, for `Naming.of_files`. Empty lines and lines that begin with # are
    skipped.

    Raises:
        UsageError: A line has another form, or a path occurs twice.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        rank, _, path = line.strip().partition(" ")
        if not line.strip() or rank.startswith("#"):
            continue
        if not (rank.isdecimal() and len(rank) < 7 and path.strip()) or path.strip() in found:
            raise UsageError(f"line {number} of {file} must be a rank and a path that is not listed yet, not {line!r}",
                             hint="like: 3 node1/trace_a.json")
        found[path.strip()] = int(rank)
    return found


Numbered = list[tuple[int, Candidate]]


def numbered(candidates: Sequence[Candidate], naming: Naming, problems: list[Problem],
             remarks: list[Remark]) -> Numbered:
    """Returns a rank for each file; if some files have none, these are left out.

    Raises:
        DataError: No file shows its rank.
        UsageError: `naming` makes no sense.
    """
    if len(naming.given) > 1:
        raise UsageError(f"{' and '.join(naming.given)} cannot be combined")
    if naming.in_order:
        return list(enumerate(candidates))
    if naming.pattern is not None:
        ranks = _by_pattern(candidates, naming.pattern)
    elif naming.of_files is not None:
        ranks = _by_map(candidates, naming.of_files)
    else:
        ranks = _by_themselves(candidates, remarks)
    if len(candidates) == 1 and ranks == [None] and not naming:
        return [(0, candidates[0])]
    if all(rank is None for rank in ranks):
        raise _no_rank(candidates, naming)
    problems += [TraceWithoutRank(file=one.trace.name)
                 for rank, one in zip(ranks, candidates, strict=True) if rank is None]
    return [(rank, one) for rank, one in zip(ranks, candidates, strict=True) if rank is not None]


def _by_map(candidates: Sequence[Candidate], of_files: Mapping[str, int]) -> list[int | None]:
    there = {str(one.where) for one in candidates}
    lacking = [path for path in of_files if path not in there]
    if lacking:
        raise UsageError(f"--rank-map lists {first_few(lacking)}, which is no trace here",
                         hint=f"traces here are {first_few(sorted(there, key=natural))}")
    return [of_files.get(str(one.where)) for one in candidates]


def _by_pattern(candidates: Iterable[Candidate], pattern: str) -> list[int | None]:
    try:
        search = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--rank-pattern {pattern!r} is not a valid regular expression: {error}") from error
    if not search.groups:
        raise UsageError(f"--rank-pattern must have a group, but {pattern!r} has none",
                         hint=r"put the digits of the rank in parentheses, like 'trace_(\d+)' or 'node(\d+)/gpu(\d+)'")
    matches = [search.search(str(one.where)) for one in candidates]
    places = [_place(match, one) for match, one in zip(matches, candidates, strict=True) if match is not None]
    if search.groups == 1 or not places:
        ranks = iter([rank for rank, in places])
    elif (found := ranks_in_grid(places)) is not None:
        ranks = iter(found)
    else:
        raise UsageError(f"--rank-pattern {pattern!r} gives ranks beyond {MOST_RANKS}")
    return [None if match is None else next(ranks) for match in matches]


def _place(match: re.Match[str], one: Candidate) -> tuple[int, ...]:
    wrong = [group for group in match.groups() if not ((group or "").isdecimal() and len(group) < 7)]
    if wrong:
        raise UsageError(f"a group of --rank-pattern must match a number, but matches {wrong[0]!r} in {one.where}",
                         hint="a rank has one to six digits")
    return tuple(map(int, match.groups()))


def _by_themselves(candidates: Sequence[Candidate], remarks: list[Remark]) -> list[int | None]:
    """Takes ranks from the traces, or from file names if the traces lack ranks or repeat them and the names do not.

    If no source gives the ranks of all files, the one that gives most is used, so that one odd file does not cost the
    others their ranks.
    """
    names = [rank_in(one.where) for one in candidates]
    own = [name if one.identity.rank is None else one.identity.rank
           for one, name in zip(candidates, names, strict=True)]
    if _are_unique(own) and None not in own:
        return own
    ways: tuple[tuple[Literal["rank", "mesh", "host"], list[int | None]], ...] = (
        ("rank", names), ("mesh", _places(candidates)), ("host", _hosts(candidates)))
    needed = len(own) if None not in own else _num_known(own) + 1 if _are_unique(own) else 1
    found = max((way for way in ways if _are_unique(way[1])), key=lambda way: _num_known(way[1]), default=None)
    if found is None or _num_known(found[1]) < needed:
        return own
    source, ranks = found
    remarks.append(RanksFromNames(names=source, contradicted=any(
        one.identity.rank is not None for rank, one in zip(ranks, candidates, strict=True) if rank is not None)))
    return ranks


def _places(candidates: Sequence[Candidate]) -> list[int | None]:
    """Returns ranks by the mesh coordinates in names; None for files whose names have none."""
    places = [place_in(one.where) for one in candidates]
    ranks = iter(ranks_of_places([place for place in places if place]) or ())
    return [next(ranks, None) if place else None for place in places]


def _hosts(candidates: Sequence[Candidate]) -> list[int | None]:
    """Numbers hosts in the order of their names, if all files are in one folder of the kind that JAX makes."""
    folders = {one.where.parent if one.trace.member is not None else one.trace.path.parent for one in candidates}
    if len(folders) != 1 or not OF_JAX.search(f"/{folders.pop()}/"):
        return [None] * len(candidates)
    names = sorted((one.where.name for one in candidates), key=natural)
    return [names.index(one.where.name) for one in candidates]


def _are_unique(ranks: Sequence[int | None]) -> bool:
    """Returns whether no two files have the same rank."""
    known = [rank for rank in ranks if rank is not None]
    return len(set(known)) == len(known)


def _num_known(ranks: Sequence[int | None]) -> int:
    return sum(rank is not None for rank in ranks)


def _no_rank(candidates: Sequence[Candidate], naming: Naming) -> DataError:
    names = [one.trace.name for one in candidates]
    if naming.pattern is not None:
        return DataError(f"--rank-pattern {naming.pattern!r} matches none of "
                         f"{first_few([str(one.where) for one in candidates], SHOWN_FILES)}")
    form = Counter(shape(str(one.where)) for one in candidates).most_common(1)[0][0]
    pattern = suggested_pattern([path for one in candidates if shape(path := str(one.where)) == form])
    hint = f"distprof merge --rank-pattern '{pattern}' takes it from the path" if pattern is not None else \
        r"distprof merge --rank-pattern REGEX with one group takes it from the path, like 'gpu(\d+)'"
    return DataError(f"no rank in distributedInfo or in the file name of {first_few(names, SHOWN_FILES)}",
                     hint=f"{hint}; --ranks-in-order numbers the files in this order")


def check_one_folder(files: Numbered, within: Path | None) -> None:
    """Refuses folders that contain the same ranks, such as iterations or several jobs: merging one of each would mix
    them.

    Args:
        files: All files with their ranks.
        within: The given folder, if a single folder was given.

    Raises:
        DataError: There are such folders.
    """
    folders: dict[str, set[int]] = defaultdict(set)
    for rank, one in files:
        folders[_folder(one, within)].add(rank)
    seen = Counter(rank for ranks in folders.values() for rank in ranks)
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if not twice:
        return
    sharing = sorted((folder for folder, ranks in folders.items() if ranks & {*twice}), key=natural)
    steps = all(STEP_FOLDER.search(folder) for folder in sharing)
    raise DataError(
        f"several traces per rank: {named('rank', twice)} in "
        f"{counted(len(sharing), 'iteration' if steps else 'place')}: {first_few(sharing)}",
        hint=f"merge one of them, like {sharing[-1]}" + (
            "" if steps else "; if they belong to different ranks, distprof merge --rank-pattern REGEX takes the rank "
                             "from the path"))


def _folder(one: Candidate, within: Path | None) -> str:
    if one.trace.member is not None:
        return f"{one.trace.path}: {one.where.parent}"
    return str(one.trace.path.parent if within is None else within / one.where.parent)


def of_one_program(files: Numbered, remarks: list[Remark]) -> tuple[Numbered, Mapping[int, Sequence[Candidate]]]:
    """Separates traces of other programs of ranks for which torch.profiler also wrote a trace.

    Returns:
        The remaining files, and those of other programs by rank.
    """
    ranks = {rank for rank, one in files if one.of_torch}
    beside: dict[int, list[Candidate]] = defaultdict(list)
    for rank, one in files:
        if rank in ranks and not one.of_torch:
            beside[rank].append(one)
    names = [one.trace.name for several in beside.values() for one in several]
    if names:
        remarks.append(TracesBeside(num_files=len(names), files=tuple(names[:NAMED])))
    return [(rank, one) for rank, one in files if one.of_torch or rank not in ranks], beside


def one_each(files: Numbered, problems: list[Problem]) -> dict[int, Candidate]:
    """Chooses the newest trace of each rank: by the time in its name, else by the numbers there if names have one form,
    else by its modification time. A file whose name contains the rank wins over others, which may contain several
    ranks."""
    of_rank: dict[int, list[Candidate]] = defaultdict(list)
    for rank, one in files:
        of_rank[rank].append(one)
    chosen = {}
    for rank, several in sorted(of_rank.items()):
        alike = len({shape(one.where.name) for one in several}) == 1 or all(
            written_in(one.where.name) for one in several)
        newest: Callable[[Candidate], object] = _name_order if alike else _time_order
        by_age = sorted(several, key=newest)  # type: ignore[arg-type]
        *others, chosen[rank] = sorted(by_age, key=lambda one: rank_in(one.where) == rank)
        if others:
            problems.append(SeveralTraces(rank=rank, used=chosen[rank].trace.name,
                                          left_out=tuple(one.trace.name for one in others)))
    return chosen


def of_one_job(chosen: Mapping[int, Candidate], remarks: list[Remark]) -> dict[int, Candidate]:
    """Drops traces left by an earlier job of more ranks, if a later job has overwritten the traces of its own ranks."""
    size = max(chosen.values(), key=lambda one: one.modified_ns).identity.world_size
    later = {rank: one for rank, one in chosen.items() if one.identity.world_size == size}
    others = [one for rank, one in chosen.items() if rank not in later]
    first_ns = min(one.modified_ns for one in later.values())
    is_whole = size is not None and later.keys() == set(range(size))
    are_earlier = all(one.identity.world_size is not None and one.modified_ns < first_ns for one in others)
    if not others or not is_whole or not are_earlier:
        return dict(chosen)
    names = [one.trace.name for one in others]
    remarks.append(FilesLeftOut(num_files=len(names), files=tuple(names[:NAMED]), instead="traces of an earlier job"))
    return later


def _name_order(one: Candidate) -> list[tuple[int, str]]:
    return natural(written_in(one.where.name)) + natural(one.where.name)


def _time_order(one: Candidate) -> tuple[int, str]:
    return one.modified_ns, one.trace.name
