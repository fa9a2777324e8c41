"""When ranks are asked where they are, and what becomes of the answer."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import msgspec
import pytest

from distprof.contract.paths import STUCK_JSON
from distprof.contract.watch_state import REQUEST_JSON, WATCH, RankState, WindowRequest
from distprof.launch.watching import hangs
from distprof.launch.watching.hangs import HangSearch
from distprof.launch.watching.readings.activity import Activity
from support.stuck_ranks import rank_stuck

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="jobs are watched on Linux")
SECOND = 1_000_000_000
LAST_NS = 1000 * SECOND


class Job:
    """Two ranks: rank 0 waits for rank 1, whose processor time is what a test says."""

    def __init__(self, run, monkeypatch):
        self.run, self.now_s, self.used_s, self.answers = run, -1.0, 0.0, True
        self.search = HangSearch(run, lambda: {0: os.getpid(), 1: 4321})
        monkeypatch.setattr(hangs, "time", SimpleNamespace(monotonic=lambda: self.now_s, time_ns=lambda: self.now_ns))
        monkeypatch.setattr(hangs, "activities",
                            lambda pids: {rank: self._activity(pid) for rank, pid in pids.items()})
        monkeypatch.setattr(hangs, "network_bytes", lambda: 0)
        monkeypatch.setattr(hangs, "native_calls", lambda pid: ["epoll_wait (libc.so.6)"])

    @property
    def now_ns(self):
        return LAST_NS + round(self.now_s * SECOND)

    def _activity(self, pid):
        return Activity(at_s=self.now_s, alive=True, stopped=False, waits_for_disk=False, num_bytes=0,
                        used_s=self.used_s if pid == 4321 else 0.0)

    @property
    def asked(self):
        try:
            return msgspec.json.decode((self.run / WATCH / REQUEST_JSON).read_bytes(), type=WindowRequest).stacks
        except FileNotFoundError:
            return 0

    def until(self, second, step=30, last_ns=LAST_NS, step_ns=60e6, ahead_s=0, with_rows=(0, 1)):
        """Looks every second, from 0 on; what is found in the end. The clock of rank 1 may be ahead."""
        found = None
        while self.now_s < second:
            self.now_s += 1
            if self.answers and self.asked:
                for rank in range(2):
                    folder = self.run / f"rank{rank:05d}"
                    folder.mkdir(exist_ok=True)
                    told = rank_stuck(rank, self.now_ns + rank * ahead_s * SECOND)
                    (folder / STUCK_JSON).write_bytes(msgspec.json.encode(told))
            ranks = [RankState(rank=rank, host="a", step=step, time_ns=last_ns + rank * ahead_s * SECOND,
                               step_ns=step_ns, waiting_ratio=None, data_ns=None, forward_ns=None, backward_ns=None,
                               optimizer_ns=None, device_ns=None, host_bytes=None, device_bytes=None)
                     for rank in with_rows]
            found = self.search.look(ranks)
        return found


@pytest.fixture
def job(tmp_path, monkeypatch):
    return Job(tmp_path, monkeypatch)


def test_a_hang_is_found_in_time_and_ends(job):
    assert job.until(10) is None
    assert job.asked == 0
    finding = job.until(17)
    assert job.asked == 1
    assert (finding.ranks, finding.hosts, finding.onset_step, finding.onset_ns) == ([1], ["a"], 31, LAST_NS)
    assert "rank 1 never entered" in finding.text
    assert "rank 1, native: epoll_wait (libc.so.6)" in finding.why
    assert job.until(40) is finding
    assert job.asked == 1  # once is enough
    assert finding.cost_ns == 40 * SECOND
    assert job.until(42, step=31, last_ns=LAST_NS + 41 * SECOND).until_step == 31
    assert finding.cost_ns == 41 * SECOND
    assert finding.text == "rank 1 hung in step 31 for 41 s, then the job continued; train.py:57"
    assert finding.why == []


@pytest.mark.parametrize("ahead_s", [-3600, -60, 5, 60, 3600])
def test_a_clock_that_is_wrong_neither_delays_nor_makes_a_hang(job, ahead_s):
    for second in range(60):
        assert job.until(second, last_ns=LAST_NS + second * SECOND, ahead_s=ahead_s) is None
    assert job.until(69, last_ns=LAST_NS + 59 * SECOND, ahead_s=ahead_s) is None
    finding = job.until(76, last_ns=LAST_NS + 59 * SECOND, ahead_s=ahead_s)
    assert finding.ranks == [1]
    assert finding.cost_ns == 17 * SECOND
    assert job.until(80, step=31, last_ns=LAST_NS + 79 * SECOND, ahead_s=ahead_s).until_step == 31
    assert finding.cost_ns == 20 * SECOND


@pytest.mark.parametrize("ahead_s", [-600, 600])
def test_a_rank_that_never_wrote_a_row_is_heard_whatever_its_clock_says(job, ahead_s):
    finding = job.until(17, ahead_s=ahead_s, with_rows=(0,))
    assert finding.ranks == [1] and finding.line == "train.py:57"


def test_rows_that_come_late_do_not_delay_it(job):
    """Those before a hang wait for the next time that ranks write, which is every 3 s."""
    for second in range(60):
        job.until(second, last_ns=LAST_NS + second * SECOND)
    job.until(63, last_ns=LAST_NS + 59 * SECOND)
    assert job.until(76, last_ns=LAST_NS + 60 * SECOND) is not None


@pytest.mark.parametrize("set_by_s", [-3600, -60, 60, 3600])
def test_a_clock_that_is_set_is_no_hang(job, set_by_s):
    for second in range(60):
        assert job.until(second, last_ns=LAST_NS + (second + set_by_s * (second > 20)) * SECOND) is None
    assert job.asked == 0


def test_who_computes_is_asked_again_less_and_less_often(job):
    while job.now_s < 200:
        job.used_s += 0.5
        assert job.until(job.now_s + 1) is None
    assert 5 < job.asked < 14
    assert job.until(240) is not None  # now it does nothing


def test_long_steps_have_time(job):
    assert job.until(100, step_ns=8e9) is None
    assert job.asked == 0


def test_nobody_answers(job):
    job.answers = False
    assert job.until(60) is None  # ranks that go on answer, and take it back: nothing is known


def test_an_answer_that_is_taken_back_is_progress(job):
    job.until(14)
    (job.run / "rank00000" / STUCK_JSON).unlink()
    job.answers = False
    assert job.until(18) is None


def test_ranks_that_have_ended_do_not_hang(job, monkeypatch):
    """Before torchrun starts them again, stacks that they wrote as they ended may still be there."""
    monkeypatch.setattr(hangs.psutil, "pid_exists", lambda _: False)
    assert job.until(60) is None and job.asked == 0


def test_ranks_that_ended_no_step_are_found_to_hang(job):
    found = job.until(60, with_rows=())
    assert found is not None and found.ranks == [1] and found.onset_step == 30
