"""Reads run.json of one run directory or of several that the hosts of a job wrote; finds the rank that failed first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.contract.paths import RANK_JSON, RUN_JSON
from distprof.contract.problems import Problem, RankFailed, Unreadable
from distprof.contract.rank_json import RankJson, first_failure, is_victim, read
from distprof.contract.run_json import RanksDirectory, RunJson
from distprof.errors import DataError
from distprof.files import read_small
from distprof.storage.places import place, real


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is known about a launch, from one run.json or from several."""

    run_id: str
    world_size: int | None = None
    interrupted: bool = False
    failed_rank: int | None = None
    failed_with: int | None = None
    failed_ns: int | None = None
    first_step: int = 0
    """The step of the job that is step 0 of this run."""
    directories: tuple[RanksDirectory, ...] = ()
    """Where the ranks of all hosts are recorded, as far as the job knew."""

    def places_of(self, ranks: Sequence[int], *, apart_from: Iterable[Path]) -> tuple[str, ...]:
        """Returns the directories of these ranks as `host:path`, except those in `apart_from`, which were read."""
        wanted, read_already = set(ranks), {real(path) for path in apart_from}
        here = {identity for path in read_already if (identity := _identity_in(place(path)))}
        return tuple(f"{', '.join(one.hosts)}:{one.path}" for one in self.directories
                     if wanted & set(one.ranks) and one.identity not in here)


def launch_in(path: Path, problems: list[Problem]) -> Launch | None:
    """Returns what run.json of a directory says, or None if it is missing or damaged."""
    try:
        if not (path / RUN_JSON).exists():
            return None
        found = read(path / RUN_JSON, RunJson)
    except DataError as error:
        problems.append(Unreadable(detail=str(error.args[0])))
        return None
    return Launch(run_id=found.run_id, world_size=found.world_size, interrupted=found.interrupted,
                  failed_rank=found.failed_rank, failed_with=found.failed_with, failed_ns=found.failed_ns,
                  first_step=found.first_step, directories=tuple(found.directories))


def check_one_run(paths: Sequence[Path], launches: Sequence[Launch | None]) -> None:
    """Refuses directories of different runs.

    Raises:
        DataError: Two directories have different run ids.
    """
    first: tuple[str, Path] | None = None
    for path, launch in zip(paths, launches, strict=True):
        run_id = launch.run_id if launch is not None else _of_its_ranks(path)
        if run_id is None:
            continue
        if first is not None and first[0] != run_id:
            raise DataError(f"these are different jobs: run {first[0]} in {first[1]} and run {run_id} in "
                            f"{path}", hint="merge each separately, or pass only the directories of one job")
        first = first or (run_id, path)


def _of_its_ranks(path: Path) -> str | None:
    """Returns the run id of most ranks in a directory whose run.json is missing or cannot be read."""
    found = Counter[str]()
    for file in path.glob(f"rank*/{RANK_JSON}"):
        try:
            run_id = json.loads(read_small(file))["run_id"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue  # reading the ranks reports it
        if isinstance(run_id, str):
            found[run_id] += 1
    return next((run_id for run_id, _ in found.most_common(1)), None)


def joined(launches: Iterable[Launch | None]) -> Launch | None:
    """Joins what several hosts say about one job; each launcher knows which of its own ranks failed first."""
    known = [one for one in launches if one is not None]
    if len(known) < 2:
        return known[0] if known else None
    failures = [one for one in known if one.failed_rank is not None]
    # a launcher that does not know when its rank failed counts last
    first = min(failures, key=lambda one: (one.failed_ns is None, one.failed_ns or 0), default=known[0])
    places = {one.identity: one for launch in known for one in launch.directories}
    return Launch(run_id=known[0].run_id, world_size=max(one.world_size or 0 for one in known) or None,
                  interrupted=any(one.interrupted for one in known), failed_rank=first.failed_rank,
                  failed_with=first.failed_with, failed_ns=first.failed_ns,
                  first_step=known[0].first_step, directories=tuple(places.values()))


def _identity_in(path: Path) -> str:
    try:
        return read(path / RUN_JSON, RunJson).directory_id
    except DataError:
        return ""


def failed_first(about: Launch | None, ranks: Sequence[RankJson]) -> list[RankFailed]:
    """Returns the rank that failed first, as one problem; nothing if neither an exception nor the launcher names a
    rank.

    Also nothing if the named rank failed in communication while others ended silently, for example because their host
    died: each of those is a problem of its own.
    """
    first = first_failure(ranks)
    seen = about.failed_rank if about is not None else None
    if first is not None and (seen in (None, first.rank) or (seen is not None and is_victim(seen, ranks))):
        code = about.failed_with if about is not None and seen == first.rank else None
        return [RankFailed(rank=first.rank, exit_code=code, why=_why(first))]
    if about is None or seen is None or (is_victim(seen, ranks) and any(map(_is_silent, ranks))):
        return []
    why = next((_why(one) for one in ranks if one.rank == seen), None)
    return [RankFailed(rank=seen, exit_code=about.failed_with or 0, why=why)]


def _is_silent(rank: RankJson) -> bool:
    """Returns whether the rank, or its host, was killed."""
    return rank.status == "recording" and rank.failure is None


def _why(rank: RankJson) -> str | None:
    if rank.failure is not None:
        return rank.failure.what
    return rank.why if rank.status == "complete" else None
