"""Jobs that hang are told while they do, and those that are only slow are not."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from distprof.contract.paths import STUCK_JSON
from distprof.contract.rank_json import RankJson
from distprof.contract.watch_state import RankState, WatchFinding
from distprof.launch.watching.hangs import HangSearch
from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ

pytestmark = [pytest.mark.job, pytest.mark.skipif(sys.platform != "linux", reason="jobs are watched on Linux")]
STOP = 30
WITHIN_S = 20.0
LISTENS_S = 24.0
HANGS = {  # what the sentence has to say
    "dead": ("rank 1 ended", "wait_for_store"), "stopped": ("rank 1 was stopped by a signal",),
    "branch": ("of second", "of first"), "op": ("called differently",),
    "lock": ("rank 1 never entered", "in take_lock"),
    "loader": ("rank 1 never entered",), "store": ("rank 1 never entered", "in wait_for_store"),
    "fifo": ("rank 1 never entered", "in open_fifo"), "all fifo": ("in open_fifo",)}
CULPRITS = {"all fifo": None, "branch": None, "op": None}
"""Ranks that have to be named; all of them where it is None."""
SLOW = ("slow rank", "evaluation", "checkpoint", "compiler", "slow loader")


class Job:
    """A job under `distprof run`, with what a watcher would know of its ranks."""

    def __init__(self, folder: Path, how: str, size: int) -> None:
        self.out, self.mark, self.size = folder / "run", folder / "mark", size
        self.process = forked.popen(
            [sys.executable, "-m", "distprof", "run", "--no-merge", "--out", self.out, "--nproc-per-node", str(size),
             "--steps", "wait=0,count=1,time=1,trace=0,arrivals=0", SCRIPTS / "stands_still.py", how, str(STOP),
             self.mark],
            env=clean_environ() | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.search = HangSearch(self.out, self.pids)

    def pids(self) -> dict[int, int]:
        found = {}
        for path in self.out.glob("rank*/rank.json"):
            with suppress(OSError, msgspec.MsgspecError):
                about = msgspec.json.decode(path.read_bytes(), type=RankJson)
                found[about.rank] = about.pid
        return found

    def ranks(self) -> list[RankState]:
        found = []
        for rank in range(self.size):
            with suppress(OSError, ValueError):
                step, time_ns = map(int, Path(f"{self.mark}.{rank}.step").read_text().split())
                found.append(RankState(rank=rank, host="here", step=step, time_ns=time_ns, step_ns=60e6, data_ns=None,
                                       waiting_ratio=None, forward_ns=None, backward_ns=None, optimizer_ns=None,
                                       device_ns=None, host_bytes=None, device_bytes=None))
        return found

    def found(self) -> tuple[WatchFinding | None, float]:
        """The hang and how long after the last step it was found; None where the job went on."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            ranks, now_ns = self.ranks(), time.time_ns()
            if len(ranks) == self.size and max(one.step for one in ranks) >= STOP:
                finding = self.search.look(ranks, now_ns)
                still_s = (now_ns - max(one.time_ns for one in ranks)) / 1e9
                if finding is not None:
                    return finding, still_s
                if still_s > LISTENS_S + WITHIN_S:
                    return None, still_s
            time.sleep(1)
        return None, 0.0

    def over(self) -> None:
        if self.process.poll() is None:
            for pid in self.pids().values():
                with suppress(OSError):
                    subprocess.run(["kill", "-CONT", str(pid)], stderr=subprocess.DEVNULL, check=False)
            self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)


def is_right(how: str, size: int, finding: WatchFinding | None, still_s: float) -> bool:
    if finding is None or still_s > WITHIN_S:
        return False
    told = " ".join([finding.text, *finding.why])
    culprits = CULPRITS.get(how, [1])
    return (finding.kind == "hang" and all(words in told for words in HANGS[how])
            and (culprits is None or finding.ranks == culprits))


@pytest.mark.parametrize("how", ["lock", "stopped"])
def test_a_hang_is_told_while_it_hangs(tmp_path, how):
    job = Job(tmp_path, how, 2)
    try:
        finding, _ = job.found()
        assert is_right(how, 2, finding, 0), finding
        assert finding.onset_step == STOP + 1
        assert finding.until_step is None
    finally:
        job.over()


def test_a_job_that_is_slow_does_not_hang(tmp_path):
    job = Job(tmp_path, "slow rank", 2)
    try:
        finding, _ = job.found()
        assert finding is None
        assert job.process.wait(PATIENCE_S) == 0
        assert not list(job.out.glob(f"rank*/{STUCK_JSON}"))  # what was asked for is taken back
    finally:
        job.over()


@pytest.mark.stress
def test_planted_hangs(tmp_path):
    right, wrong = 0, []
    plan = [(how, size) for how in HANGS for size in (2, 3, 4)] + [("stopped", 4), ("lock", 3), ("fifo", 4)]
    late = []
    for number, (how, size) in enumerate(plan):
        folder = tmp_path / str(number)
        folder.mkdir()
        job = Job(folder, how, size)
        try:
            finding, still_s = job.found()
        finally:
            job.over()
        late.append(still_s)
        ok = is_right(how, size, finding, still_s)
        right += ok
        wrong += [] if ok else [(how, size, still_s, finding)]
        print(how, size, ok, round(still_s, 1), finding.text if finding else None, flush=True)
    print(f"hangs: {right} of {len(plan)} right, told after {min(late):.1f} to {max(late):.1f} s; wrong: {wrong}")
    assert right >= 28


@pytest.mark.stress
def test_slow_jobs(tmp_path):
    found = []
    plan = [(how, size) for how in SLOW for size in (2, 3)]
    for number, (how, size) in enumerate(plan):
        folder = tmp_path / str(number)
        folder.mkdir()
        job = Job(folder, how, size)
        try:
            finding, _ = job.found()
            ended = job.process.wait(PATIENCE_S)
        finally:
            job.over()
        print(how, size, ended, finding, flush=True)
        found += [(how, size, finding)] if finding is not None or ended else []
    print(f"slow jobs that were told to hang, or failed: {len(found)} of {len(plan)}")
    assert not found
