"""The rank that asks for the time: whom it finds, for how long it looks, and what it notes."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore
from torch.distributed.distributed_c10d import PrefixStore

from distprof.process.identity import Identity
from distprof.recording.clock import client as clock
from distprof.recording.clock.client import TOTAL_S, ClockRecorder
from distprof.recording.clock.exchange import FAN_OUT, MEETING_S, PREFIX, Place


def test_time_for_comparing_is_limited_for_a_meeting_and_for_a_recording(monkeypatch):
    now, given = [0.0], []
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns,
                                                       monotonic_ns=time.monotonic_ns))
    monkeypatch.setattr(clock, "in_process_group", lambda: True)

    def use_up(_self, until):
        given.append(until - now[0])
        now[0] = until

    monkeypatch.setattr(ClockRecorder, "_sample", use_up)
    for num_meetings in (4, 100):
        now[0], recorder = 0.0, ClockRecorder()
        for _ in range(num_meetings):
            recorder.sample()
        assert max(given) <= MEETING_S + 1e-9
        recorder.sample(last=True)
        assert now[0] == pytest.approx(TOTAL_S)
        given.clear()


def test_a_failure_of_ours_is_noted_and_recording_goes_on(monkeypatch):
    monkeypatch.setattr(clock, "in_process_group", lambda: True)
    monkeypatch.setattr(ClockRecorder, "_search", lambda *_: 1 / 0)
    recorder = ClockRecorder()
    recorder.meet()
    assert recorder.note == "ZeroDivisionError: division by zero"
    recorder.stop()


class Ranks:
    """Recorders of several ranks in one process, with a store between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = HashStore()
        self.all: list[ClockRecorder] = []
        monkeypatch.setattr(clock, "in_process_group", lambda: True)
        monkeypatch.setattr(clock, "open_store", lambda *_: PrefixStore(PREFIX, self.store))

    def rank(self, number: int, *, host: str) -> ClockRecorder:
        """One of 8 ranks, 4 on a host."""
        recorder = ClockRecorder()
        recorder._identity = Identity(rank=number, local_rank=number % 4, world_size=8, attempt=0, pid=1, host=host,
                                      boot_id="a")
        recorder._place = Place.of(recorder._identity, {"LOCAL_WORLD_SIZE": "4"})
        self.all.append(recorder)
        return recorder


@pytest.fixture
def ranks(monkeypatch):
    found = Ranks(monkeypatch)
    yield found
    for recorder in found.all:
        recorder.stop()


def test_ranks_find_each_other_while_nothing_waits_and_compare(ranks, monkeypatch):
    monkeypatch.setattr(clock, "MEETING_S", 30.0)  # however slow this machine is
    monkeypatch.setattr(clock, "TOTAL_S", 120.0)
    first, third = ranks.rank(0, host="one"), ranks.rank(2, host="one")
    third.meet()  # before the other is there
    first.meet()
    third._searching.join(60)
    for _ in range(3):
        third.sample()
    assert [(sample.peer, sample.rounds >= 1) for sample in third.samples] == [(0, True)] * 3
    assert all(abs(sample.offset_ns) <= sample.bound_ns for sample in third.samples) and third.note is None
    first.stop()
    third.sample()
    assert third.samples[-1].offset_ns is None and third.note.startswith("rank 0 did not answer")


def test_rank_0_is_asked_where_the_first_rank_of_the_host_does_not_record(ranks, monkeypatch):
    monkeypatch.setattr(clock, "store_hosts", lambda _: ["127.0.0.1"])  # other hosts reach rank 0 where the store is
    monkeypatch.setattr(clock, "TOTAL_S", 120.0)  # however slow this machine is
    first, last = ranks.rank(0, host="one"), ranks.rank(5, host="two")
    first.meet()
    first._searching.join(60)
    assert first.note is None
    last.sample()
    assert last.samples == [last.samples[0]] and last.samples[0].offset_ns is None
    assert last.note == "none of ranks [4, 0] is recording"
    last.sample(last=True)
    assert (last.samples[1].peer, last.note) == (0, None) and abs(last.samples[1].offset_ns) <= last.samples[1].bound_ns


def test_a_port_that_nobody_reaches_is_noted(ranks):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    ranks.store.set("clock", "")  # a key of the script's own
    PrefixStore(PREFIX, ranks.store).set("0", json.dumps(
        {"host": "one", "boot_id": "a", "names": [], "port": port, "token": "0" * 16}))
    second = ranks.rank(1, host="one")
    second.sample()
    assert second.samples[0].offset_ns is None
    assert second.note.startswith(f"rank 0 at 127.0.0.1 port {port}: ")


@given(st.integers(1, 3000), st.sampled_from([1, 2, 4, 8]))
def test_all_ranks_reach_rank_0_in_few_steps_and_nobody_is_asked_by_many(num_hosts, local):
    ranks = [Place(rank=rank, world_size=num_hosts * local, local_rank=rank % local, local_world_size=local)
             for rank in range(num_hosts * local)]
    asked = Counter(place.peers[0] for place in ranks[1:])
    for place in ranks[::97]:
        way = [place.rank]
        while way[-1]:
            way.append(ranks[way[-1]].peers[0])
            assert way[-1] % local == 0 and way[-1] < way[-2]
        assert len(way) <= 5
    assert all(place.num_clients == asked[place.rank] <= FAN_OUT + local for place in ranks)
    assert {place.remote for place in ranks} == {num_hosts > 1}, "whom ranks of other hosts may ask"


@pytest.mark.parametrize(("rank", "local_rank", "environ", "expected"), [
    (0, 0, {"LOCAL_WORLD_SIZE": "4"}, []),
    (3, 3, {"LOCAL_WORLD_SIZE": "4"}, [0]),
    (4, 0, {"LOCAL_WORLD_SIZE": "4"}, [0]),
    (7, 3, {"LOCAL_WORLD_SIZE": "4"}, [4, 0]),
    (7, 0, {}, [0]),
    (40, 0, {}, [1, 0]),
    (6, 1, {"LOCAL_WORLD_SIZE": "4"}, [0]),  # hosts of different sizes: each rank counts as one
])
def test_places_are_read_as_torchrun_numbers_them(rank, local_rank, environ, expected):
    identity = Identity(rank=rank, local_rank=local_rank, world_size=64, attempt=0, pid=1, host="", boot_id="")
    assert Place.of(identity, environ).peers == expected
