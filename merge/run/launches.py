"""What run.json tells: of one run directory, and of those that the hosts of a job wrote apart; and who failed first."""

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
    """What is known of a launch, from one run.json or from several."""

    run_id: str
    world_size: int | None = None
    interrupted: bool = False
    failed_rank: int | None = None
    failed_with: int | None = None
    failed_ns: int | None = None
    first_step: int = 0
    """Step of the job that is step 0 here."""
    directories: tuple[RanksDirectory, ...] = ()
    """Where the ranks of all hosts are recorded, as far as the job knew."""

    def places_of(self, ranks: Sequence[int], *, apart_from: Iterable[Path]) -> tuple[str, ...]:
        """Directories of these ranks as `host:path`, without those that were read."""
        wanted, read_already = set(ranks), {real(path) for path in apart_from}
        here = {identity for path in read_already if (identity := _identity_in(place(path)))}
        return tuple(f"{', '.join(one.hosts)}:{one.path}" for one in self.directories
                     if wanted & set(one.ranks) and one.identity not in here)


def launch_in(path: Path, problems: list[Problem]) -> Launch | None:
    """What run.json of a directory says; None where there is none, or it is damaged."""
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
        DataError: Two of them have different run ids.
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
    """The run id of most ranks in a directory without a run.json that can be read."""
    found = Counter[str]()
    for file in path.glob(f"rank*/{RANK_JSON}"):
        try:
            run_id = json.loads(read_small(file))["run_id"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue  # who reads the ranks will say so
        if isinstance(run_id, str):
            found[run_id] += 1
    return next((run_id for run_id, _ in found.most_common(1)), None)


def joined(launches: Iterable[Launch | None]) -> Launch | None:
    """The same job as several hosts saw it; each launcher knows of its own ranks which failed first."""
    known = [one for one in launches if one is not None]
    if len(known) < 2:
        return known[0] if known else None
    failures = [one for one in known if one.failed_rank is not None]
    # a launcher that does not know when, is asked last
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
    """One problem; nothing where neither an exception nor the launcher tells.

    Nor is a rank named that failed in communication while others ended without a word, as on a host that died: each
    of them is a problem of its own.
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
    """True for a rank that was killed, or whose host was."""
    return rank.status == "recording" and rank.failure is None


def _why(rank: RankJson) -> str | None:
    if rank.failure is not None:
        return rank.failure.what
    return rank.why if rank.status == "complete" else None
