"""Real jobs that hang: what each rank was in is in its folder, whoever ends it, and gone when the job goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from distprof.contract.paths import STUCK_JSON
from distprof.contract.stuck import Stuck, StuckGroup
from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, wait_for

pytestmark = pytest.mark.job

SHORT = "wait=0,count=1,time=1,trace=2,arrivals=0"
DURING, AFTERWARDS = 3, 6
"""Steps: in the trace pass, and two steps after the last."""
DURING_AND_AFTERWARDS = pytest.mark.parametrize("stop", [DURING, pytest.param(AFTERWARDS, marks=pytest.mark.stress)])


class Job:
    """A job under `distprof run` that comes to stand."""

    def __init__(self, folder: Path, how: str, stop: int, **environ: str) -> None:
        self.out, self.mark = folder / "run", folder / "mark"
        self.process = forked.popen(
            [sys.executable, "-m", "distprof", "run", "--no-merge", "--out", self.out, "--nproc-per-node", "2",
             "--steps", SHORT, SCRIPTS / "stuck.py", how, str(stop), self.mark],
            env=clean_environ() | environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def over(self) -> None:
        """Whatever came of it, nothing is left."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)

    def wait_for(self, *files: Path) -> None:
        wait_for(self.process, *files)

    def folder(self, rank: int) -> Path:
        return next(path for path in self.out.glob(f"rank{rank:05d}*") if path.is_dir())

    def stuck(self, rank: int) -> Stuck:
        return msgspec.json.decode((self.folder(rank) / STUCK_JSON).read_bytes(), type=Stuck)

    def comes_to_stand(self) -> None:
        self.wait_for(Path(f"{self.mark}.0"), Path(f"{self.mark}.1"))

    def end(self, number: int) -> str:
        self.process.send_signal(number)
        return self.process.communicate(timeout=PATIENCE_S)[1]


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Job]]:
    jobs = []

    def begin(how: str, stop: int, **environ: str) -> Job:
        jobs.append(Job(tmp_path, how, stop, **environ))
        jobs[-1].comes_to_stand()
        return jobs[-1]

    yield begin
    for job in jobs:
        job.over()


def checks(stuck: Stuck) -> StuckGroup:
    return next(group for group in stuck.groups if group.description == "checks")


def says_who_never_entered(waits: Stuck, absent: Stuck, stop: int) -> None:
    """Rank 0 waits in collective `stop` + 1 of the group, which rank 1 never called."""
    mine, theirs = checks(waits), checks(absent)
    assert (waits.waiting, absent.waiting) == (True, False)
    assert mine.ranks == theirs.ranks == [0, 1] and mine.backend == "gloo"
    assert (mine.last_called, mine.last_completed) == (stop + 1, stop)
    assert (theirs.last_called, theirs.last_completed) == (stop, stop)
    assert [(one.number, one.completed) for one in mine.collectives] == [
        (number, number <= stop) for number in range(1, stop + 2)]
    last = mine.collectives[-1]
    assert (last.op, last.input_sizes, last.input_dtypes) == ("all_reduce", [[3]], ["Float"])
    assert last.called_ns <= waits.time_ns
    assert waits.threads[0].main and any(frame.function == "all_reduce" for frame in waits.threads[0].frames)
    inside = absent.threads[0].frames[-1]
    assert inside.function == "oversleep" and inside.file.endswith("stuck.py")


@DURING_AND_AFTERWARDS
def test_sigterm_finds_who_never_entered(start, stop):
    job = start("absent", stop)
    job.end(signal.SIGTERM)
    waits, absent = job.stuck(0), job.stuck(1)
    assert waits.cause == absent.cause == "signal" and waits.why == absent.why == "signal SIGTERM"
    assert waits.recording == (stop == DURING) and waits.step == min(stop, 4)
    says_who_never_entered(waits, absent, stop)
    if stop == DURING:
        assert waits.pass_name == "trace"
        call, = waits.open_calls
        assert (call.op, call.num_elements, call.step) == ("all_reduce", 3, stop) and not absent.open_calls
        assert call.group == checks(waits).name and call.enqueue_ns <= waits.time_ns
    else:
        assert not waits.open_calls and "complete" in (job.folder(0) / "rank.json").read_text()


def test_sigint_is_seen_where_the_main_thread_hangs(start):
    job = start("absent", DURING)
    job.end(signal.SIGINT)
    waits, absent = job.stuck(0), job.stuck(1)
    assert waits.why == absent.why == "signal SIGINT"
    assert absent.failure is not None and absent.failure.type == "KeyboardInterrupt"
    assert absent.failure.frames[-1].function == "oversleep"
    assert checks(waits).last_called == DURING + 1 and checks(absent).last_called == DURING


@DURING_AND_AFTERWARDS
def test_the_watchdog_was_there_before_a_sigkill(start, stop):
    job = start("absent", stop, DISTPROF_HANG_SECONDS="3")
    folders = [job.folder(rank) for rank in (0, 1)]
    job.wait_for(*(folder / STUCK_JSON for folder in folders))
    waits, absent = job.stuck(0), job.stuck(1)
    info = msgspec.json.decode((folders[0] / "rank.json").read_bytes())
    for rank in (0, 1):
        os.kill(msgspec.json.decode((folders[rank] / "rank.json").read_bytes())["pid"], signal.SIGKILL)
    told = job.process.communicate(timeout=PATIENCE_S)[1]
    assert waits.cause == absent.cause == "watchdog"
    assert waits.why.startswith("no step has ended for" if stop == DURING else "no collective has been called for")
    assert "stuck.json in" in told or stop != DURING
    assert info["status"] == ("recording" if stop == DURING else "complete")
    says_who_never_entered(waits, absent, stop)
    assert all((folder / STUCK_JSON).exists() for folder in folders)


@DURING_AND_AFTERWARDS
def test_a_job_that_goes_on_leaves_nothing(start, stop):
    job = start("pause", stop, DISTPROF_HANG_SECONDS="3")
    job.wait_for(job.folder(0) / STUCK_JSON)
    Path(f"{job.mark}.go").touch()
    told = job.process.communicate(timeout=PATIENCE_S)[1]
    assert job.process.returncode == 0, told
    assert {path.name for path in job.out.iterdir()} - {"watch", "hosts"} == {
            "run.json", "rank00000", "rank00001", "columns"}
    assert not list(job.out.glob(f"*/{STUCK_JSON}"))


@pytest.mark.stress
def test_a_collective_that_gives_up_is_an_error_with_its_place(start):
    job = start("timeout", DURING)
    told = job.process.communicate(timeout=PATIENCE_S)[1]
    assert job.process.returncode == 1, told
    waited = job.stuck(0)
    assert waited.cause == "error" and waited.why.startswith("RuntimeError: ")
    assert waited.failure is not None and "all_reduce" in [frame.function for frame in waited.failure.frames]
    assert checks(waited).last_called == DURING + 1


def test_different_ops_are_seen_side_by_side(start):
    job = start("ops", DURING, DISTPROF_HANG_SECONDS="3")
    job.wait_for(*(job.folder(rank) / STUCK_JSON for rank in (0, 1)))
    found = [checks(job.stuck(rank)) for rank in (0, 1)]
    assert [group.collectives[DURING].op for group in found] == ["all_reduce", "barrier"]
    assert [group.collectives[DURING].number for group in found] == [DURING + 1] * 2
    assert not any(group.collectives[DURING].completed for group in found)


@pytest.mark.stress
def test_different_sizes_are_an_error_that_shows_them(start):
    """gloo ends the process that gets more than it expects at once: only the other one leaves a file."""
    job = start("sizes", DURING)
    told = job.process.communicate(timeout=PATIENCE_S)[1]
    assert job.process.returncode != 0, told
    told = {rank: job.stuck(rank) for rank in (0, 1) if (job.folder(rank) / STUCK_JSON).exists()}
    assert told and all(stuck.cause in ("error", "signal") for stuck in told.values())
    for rank, stuck in told.items():
        assert checks(stuck).collectives[DURING].input_sizes == [[5 if rank else 3]]
