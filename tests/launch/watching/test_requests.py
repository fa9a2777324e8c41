"""Requests to record: which step they name, how many there are, what became of them, what is refused."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract import rank_json
from distprof.contract.paths import RUN_JSON, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.watch import Frame, StepRows, encoded
from distprof.contract.watch_state import REQUEST_JSON, WATCH, WatchFinding, WindowRequest, window_folder
from distprof.errors import OutputError, UsageError
from distprof.launch.watching.claim import CLAIM_JSON, Claim
from distprof.launch.watching.rank_folders import latest_step
from distprof.launch.watching.requests import RequestPolicy, ask, finished, latest_request, progress, usual_steps
from distprof.launch.watching.window_causes import explained
from support.jobs import called


def running(run: Path, *, world_size: int = 2, hosts: int = 1, **fields: object) -> Path:
    """The directory of a job that runs."""
    run.mkdir(exist_ok=True)
    rank_json.write(run / RUN_JSON, RunJson(run_id="a", world_size=world_size, start_ns=1,
                                            hosts=[f"host{number}" for number in range(hosts)], **fields))
    return run


def rank_of(folder: Path, rank: int, *, status: str = "complete", partial: bool = False) -> Path:
    """The folder of a rank."""
    own = folder / f"{rank_folder(rank)}{'.partial' if partial else ''}"
    own.mkdir(parents=True)
    rank_json.write(own / "rank.json", RankJson(run_id="a", status=status, rank=rank, world_size=2,
                                                host=os.uname().nodename))
    return own


def test_ranks_have_time_to_read_a_request(tmp_path):
    run = running(tmp_path / "run")
    request = ask(run, "trace=3", "asked", latest_step=1000, step_s=0.02, age_s=0.5)
    assert request == WindowRequest(number=1, first_step=1001 + 145, steps="trace=3", why="asked")
    assert latest_request(run) == request
    slow = ask(running(tmp_path / "slow"), "trace=3", "asked", latest_step=10, step_s=30.0, age_s=0.5)
    assert slow.first_step == 14
    several = ask(running(tmp_path / "several", hosts=2), "trace=3", "asked", latest_step=10, step_s=0.1, age_s=0)
    assert several.first_step == 65


@given(latest=st.integers(0, 10**7), step_s=st.floats(1e-4, 1e3), age_s=st.floats(0, 10))
def test_a_request_is_never_for_a_step_that_may_be_over(tmp_path_factory, latest, step_s, age_s):
    run = running(tmp_path_factory.mktemp("run"))
    first = ask(run, "trace=1", "asked", latest_step=latest, step_s=step_s, age_s=age_s).first_step
    ahead = first - latest - 1
    assert ahead >= 3 and ahead * step_s >= 2.4 + age_s - 1e-6


def test_one_at_a_time(tmp_path):
    run = running(tmp_path / "run")
    ask(run, "trace=3", "asked", latest_step=10, step_s=0.1)
    assert not finished(run, 1) and progress(run, 1).read == 0
    with pytest.raises(OutputError, match="still being recorded"):
        ask(run, "trace=3", "asked", latest_step=10, step_s=0.1)
    rank_of(window_folder(run, 1), 0)
    rank_of(window_folder(run, 1), 1, status="recording", partial=True)
    found = progress(run, 1)
    assert (found.read, found.written, found.failed, found.is_over) == (2, (0,), {}, False)
    rank_json.write(window_folder(run, 1) / "rank00001.partial" / "rank.json", RankJson(
        run_id="a", status="failed", why="too late", rank=1, world_size=2))
    assert progress(run, 1).failed == {1: "too late"} and finished(run, 1)
    assert ask(run, "arrivals=2", "b", latest_step=10, step_s=0.1).number == 2


def test_ranks_that_are_gone_hold_up_no_other_request(tmp_path):
    run = running(tmp_path / "run")
    ask(run, "trace=3", "asked", latest_step=10, step_s=0.1)
    rank_of(window_folder(run, 1), 0, status="recording", partial=True)
    assert not finished(run, 1)
    age(run)
    assert finished(run, 1)
    running(run, end_ns=5)
    assert finished(run, 1)


def age(run):
    """As if all that a request and its ranks wrote was 400 s old."""
    for path in (run / WATCH / REQUEST_JSON, *window_folder(run, 1).glob("*/*"), window_folder(run, 1)):
        os.utime(path, (time.time() - 400,) * 2)


@pytest.mark.parametrize("old", [False, True])
def test_a_rank_that_is_ready_meanwhile_is_no_sign_that_it_is_gone(tmp_path, monkeypatch, old):
    run = running(tmp_path / "run")
    ask(run, "trace=3", "asked", latest_step=10, step_s=0.1)
    for rank in (0, 1):
        own = rank_of(window_folder(run, 1), rank, status="recording", partial=True)
    if old:
        age(run)
    stat, looks = Path.stat, []

    def renamed(path, **how):
        if path.parent == own:
            looks.append(path)  # the first is for its progress
            if len(looks) == 2:
                own.rename(own.with_suffix(""))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", renamed)
    assert not finished(run, 1)
    assert own.with_suffix("").is_dir()


@pytest.mark.parametrize("name", ["rank00000.bak", "rank00001-copy", "rank7", "rank00000.partial.old"])
def test_what_else_lies_among_the_folders_of_ranks_is_no_rank(tmp_path, name):
    run = running(tmp_path / "run", world_size=None)
    ask(run, "trace=3", "asked", latest_step=10, step_s=0.1)
    for folder in (run, window_folder(run, 1)):
        rank_of(folder, 3)
        (folder / name).mkdir()
    found = progress(run, 1)
    assert (found.of, found.read, found.written, found.is_over) == (1, 1, (3,), True)


def test_numbers_go_on_where_a_request_was_lost(tmp_path):
    run = running(tmp_path / "run")
    for rank in (0, 1):
        rank_of(window_folder(run, 7), rank)
    assert ask(run, "trace=3", "asked", latest_step=10, step_s=0.1).number == 8


@pytest.mark.parametrize("content", [b"{", b'{"steps": "\xff"}', b'{"x":' * 100_000])
def test_what_cannot_be_read_is_no_request_and_no_claim(tmp_path, content):
    run = running(tmp_path / "run")
    (run / WATCH).mkdir()
    for name in (REQUEST_JSON, CLAIM_JSON):
        (run / WATCH / name).write_bytes(content)
    assert latest_request(run) is None and Claim(run, is_alone=False).holds()
    assert ask(run, "trace=3", "asked", latest_step=10, step_s=0.1).number == 1


@pytest.mark.parametrize("steps", ["tracy=3", "trace=x", "trace=0", "trace=-1"])
def test_a_bad_plan_writes_nothing(tmp_path, steps):
    run = running(tmp_path / "run")
    with pytest.raises(UsageError):
        ask(run, steps, "asked", latest_step=10, step_s=0.1)
    assert latest_request(run) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    run = running(tmp_path / "run")
    run.chmod(0o500)
    with pytest.raises(OutputError, match="cannot write"):
        ask(run, "trace=3", "asked", latest_step=10, step_s=0.1)
    run.chmod(0o700)


def test_the_watch_asks_once_for_a_finding_and_seldom(tmp_path):
    run = running(tmp_path / "run")
    policy = RequestPolicy(run, every_s=0.2)
    assert policy.allows("a")
    ask(run, "trace=3", "a", latest_step=10, step_s=0.1)
    policy.asked("a")
    assert not policy.allows("a") and not policy.allows("b")
    time.sleep(0.25)
    assert not policy.allows("b"), "the first one is not done"
    for rank in (0, 1):
        rank_of(window_folder(run, 1), rank)
    assert policy.allows("b") and not policy.allows("a")
    assert not RequestPolicy(run, every_s=60).allows("b"), "it counts what was asked before"


def test_steps_are_fewer_where_they_are_long():
    assert usual_steps(0.02) == "trace=3,arrivals=20"
    assert usual_steps(1.0) == "trace=3,arrivals=10" and usual_steps(60.0) == "trace=3,arrivals=4"


def watched(folder: Path, *, last_step: int, step_ns: int, age_s: float) -> None:
    """A watch file with rows of ten steps each."""
    now_ns, rows = time.time_ns() - int(age_s * 1e9), StepRows()
    for first in range(last_step - 99, last_step, 10):
        values = {"first_step": first, "num_steps": 10, "end_ns": now_ns - (last_step - first - 9) * step_ns,
                  "span_ns": 10 * step_ns}
        for name in StepRows.__struct_fields__:
            getattr(rows, name).append(values.get(name, 1))
    (folder / "watch-000.bin").write_bytes(encoded(Frame(rows=rows)))


def test_where_a_job_is(tmp_path):
    run = running(tmp_path / "run")
    assert latest_step(run) is None
    watched(rank_of(run, 0), last_step=5000, step_ns=20_000_000, age_s=3.0)
    watched(rank_of(run, 1), last_step=5100, step_ns=20_000_000, age_s=1.0)
    found = latest_step(run)
    assert found is not None and found.step == 5100 and found.step_s == pytest.approx(0.02, rel=0.01)
    assert 1.0 <= found.age_s < 2.0 and found.now == pytest.approx(5100 + found.age_s / 0.02, abs=2)


# --- distprof trigger, as far as it needs no job ------------------------------------------------------------------


def said(*words: object, code: int) -> str:
    done = called("trigger", *words)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "hint:" in done.stderr
    return done.stderr


def test_what_is_no_running_job_is_refused(tmp_path, monkeypatch):
    assert "not a run directory" in said(tmp_path / "none", code=1)
    run = running(tmp_path / "run")
    assert "is watched" in said(run, code=1)
    rank_of(run, 0, status="recording", partial=True)
    assert "first steps" in said(run, "--no-wait", code=1)
    watched(rank_of(run, 1), last_step=500, step_ns=20_000_000, age_s=40.0)
    assert "no step" in said(run, code=1) and "for 40 s" in said(run, code=1)
    assert "unknown pass" in said(run, "--steps", "tracy=3", code=2)
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    assert "belongs to" in said(run, code=1) and "user 4242" in said(run, code=1)
    monkeypatch.undo()
    assert "is over" in said(running(run, end_ns=5), code=1)
    later = running(tmp_path / "later", first_step=100)
    assert "later recording" in said(later, code=1)
    assert not (run / WATCH).exists()


def test_it_is_waited_for_the_end_of_the_first_steps(tmp_path):
    """Or for that of the job."""
    run = running(tmp_path / "run")
    rank_of(run, 0, status="recording", partial=True)
    timer = threading.Timer(0.5, lambda: running(run, end_ns=5))
    timer.start()
    done = called("trigger", run)
    timer.join()
    assert done.returncode == 1 and "is over" in done.stderr
    assert "recording their first steps: waiting" in done.stderr.splitlines()[0]


def test_nobody_waits_for_a_job_that_has_ended(tmp_path):
    run = running(tmp_path / "run")
    watched(rank_of(run, 0), last_step=500, step_ns=20_000_000, age_s=0.1)
    done = called("trigger", "--no-wait", "--json", run)
    found = json.loads(done.stdout)
    assert (found["number"], found["written"], found["complete"]) == (1, [], False)
    assert found["first_step"] > 500 + 100 and found["steps"] == "trace=3,arrivals=20"
    assert "still being recorded" in said(run, code=1)


@pytest.mark.long
def test_what_cannot_be_read_explains_nothing(tmp_path):
    run = running(tmp_path / "run")
    assert explained(run, 1, WatchFinding(id="", kind="slow_rank", onset_step=1, onset_ns=1)) == []
