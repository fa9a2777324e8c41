"""What the ranks of a job tell each other over the store of their process group: which run they are, and where.

Nothing here is a collective, waits for another rank on the thread of the script, or raises.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distprof.contract.run_json import RanksDirectory
from distprof.own import Event, time
from distprof.process.identity import Identity, in_process_group
from distprof.threads import UnseenThread

PREFIX = "distprof/run"
ANSWER_S = 20.0
"""A store that does not answer in this time is dead, and so is the job."""
LOOK_S = 30.0
"""How long a thread looks for the places of ranks that begin later."""
_numbers = itertools.count()
"""Recordings of this process; all ranks of a job begin them in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank runs, and records."""

    rank: int
    host: str
    boot_id: str
    directory: str
    """Absolute path of its run directory."""
    directory_id: str


class JobStore:
    """The store as one recording uses it."""

    def __init__(self, key: str = "") -> None:
        """Numbers the recording, unless `key` says which it is on all ranks: some may have missed one."""
        self._number = key or str(next(_numbers))
        self.places: list[RankPlace] = []
        """Of all ranks, once they have told; in the order of ranks."""
        self._hurried = Event()
        self._thread: UnseenThread | None = None

    def agreed(self, proposal: str) -> str | None:
        """The id that the first rank of the job proposed; None without a process group, or where its store is dead."""
        def ask() -> str:
            found = _store().compare_set(f"{PREFIX}/{self._number}/id", "", proposal)
            return str(found.decode() if isinstance(found, bytes) else found)

        return _within(ANSWER_S, ask) if in_process_group() else None

    def tell(self, place: RankPlace, *, world_size: int, attempt: int, look: bool) -> None:
        """Publishes the place of this rank.

        Args:
            place: It.
            world_size: Ranks of the job.
            attempt: Places of an earlier attempt do not count.
            look: Whether a thread collects those of all ranks as well.
        """
        if in_process_group():
            keys = [f"{PREFIX}/{self._number}/{attempt}/{rank}" for rank in range(world_size)]
            self._thread = UnseenThread(self._exchange, place, keys, look)
            self._thread.start()

    def tell_attempt(self, attempt: int) -> None:
        """Publishes that the job is in this attempt, or a later one."""
        def tell() -> str:
            for number in range(1, attempt + 1):
                _store().add(self._attempt(number), 1)
            return ""

        if in_process_group():
            _within(ANSWER_S, tell)

    def latest_attempt(self, attempt: int) -> int:
        """The highest one that a rank has told by now; the given one if none is higher, or the store is dead."""
        def ask() -> str:
            found = attempt
            while _store().check([self._attempt(found + 1)]):
                found += 1
            return str(found)

        return int((_within(ANSWER_S, ask) if in_process_group() else None) or attempt)

    def _attempt(self, number: int) -> str:
        return f"{PREFIX}/{self._number}/attempts/{number}"

    def tell_paused(self, step: int, number: int, *, attempt: int) -> None:
        """Adds to the number of ranks that pause in a step."""
        if in_process_group():
            _within(ANSWER_S, lambda: str(_store().add(f"{self._paused(attempt, step)}/ranks", number)))

    def have_all_paused(self, step: int, *, attempt: int, world_size: int) -> bool:
        """Whether all ranks pause in a step, as the first rank that asked saw it; False where the store is dead."""
        def ask() -> str:
            key = self._paused(attempt, step)
            seen = "all" if _store().add(f"{key}/ranks", 0) >= world_size else "some"
            found = _store().compare_set(f"{key}/verdict", "", seen)
            return str(found.decode() if isinstance(found, bytes) else found)

        return not in_process_group() or world_size < 2 or _within(ANSWER_S, ask) == "all"

    def _paused(self, attempt: int, step: int) -> str:
        return f"{PREFIX}/{self._number}/{attempt}/paused/{step}"

    def hurry(self, seconds: float) -> None:
        """Looks once more, for so long at most, and ends the looking."""
        self._hurried.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _exchange(self, place: RankPlace, keys: Sequence[str], look: bool) -> None:  # noqa: FBT001 (of a thread)
        try:
            store, until, again_s = _store(), time.monotonic() + LOOK_S, 0.01
            store.set(keys[place.rank], json.dumps(asdict(place)))
            while look and time.monotonic() < until:
                is_last = self._hurried.is_set()
                if store.check(list(keys)):  # getting what is not there would block the store for the script as well
                    found = [RankPlace(**json.loads(text)) for text in store.multi_get(list(keys))]
                    self.places = found
                    return
                if is_last:
                    return
                self._hurried.wait(again_s)
                again_s = min(again_s * 2, 1.0)
        except Exception:  # noqa: BLE001 (nobody waits for this thread; what is not told stays unknown)
            return


def local_rank_in(places: Sequence[RankPlace], identity: Identity) -> int:
    """How many lower ranks are on the same host."""
    return sum((one.host, one.boot_id) == (identity.host, identity.boot_id) and one.rank < identity.rank
               for one in places)


def directories_of(places: Sequence[RankPlace]) -> list[RanksDirectory]:
    """The run directories of a job, in the order of their first ranks."""
    ranks: dict[str, list[RankPlace]] = defaultdict(list)
    for one in places:
        ranks[one.directory_id].append(one)
    return [RanksDirectory(identity=identity, path=found[0].directory, ranks=[one.rank for one in found],
                           hosts=list(dict.fromkeys(one.host for one in found)))
            for identity, found in ranks.items()]


def _store() -> Any:
    """The store of the default group without its prefixes, which a restarted job changes."""
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    return getattr(store, "_underlying_non_prefix_store", store)


def _within(seconds: float, ask: Callable[[], str]) -> str | None:
    found: list[str] = []

    def answer() -> None:
        try:
            found.append(ask())
        except Exception:  # noqa: BLE001 (a store that is gone; nobody waits longer than `seconds`)
            return

    thread = UnseenThread(answer)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
