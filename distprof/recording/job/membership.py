"""The place of this process in its job: its identity, the run, the attempt, and where the other ranks record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as replace_fields

from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import WINDOWS, window_folder
from distprof.own import time
from distprof.process.identity import Identity, in_process_group, local_rank, number
from distprof.recording.job.claim import about_run, attempt_of, change, claim, locked, note_world_size, set_aside
from distprof.recording.job.store import JobStore, RankPlace, directories_of, local_rank_in
from distprof.recording.run_directory import launch_key_of, new_run_id, run_id_of, this_launch

LAST_LOOK_S = 0.3
"""Time in seconds to wait for the places of other ranks: by the time that this rank has recorded all its steps, they
were published long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPlace:
    """The place of a later recording in a job: nothing has to be agreed on."""

    identity: Identity
    launch: RunJson
    """The content for its run.json."""
    key: str
    """Key of the store: equal on all ranks, different for each recording of the job."""


class JobMembership:
    """One rank and the run directory that it records into."""

    def __init__(self, run: Path, given: GivenPlace | None = None) -> None:
        """Begins without a run; `given` says everything that the ranks would otherwise have to find out."""
        self.identity = Identity.read() if given is None else given.identity
        """The identity as far as it is known."""
        self.run_id = ""
        """'' until `enter` is called."""
        self._run = run
        self._given = given
        self._store = JobStore("" if given is None else given.key)
        self._has_learned = given is not None
        self._elastic = given is None and "TORCHELASTIC_RESTART_COUNT" in os.environ
        self._restarts = self.identity.attempt
        """Number of restarts as torchrun counts them, which all ranks of an attempt know."""

    def look(self) -> None:
        """Reads the identity again, since the process may have entered a process group."""
        if self._given is None:
            self.identity = Identity.read()

    def is_known(self) -> bool:
        """Returns whether rank and run are known, so that the rank's folder can be created."""
        self.look()
        return self._given is not None or in_process_group() or _is_of_one_launcher(os.environ)

    def enter(self, *, plan: str, sizes: Mapping[str, int], force: bool) -> None:
        """Agrees with the other ranks on the run, and creates its directory if nobody has; call it after `look`.

        Raises:
            OutputError: Another run is there and `force` is False, or the directory cannot be written.
        """
        if self._given is not None:
            self.run_id = self._given.launch.run_id
            claim(self._run, self._given.launch, made_as=None, force=False)
            return
        made_as, key = os.environ.get("DISTPROF_RUN_ID"), launch_key_of(os.environ)
        self.run_id = self._agreed_id(made_as, key)
        launch = this_launch(run_id=self.run_id, plan=plan, sizes=sizes, key=key, world_size=self.identity.world_size)
        claim(self._run, launch, made_as=made_as, force=force)
        self._begin_attempt()
        if not self.identity.rank:
            note_world_size(self._run, self.identity.world_size, may_shrink=bool(self.identity.attempt))
        self._tell()

    def later(self, number: int, *, first_step: int, plan: str) -> GivenPlace:
        """Returns the place of the N-th later recording of this job.

        Args:
            number: N, from 1.
            first_step: The step of the job in which the recording begins.
            plan: Steps of each pass.
        """
        about, own = about_run(self._run), self.identity
        if about is None:
            about = this_launch(run_id=self.run_id, plan=plan, sizes={}, world_size=own.world_size)
        launch = replace_fields(
            about, run_id=f"{self.run_id}.{number}", steps=plan, first_step=first_step, start_ns=time.time_ns(),
            end_ns=None, exit_code=None, world_size=own.world_size, directory_id=f"{about.directory_id}.{number}",
            directories=[replace_fields(one, identity=f"{one.identity}.{number}",
                                        path=str(window_folder(Path(one.path), number))) for one in about.directories])
        return GivenPlace(identity=own, launch=launch, key=f"{WINDOWS}/{self._restarts}/{number}")

    def learn(self, *, last: bool) -> None:
        """Takes over what other ranks have published by now; the first rank of a directory writes where all are.

        Args:
            last: True if this is the last call.
        """
        if self._elastic and self.identity.world_size > 1:
            self.identity = replace(self.identity, attempt=self._store.latest_attempt(self.identity.attempt))
        if last and not self._has_learned:
            self._store.hurry(LAST_LOOK_S)
        if self._has_learned or not self._store.places:
            return
        self._has_learned, own, places = True, self.identity, self._store.places
        if local_rank(os.environ, own.rank) is None:
            self.identity = replace(own, local_rank=local_rank_in(places, own))
        found = directories_of(places)
        if any(one.ranks[0] == own.rank for one in found):
            hosts = list(dict.fromkeys(one.host for one in places))
            with locked(self._run):
                change(self._run, lambda about: replace_fields(about, directories=found, hosts=hosts))

    def tell_paused(self, step: int, number: int) -> None:
        """Publishes that this rank records nothing in a step (`number` 1), or that it does so after all (-1)."""
        self._store.tell_paused(step, number, attempt=self._restarts)

    def have_all_paused(self, step: int) -> bool:
        """Returns whether no rank records anything in a step."""
        return self._store.have_all_paused(step, attempt=self._restarts, world_size=self.identity.world_size)

    def stop(self) -> None:
        """Stops looking for other ranks."""
        self._store.hurry(0)

    def _agreed_id(self, made_as: str | None, key: str) -> str:
        """Returns one id for all ranks of the job and all its attempts; with a process group, they agree on it."""
        otherwise = run_id_of(os.environ, self._run)
        if not in_process_group():
            return otherwise
        about = about_run(self._run) if self.identity.attempt else None
        earlier = about.run_id if about is not None and key and about.launch_key == key else None
        return self._store.agreed(made_as or earlier or new_run_id()) or otherwise

    def _begin_attempt(self) -> None:
        """Finds out which attempt this is, as far as this rank can see, and moves what earlier ones left.

        A rank that joins a job finds nothing of its own: it learns the attempt from the others later.
        """
        self._restarts = self.identity.attempt
        attempt = attempt_of(self._run, self.identity, run_id=self.run_id, elastic=self._elastic)
        self.identity = replace(self.identity, attempt=attempt)
        if attempt:
            self._store.tell_attempt(attempt)
            set_aside(self._run, attempt=attempt, identity=self.identity)

    def _tell(self) -> None:
        """Publishes where this rank records, unless the others know it."""
        about, own = about_run(self._run), self.identity
        if own.world_size < 2 or about is None or _is_of_one_launcher(os.environ):
            return
        place = RankPlace(rank=own.rank, host=own.host, boot_id=own.boot_id, directory=str(self._run.absolute()),
                          directory_id=about.directory_id)
        # ranks with a local rank above 0 are not the first of a directory, and know their local rank
        look = local_rank(os.environ, own.rank) in (None, 0)
        self._store.tell(place, world_size=own.world_size, attempt=self._restarts, look=look)


def _is_of_one_launcher(environ: Mapping[str, str]) -> bool:
    """True if one `distprof run` started all ranks on this host, so that everything is known from the start.

    Not for a single process, which may start ranks itself.
    """
    size = number(environ, "WORLD_SIZE") or 1
    return size > 1 and size == number(environ, "LOCAL_WORLD_SIZE") and {"DISTPROF_RUN_ID", "RANK"} <= environ.keys()
