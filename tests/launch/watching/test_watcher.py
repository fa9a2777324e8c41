"""The process beside a job: what it notices, when it ends, and that nothing which befalls it concerns the job."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distprof.contract.watch_state import WATCH, WatchState, read_state
from distprof.launch.watching import claim
from distprof.launch.watching.claim import Claim
from distprof.launch.watching.watch_process import WatchProcess
from support.watched_ranks import PROGRAM, MadeUpRank, PlainEngine, make_run, order

PATIENCE_S = 60.0
FINDING = "rank 1 slow from step 299 on: +18.0 ms per step, 68 s lost; forward"
pytestmark = pytest.mark.job


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def state_of(run: Path) -> WatchState:
    until(lambda: read_state(run) is not None)
    state = read_state(run)
    assert state is not None
    return state


def slow_job(run: Path) -> list[MadeUpRank]:
    """Four ranks, of which rank 1 becomes slow at step 200."""
    ranks = [MadeUpRank(run, rank) for rank in range(4)]
    for rank in ranks:
        rank.steps(200)
        rank.steps(100, forward_ms=23 if rank is ranks[1] else 5)
    return ranks


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def test_a_finding_is_said_once_while_the_job_runs_and_again_at_its_end(run, capsys):
    watching = WatchProcess(order(run), PROGRAM)
    ranks = slow_job(run)
    until(lambda: "slow" in capsys.readouterr().err)
    first = state_of(run)
    assert first.running and [one.ranks for one in first.findings] == [[1]]
    until(lambda: state_of(run).time_ns > first.time_ns)
    for rank in ranks:
        rank.close()
    assert watching.finish() == [f"300 steps watched in 6.0 s, 20.0 ms per step; {FINDING}"]
    last = state_of(run)
    assert not last.running and last.num_steps == 300
    assert capsys.readouterr().err == ""


def test_the_line_says_who_and_since_when(run, capsys):
    watching = WatchProcess(order(run), PROGRAM)
    slow_job(run)
    watching.finish()
    assert capsys.readouterr().err == f"distprof: {FINDING}\n"


def test_what_ranks_write_as_they_end_is_in_the_last_look(run):
    watching = WatchProcess(order(run), PROGRAM)
    ranks = [MadeUpRank(run, rank) for rank in range(4)]
    for rank in ranks:
        rank.steps(200)
    until(lambda: state_of(run).num_steps == 200)
    for rank in ranks:
        rank.steps(17, file=1)
        rank.close()
    assert watching.finish()[0].startswith("217 steps watched in ")


def test_a_job_without_watched_steps_leaves_no_state_and_says_nothing(run, capsys):
    watching = WatchProcess(order(run), PROGRAM)
    MadeUpRank(run, 0).close()
    assert watching.finish() == [] and not (run / "watch").exists()
    assert capsys.readouterr().err == ""


def test_a_watcher_that_is_killed_is_named_at_the_end_with_what_to_type(run, capsys):
    watching = WatchProcess(order(run), PROGRAM)
    slow_job(run)
    state_of(run)
    watching._process.kill()
    assert watching.finish() == []
    assert ("distprof: the watch ended before the job (signal 9). Next:\n"
            f"    distprof watch --once {run}\n") in capsys.readouterr().err


CRASHES = ("import sys; sys.path[:] = sys.argv.pop(1).split('\\n')\n"
           "from distprof.launch.watching import watcher\n"
           "def engine(hosts): raise ArithmeticError('one thing and another')\n"
           "watcher.main(engine)")


def test_a_watcher_that_crashes_says_why_at_the_end_and_not_before(run, capsys):
    watching = WatchProcess(order(run), CRASHES)
    MadeUpRank(run, 0).steps(5)
    assert watching._process.wait(PATIENCE_S) == 1
    assert capsys.readouterr().err == ""
    assert watching.finish() == []
    assert "the watch ended before the job: ArithmeticError: one thing and another. Next:" in capsys.readouterr().err


def test_a_watcher_that_cannot_be_started_is_one_line(run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert WatchProcess(order(run), PROGRAM).finish() == []
    assert capsys.readouterr().err == "distprof: cannot start the watch: No such file or directory\n"


LAUNCHER = """
import sys, time
from pathlib import Path
from distprof.launch.watching.watch_process import WatchProcess
from support.watched_ranks import PROGRAM, order
watching = WatchProcess(order(Path(sys.argv[1])), PROGRAM)
print(watching._process.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_a_launcher_that_is_killed(run):
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(run)], stdout=subprocess.PIPE, text=True,
                                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    pid = int(launcher.stdout.readline())
    slow_job(run)
    state_of(run)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    until(lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text())
    assert state_of(run).running  # nobody told that the job is over: its ranks may go on


def test_a_run_directory_that_is_removed_is_not_made_again(run):
    watching = WatchProcess(order(run), PROGRAM)
    slow_job(run)
    state_of(run)
    shutil.rmtree(run)
    time.sleep(2.5)
    lines = watching.finish()
    assert not run.exists() and lines == [f"300 steps watched in 6.0 s, 20.0 ms per step; {FINDING}"]


def test_a_directory_that_takes_no_file_costs_only_the_file(run, capsys):
    (run / "watch").write_text("in the way")
    watching = WatchProcess(order(run), PROGRAM)
    slow_job(run)
    assert watching.finish()[0].endswith(FINDING)
    assert "rank 1 slow" in capsys.readouterr().err


def test_damage_costs_what_was_damaged(run):
    ranks = [MadeUpRank(run, rank) for rank in range(2)]
    for rank in ranks:
        rank.steps(50)
    with (ranks[0].folder / "watch-000.bin").open("ab") as out:
        out.write(b"dpW1\xff\xff\xff\xff" + bytes(range(200)))
    (run / "rank00007.partial").mkdir()
    (run / "rank00007.partial" / "rank.json").write_text("{")
    ranks[0].steps(50)
    ranks[1].steps(50)
    assert WatchProcess(order(run), PROGRAM).finish()[0].startswith("100 steps")


NOTES_MODULES = """
import json, os, pathlib
real = os._exit
def noted(code):
    pathlib.Path(os.environ["NOTED"]).write_text(json.dumps([os.nice(0), *sys.modules]))
    real(code)
os._exit = noted
with_plain_engine()
"""


def test_it_imports_neither_torch_nor_a_screen_and_gives_way_to_the_job(run):
    program = PROGRAM.replace("with_plain_engine()", NOTES_MODULES)
    os.environ["NOTED"] = str(run / "noted.json")
    try:
        watching = WatchProcess(order(run), program)
        slow_job(run)
        watching.finish()
    finally:
        del os.environ["NOTED"]
    nice, *modules = json.loads((run / "noted.json").read_text())
    assert nice >= 10
    assert not {"torch", "rich", "prometheus_client", "click"} & set(modules)


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_clock_of_a_rank_that_is_set_hides_no_finding(run, jump_s, capsys):
    watching = WatchProcess(order(run), PROGRAM)
    ranks = [MadeUpRank(run, rank) for rank in range(4)]
    for rank in ranks:
        rank.steps(200)
        rank.end_ns += jump_s * 10**9
        rank.steps(100, forward_ms=23 if rank is ranks[1] else 5)
    watching.finish()
    assert "rank 1 slow from step 299" in capsys.readouterr().err


def test_a_later_attempt_takes_the_place_of_an_earlier_one(run):
    watching = WatchProcess(order(run), PROGRAM)
    first = slow_job(run)
    until(lambda: state_of(run).findings)
    (run / "attempt0000").mkdir()
    for rank in first:
        rank.folder.rename(run / "attempt0000" / rank.folder.name)
    again = [MadeUpRank(run, rank, attempt=1) for rank in range(4)]
    for rank in again:
        rank.steps(30)
    until(lambda: state_of(run).num_steps == 30)
    assert state_of(run).findings == [] and state_of(run).notes == [
        "torchrun restarted the job: this is the last attempt"]
    for rank in again:
        rank.steps(300, forward_ms=23 if rank is again[1] else 5)
    until(lambda: state_of(run).findings)
    assert [one.id for one in state_of(run).findings] == ["slow-1.1"]  # not that of the first attempt
    assert watching.finish()[-1] == "  torchrun restarted the job: this is the last attempt"


def test_only_one_of_two_launchers_writes_and_the_other_goes_on_where_that_one_is_gone(run, capsys, monkeypatch):
    program = PROGRAM.replace("with_plain_engine()", "from distprof.launch.watching import claim\n"
                                                     "claim.STALE_S = 3.0\nwith_plain_engine()")
    one = WatchProcess(order(run, is_alone=False), program)
    ranks = slow_job(run)
    said: list[str] = []
    until(lambda: said.append(capsys.readouterr().err) or "rank 1 slow" in "".join(said))
    other = WatchProcess(order(run, is_alone=False), program)
    owner = (run / "watch" / "watcher.json").read_bytes().partition(b'"host"')[0]
    time.sleep(2.5)
    assert (run / "watch" / "watcher.json").read_bytes().startswith(owner)
    one._process.kill()
    ranks[0].steps(10)
    for rank in ranks[1:]:
        rank.steps(10)
    until(lambda: state_of(run).num_steps == 310)
    assert not (run / "watch" / "watcher.json").read_bytes().startswith(owner)
    assert other.finish()[0].startswith("310 steps watched in ") and not (run / "watch" / "watcher.json").exists()
    assert "".join([*said, capsys.readouterr().err]).count("rank 1 slow") == 1
    one.finish()


def test_the_engine_of_tests_is_one(run):
    from distprof.launch.watching.watched_job import WatchedJob

    slow_job(run)
    job = WatchedJob(run, PlainEngine)
    assert job.look() and not job.look()


SLOW_TO_LOOK = """
from distprof.launch.watching import watcher
watcher.SHARE = 1e-9
watcher.LONGEST_S = 600.0
with_plain_engine()
"""


def test_while_looking_would_cost_too_much_the_state_stays_fresh_and_the_end_is_not_held_up(run):
    ranks = [MadeUpRank(run, rank) for rank in range(2)]
    for rank in ranks:
        rank.steps(10)
    watching = WatchProcess(order(run), PROGRAM.replace("with_plain_engine()", SLOW_TO_LOOK))
    first = state_of(run)
    for rank in ranks:
        rank.steps(10)
    until(lambda: state_of(run).time_ns > first.time_ns)
    assert state_of(run).num_steps == 10
    assert watching.finish()[0].startswith("20 steps")  # it would not, after 30 s


def test_on_a_full_disk_only_the_launcher_that_wrote_before_holds(run, monkeypatch):
    first, other = Claim(run, is_alone=False), Claim(run, is_alone=False)
    (run / WATCH).mkdir(exist_ok=True)
    assert first.holds()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(claim, "write_unsynced", full)
    monkeypatch.setattr(claim, "STALE_S", 0.0)
    assert first.holds() and not other.holds()
