"""What ranks publish in the store of their job: without a store, or a thread to ask it on, nothing is known."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from distprof.recording.job import store
from distprof.recording.job.store import JobStore, RankPlace

PLACE = RankPlace(rank=0, host="a", boot_id="b", directory="/run", directory_id="c")


@pytest.fixture(autouse=True)
def ranks_share(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    """A store that all ranks have."""
    shared = HashStore()
    monkeypatch.setattr(store, "_store", lambda: shared)
    monkeypatch.setattr(store, "in_process_group", lambda: True)
    return shared


def all_of(rank: JobStore) -> tuple[object, ...]:
    """What a rank learns after it said that it pauses in step 3."""
    rank.tell(PLACE, world_size=1, attempt=0, look=True)
    rank.tell_attempt(2)
    rank.tell_paused(3, 1, attempt=0)
    paused = rank.have_all_paused(3, attempt=0, world_size=2)
    rank.hurry(10.0)
    return rank.agreed("mine"), rank.latest_attempt(0), paused, rank.places


def test_ranks_learn_what_others_published():
    first, second = JobStore("k"), JobStore("k")
    second.tell_paused(3, 1, attempt=0)
    assert all_of(first) == ("mine", 2, True, [PLACE])
    assert (second.agreed("other"), second.latest_attempt(0)) == ("mine", 2)
    assert second.have_all_paused(3, attempt=0, world_size=2)


def test_the_first_verdict_on_a_step_counts_for_all():
    first, second = JobStore("k"), JobStore("k")
    first.tell_paused(3, 1, attempt=0)
    assert not first.have_all_paused(3, attempt=0, world_size=2)
    second.tell_paused(3, 1, attempt=0)
    assert not second.have_all_paused(3, attempt=0, world_size=2)


def test_where_there_can_be_no_more_threads_nothing_is_known(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(store.UnseenThread, "start", refuse)
    assert all_of(JobStore("k")) == (None, 0, False, [])


def test_a_store_that_is_gone_is_no_error(monkeypatch):
    monkeypatch.setattr(store, "_store", lambda: 1 / 0)
    assert all_of(JobStore("k")) == (None, 0, False, [])
