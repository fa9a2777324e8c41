"""Ranks compare their clocks while they record: what they write down, and that no job hangs or keeps anything."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore
from torch.distributed.distributed_c10d import PrefixStore

from distprof.process.identity import Identity
from distprof.recording.clock import client as clock
from distprof.recording.clock.client import TOTAL_S, ClockRecorder
from distprof.recording.clock.place import FAN_OUT, Place
from distprof.recording.clock.question import MEETING_S
from distprof.recording.clock.server import ANSWER, ASK, ClockResponder
from distprof.recording.clock.store import PREFIX
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, distprof, merged, torchrun


def rank_json(run: Path, rank: int) -> dict:
    found = [run / f"rank{rank:05d}{suffix}" / "rank.json" for suffix in ("", ".partial")]
    return json.loads(next(path for path in found if path.exists()).read_text())


# --- what a job writes down ----------------------------------------------------------------------------------------


def test_ranks_of_a_job_compare_their_clocks_where_passes_begin_and_end(ddp):
    assert rank_json(ddp, 0)["clock_sync"] == []
    for rank in (1, 2, 3):
        info = rank_json(ddp, rank)
        samples = info["clock_sync"]
        assert len(samples) == 4 and {sample["peer"] for sample in samples} == {0}
        times = [sample["at_ns"] for sample in samples]
        assert times == sorted(times) and info["clock"][0]["realtime_ns"] < times[0]
        answered = [sample for sample in samples if sample["offset_ns"] is not None]
        assert answered, info["clock_note"]
        # the truth is known: they read the clock of one kernel
        assert all(abs(sample["offset_ns"]) <= sample["bound_ns"] and sample["rounds"] >= 1 for sample in answered)
    summary = json.loads((ddp / "merged" / "summary.json").read_text())["clock"]
    assert (summary["method"], summary["aligned"], summary["num_clocks"], summary["uncertainty_ns"]) == (
        "shared", True, 1, 0)
    assert summary["causality"]["num_collectives"] > 0 and not summary["causality"]["violations"]
    assert summary["residual_ns"]["p50"] <= summary["residual_ns"]["max"]


def test_the_clock_is_a_line_of_merge_and_stats(ddp):
    told = distprof("merge", "--force", ddp).stdout
    line = next(line for line in told.splitlines() if line.startswith("clock: "))
    assert line.startswith("clock: one host: all ranks read the same clock; ") and "samples agree" in line
    assert line in distprof("stats", ddp).stdout
    assert "Invalid value for '--align'" in distprof("merge", "--align", "guess", ddp).stderr


@pytest.mark.job
def test_a_job_without_a_process_group_compares_nothing(tmp_path):
    assert distprof("run", "--out", tmp_path / "run", "--steps", "wait=0,count=1,time=0,trace=0",
                    SCRIPTS / "job.py", "fine", "2").returncode == 0
    info = rank_json(tmp_path / "run", 0)
    assert (info["clock_sync"], info["clock_note"]) == ([], None)


# --- no job is held up ---------------------------------------------------------------------------------------------


class Apart:
    """Two ranks of one process group, the store of which lives in rank 0."""

    def __init__(self, out: Path, stop: int, **environ_of_0: str) -> None:
        self.out = out
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        whole = clean_environ() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
                                   "LOCAL_WORLD_SIZE": "2", "DISTPROF_RUN_ID": "apart"}
        self.jobs = [subprocess.Popen(
            [sys.executable, SCRIPTS / "apart.py", out, str(stop)], stderr=subprocess.PIPE, text=True,
            env=whole | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (environ_of_0 if not rank else {}))
            for rank in (0, 1)]

    def wait(self, rank: int) -> None:
        while not Path(f"{self.out}.{rank}.waits").exists():
            assert self.jobs[rank].poll() is None, self.jobs[rank].communicate()[1]
            time.sleep(0.02)

    def go(self, rank: int) -> None:
        Path(f"{self.out}.{rank}.go").touch()

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs:
            job.kill()
            job.communicate()


@pytest.mark.job
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("stop", [0, 2])
def test_a_rank_0_that_freezes_or_dies_holds_nobody_up(tmp_path, stop, number):
    """stop 0: before the ranks have met, and the store freezes or dies with rank 0; stop 2: afterwards."""
    with Apart(tmp_path / "run", stop) as both:
        both.wait(0), both.wait(1)
        both.jobs[0].send_signal(number)
        both.go(1)
        assert both.jobs[1].wait(timeout=PATIENCE_S) == 0
        info = rank_json(tmp_path / "run", 1)
    assert (info["status"], info["num_steps"]) == ("complete", 4)
    samples = info["clock_sync"]
    assert len(samples) == 4 and info["clock_note"]
    assert all(sample["offset_ns"] is sample["bound_ns"] is None and not sample["rounds"] for sample in samples[stop:])


@pytest.mark.job
def test_a_rank_0_that_does_not_record_is_missed_and_no_more(tmp_path):
    with Apart(tmp_path / "run", 4, DISTPROF_DISABLE="1") as both:
        both.wait(1)
        both.go(0), both.go(1)
        assert [job.wait(timeout=PATIENCE_S) for job in both.jobs] == [0, 0]
    info = rank_json(tmp_path / "run", 1)
    assert (info["status"], info["clock_note"]) == ("complete", "none of the ranks [0] records")
    assert len(info["clock_sync"]) == 4 and not any(sample["rounds"] for sample in info["clock_sync"])
    path = tmp_path / "run" / "rank00001" / "rank.json"
    other = Path(str(path).replace("00001", "00000"))
    other.parent.mkdir()
    other.write_text(json.dumps(info | {"rank": 0, "clock_sync": [], "clock_note": None, "files": {}}))
    path.write_text(json.dumps(info | {"boot_id": "another"}))
    told = distprof("merge", tmp_path / "run").stdout
    assert ("clocks are not aligned (rank 1): the ranks ran on several hosts, and no offsets were measured (rank 1: "
            "none of the ranks [0] records)") in told
    assert "clock: each rank's own, not aligned" in told


@pytest.mark.job
def test_a_rank_0_that_comes_late_is_asked_later(tmp_path):
    with Apart(tmp_path / "run", 0) as both:
        both.go(0)
        assert both.jobs[0].wait(timeout=PATIENCE_S) == 0  # it has ended its recording, and itself
        both.wait(1)
        both.go(1)
        assert both.jobs[1].wait(timeout=PATIENCE_S) == 0
    assert rank_json(tmp_path / "run", 1)["status"] == "complete"


@pytest.mark.job
def test_nothing_is_left_open_and_no_thread_runs_after_the_last_pass(tmp_path):
    torchrun(2, SCRIPTS / "left_behind.py", tmp_path / "run")
    ranks = [json.loads(Path(f"{tmp_path / 'run'}.{rank}.json").read_text()) for rank in (0, 1)]
    for seen in ranks:
        assert seen["after"] == seen["before"]
        assert len(seen["recording"]["sockets"]) > len(seen["before"]["sockets"]), "the test sees what it looks for"
    assert sum("distprof-clock" in seen["recording"]["threads"] for seen in ranks) == 1


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
        monkeypatch.setattr(clock, "open_store", lambda: PrefixStore(PREFIX, self.store))

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
    assert last.note == "none of the ranks [4, 0] records"
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


# --- who asks whom -------------------------------------------------------------------------------------------------


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


# --- the one who answers -------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True])
def responder(request):
    threads = threading.active_count()
    found = ClockResponder(remote=request.param)
    yield found
    found.close()
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", found.port), timeout=5)


def connect(responder: ClockResponder) -> socket.socket:
    return socket.create_connection(("127.0.0.1", responder.port), timeout=10)


def ask(client: socket.socket) -> tuple[int, int]:
    client.sendall(bytes([ASK]))
    answer = b""
    while len(answer) < ANSWER.size:
        answer += client.recv(ANSWER.size) or pytest.fail("no answer")
    return ANSWER.unpack(answer)


def test_who_knows_the_token_is_told_the_time(responder):
    with connect(responder) as one, connect(responder) as other:
        for byte in responder.token.encode():  # in pieces
            one.sendall(bytes([byte]))
        other.sendall(responder.token.encode())
        for client in (one, other, one):
            before = time.time_ns()
            there, left = ask(client)
            assert before <= there <= left <= time.time_ns()
        one.sendall(bytes([3]))
        other.sendall(bytes([3]))
        responder.wait(3, num_clients=2, seconds=60)
        assert responder._finished == {3: 2}
        responder.wait(4, num_clients=1, seconds=0)  # nobody comes


def test_who_does_not_know_the_token_is_told_nothing(responder):
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"0" * 64, bytes(64)):
        with connect(responder) as stranger:
            stranger.sendall(said)
            try:
                assert stranger.recv(64) == b""
            except ConnectionResetError:
                pass
    with connect(responder) as client:
        client.sendall(responder.token.encode())
        assert ask(client)


def test_more_clients_than_a_job_has_are_turned_away(responder, monkeypatch):
    monkeypatch.setattr("distprof.recording.clock.server.MAX_CLIENTS", 3)
    with connect(responder) as one, connect(responder) as other, connect(responder) as third:
        for client in (one, other):
            client.sendall(responder.token.encode())
            ask(client)
        assert third.recv(1) == b""


def test_a_forked_child_holds_nothing_open(responder):
    with connect(responder) as client:
        client.sendall(responder.token.encode())
        ask(client)
        ours = {key.fileobj.fileno() for key in responder._selector.get_map().values()}
        child = os.fork()
        if not child:
            responder.forget()
            open_still = {number for number in ours if Path(f"/proc/self/fd/{number}").exists()}
            os._exit(len(open_still))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ask(client), "the parent goes on"


def test_a_merged_run_of_one_host_stays_aligned_without_samples(tmp_path, ddp):
    """As recorded by a version that did not compare clocks."""
    run = Path(shutil.copytree(ddp, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    for path in run.glob("rank*/rank.json"):
        info = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in info.items() if not key.startswith("clock_")}))
    told = json.loads((merged(run) / "merged" / "summary.json").read_text())
    assert (told["clock"]["method"], told["problems"]) == ("shared", [])


def test_what_is_smaller_than_the_clocks_are_good_for_is_said(tmp_path, ddp):
    run = Path(shutil.copytree(ddp, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    path = run / "rank00003" / "rank.json"
    info = json.loads(path.read_text())
    samples = [sample | {"offset_ns": 0, "bound_ns": 10**9, "rounds": 1} for sample in info["clock_sync"]]
    path.write_text(json.dumps(info | {"boot_id": "another", "clock_sync": samples}))
    assert "2 clocks on 2 hosts aligned within 1.00 s" in distprof("stats", run).stdout
    told = distprof("comms", run).stdout
    number = len(json.loads(distprof("comms", "--json", run).stdout)["collectives"])
    assert f"clocks of two ranks agree within 1.00 s: {number} of {number} arrival spreads are smaller" in told
    assert "< 1.0 s" in told
