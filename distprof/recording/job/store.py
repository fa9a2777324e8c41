"""What the ranks of a job publish in the store of their process group: which run they are in, and where they record.

Nothing here is a collective, waits for another rank on the script's thread, or raises.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from distprof.contract.run_json import RanksDirectory
from distprof.own import Event, time
from distprof.process.identity import Identity, in_process_group
from distprof.threads import UnseenThread

PREFIX = "distprof/run"
ANSWER_S = 20.0
"""Time in seconds after which a store that does not answer counts as dead, and with it the job."""
LOOK_S = 30.0
"""Time in seconds that a thread looks for the places of ranks that begin later."""
_numbers = itertools.count()
"""Numbers the recordings of this process; all ranks of a job begin them in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank runs and records."""

    rank: int
    host: str
    boot_id: str
    directory: str
    """Absolute path of its run directory."""
    directory_id: str


class JobStore:
    """The store as used by one recording."""

    def __init__(self, key: str = "") -> None:
        """Numbers the recording, unless `key` identifies it on all ranks, some of which may have missed a recording."""
        self._number = key or str(next(_numbers))
        self.places: list[RankPlace] = []
        """Places of all ranks, in rank order, once all are published; empty until then."""
        self._hurried = Event()
        self._thread: UnseenThread | None = None

    def agreed(self, proposal: str) -> str | None:
        """Returns the id that the first rank to ask proposed; None without a process group, or if its store is dead."""
        def ask() -> str:
            found = _store().compare_set(f"{PREFIX}/{self._number}/id", "", proposal)
            return str(found.decode() if isinstance(found, bytes) else found)

        return _within(ANSWER_S, ask) if in_process_group() else None

    def tell(self, place: RankPlace, *, world_size: int, attempt: int, look: bool) -> None:
        """Publishes the place of this rank.

        Args:
            place: The place of this rank.
            world_size: Number of ranks of the job.
            attempt: Restarts as torchrun counts them; places of other attempts do not count.
            look: Whether a thread also collects the places of all ranks.
        """
        if in_process_group():
            keys = [f"{PREFIX}/{self._number}/{attempt}/{rank}" for rank in range(world_size)]
            self._thread = UnseenThread(self._exchange, place, keys, look)
            with suppress(RuntimeError):  # there can be no more threads: what others do not know stays unknown
                self._thread.start()

    def tell_attempt(self, attempt: int) -> None:
        """Publishes that the job is in this attempt or a later one."""
        def tell() -> str:
            for number in range(1, attempt + 1):
                _store().add(self._attempt(number), 1)
            return ""

        if in_process_group():
            _within(ANSWER_S, tell)

    def latest_attempt(self, attempt: int) -> int:
        """Returns the highest attempt published by now; the given one if none is higher, or the store is dead."""
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
        """Returns whether all ranks pause in a step, as the first rank to ask saw it; False if the store is dead."""
        def ask() -> str:
            key = self._paused(attempt, step)
            seen = "all" if _store().add(f"{key}/ranks", 0) >= world_size else "some"
            found = _store().compare_set(f"{key}/verdict", "", seen)
            return str(found.decode() if isinstance(found, bytes) else found)

        return not in_process_group() or world_size < 2 or _within(ANSWER_S, ask) == "all"

    def _paused(self, attempt: int, step: int) -> str:
        return f"{PREFIX}/{self._number}/{attempt}/paused/{step}"

    def hurry(self, seconds: float) -> None:
        """Looks once more for at most `seconds`, and ends the looking."""
        self._hurried.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _exchange(self, place: RankPlace, keys: Sequence[str], look: bool) -> None:  # noqa: FBT001 (of a thread)
        try:
            store, until, again_s = _store(), time.monotonic() + LOOK_S, 0.01
            store.set(keys[place.rank], json.dumps(asdict(place)))
            while look and time.monotonic() < until:
                is_last = self._hurried.is_set()
                if store.check(list(keys)):  # getting a missing key would block the store, also for the script
                    found = [RankPlace(**json.loads(text)) for text in store.multi_get(list(keys))]
                    self.places = found
                    return
                if is_last:
                    return
                self._hurried.wait(again_s)
                again_s = min(again_s * 2, 1.0)
        except Exception:  # noqa: BLE001 (nobody waits for this thread; what is missing stays unknown)
            return


def local_rank_in(places: Sequence[RankPlace], identity: Identity) -> int:
    """Returns the number of lower ranks on the same host."""
    return sum((one.host, one.boot_id) == (identity.host, identity.boot_id) and one.rank < identity.rank
               for one in places)


def directories_of(places: Sequence[RankPlace]) -> list[RanksDirectory]:
    """Returns the run directories of a job, in order of their first ranks."""
    ranks: dict[str, list[RankPlace]] = defaultdict(list)
    for one in places:
        ranks[one.directory_id].append(one)
    return [RanksDirectory(identity=identity, path=found[0].directory, ranks=[one.rank for one in found],
                           hosts=list(dict.fromkeys(one.host for one in found)))
            for identity, found in ranks.items()]


def _store() -> Any:
    """Returns the store of the default group without its prefixes, which change when a job is restarted."""
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    return getattr(store, "_underlying_non_prefix_store", store)


def _within(seconds: float, ask: Callable[[], str]) -> str | None:
    """Returns the answer; None if there is none in time, or no thread to ask on."""
    found: list[str] = []

    def answer() -> None:
        try:
            found.append(ask())
        except Exception:  # noqa: BLE001 (the store is gone; nobody waits longer than `seconds`)
            return

    thread = UnseenThread(answer)
    try:
        thread.start()
    except RuntimeError:  # there can be no more threads
        return None
    thread.join(seconds)
    return found[0] if found else None
