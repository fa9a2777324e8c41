"""Recordings later in a job, in one process: requests, what is recorded, what is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl
import pytest
import torch
from torch import nn

import distprof
from distprof.contract import rank_json
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import REQUEST_JSON, WATCH, WindowRequest, window_folder
from distprof.recording.watch import rows, windows
from support import forked
from support.jobs import called, clean_environ
from support.left_behind import traces_of_us

PLAN = "wait=1,count=0,time=2,trace=0,arrivals=0"


@pytest.fixture(autouse=True)
def looked_for_in_every_step(monkeypatch):
    monkeypatch.setattr(rows, "ROW_NS", 0)
    monkeypatch.setattr(rows, "BATCH_NS", 0)
    monkeypatch.setattr(windows, "SHARE", 0)
    monkeypatch.setattr("distprof.recording.watch.later_recorder.READY_S", 60.0)
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process loads torch's compiler, which sets a variable


def request(run: Path, first_step: int, steps: str = "trace=2", number: int = 1) -> None:
    """As a launcher writes it."""
    (run / WATCH).mkdir(exist_ok=True)
    new = run / WATCH / "new"
    new.write_bytes(msgspec.json.encode(WindowRequest(number=number, first_step=first_step, steps=steps)))
    new.replace(run / WATCH / REQUEST_JSON)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


def train(run: Path, num_steps: int, before_step: Callable[[int], object], *, explicit: bool = False,
          optimizers: int = 1) -> None:
    """A job of so many steps; `before_step` is called in each with its number."""
    model = nn.Sequential(Block(), Block())
    each = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(optimizers)]
    try:
        with distprof.record(run, steps=PLAN) as rec:
            for step in range(num_steps):
                before_step(step)
                model(torch.ones(2, 4)).sum().backward()
                for optimizer in each:
                    optimizer.step()
                if explicit:
                    rec.step()
    finally:
        each.clear()  # a traceback would keep them alive
        optimizer = None


def wait_until(is_true: Callable[[], bool]) -> None:
    """As long as a busy machine may take."""
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.01)


def about(folder: Path) -> RankJson:
    found = next(folder.glob("rank00000*"))
    return rank_json.read(found / "rank.json", RankJson)


def table(folder: Path, name: str) -> pl.DataFrame:
    return pl.read_parquet(folder / "rank00000" / f"{name}.parquet")


@pytest.mark.long
@pytest.mark.parametrize(("explicit", "optimizers"), [(False, 1), (True, 1), (False, 2)])
def test_a_request_is_recorded_in_its_steps(tmp_path, explicit, optimizers):
    run = tmp_path / "run"
    train(run, 20, lambda step: request(run, 12) if step == 7 else None, explicit=explicit, optimizers=optimizers)
    folder = window_folder(run, 1)
    found = rank_json.read(folder / "run.json", RunJson)
    of_job = rank_json.read(run / "run.json", RunJson)
    assert (found.first_step, found.run_id, found.argv) == (12, f"{of_job.run_id}.1", of_job.argv)
    assert (about(folder).status, about(folder).num_steps, about(folder).notes) == ("complete", 2, [])
    assert table(folder, "steps")["pass"].to_list() == ["trace", "trace"]
    assert table(folder, "modules")["module_path"].to_list() == table(run, "modules")["module_path"].to_list()
    slices = table(folder, "events")["name"].to_list()
    assert slices.count("0.inner [Linear]") == 2
    assert "step 0 here is step 12 of the job, the last one 13" in called("stats", folder).stdout
    assert called("stats", run).returncode == 0
    # steps outside of it are noted as ever, and none is lost
    assert json.loads(called("stats", "--json", run).stdout)["steps"]["num_run"] == 20


@pytest.mark.long
def test_one_follows_the_other_and_nothing_is_left(tmp_path):
    run, left = tmp_path / "run", set[str]()
    without = set[str]()

    def changed(before: dict) -> set[str]:
        return {name for name, seen in traces_of_us().items() if seen != before[name]}

    def at(step: int) -> None:
        if step % 10 == 5 and step > 9:
            request(run, step + 2, "trace=1,arrivals=1" if step == 25 else "trace=2", number=step // 10 + 1)
        if step % 10 == 9 and step > 9:  # files are written beside the script
            wait_until(lambda: any(window_folder(run, step // 10 + 1).glob("columns/*.bin")))
        if step == 53:
            left.update(changed(before))

    before = traces_of_us()
    train(tmp_path / "without", 20, lambda step: without.update(changed(before)) if step == 15 else None)
    train(run, 60, at)
    folders = sorted(path.name for path in (run / "windows").iterdir())
    assert folders == ["0002", "0003", "0004", "0005", "0006"]
    assert {about(run / "windows" / name).status for name in folders} == {"complete"}
    assert about(window_folder(run, 3)).passes.items() >= {"trace": 1, "arrivals": 1}.items()
    assert left <= without and traces_of_us() == before


@pytest.mark.parametrize("first_step", [5, 7])
def test_a_rank_that_is_farther_records_nothing_and_says_so(tmp_path, capfd, first_step):
    run = tmp_path / "run"
    train(run, 14, lambda step: request(run, first_step) if step == 9 else None)
    found = about(window_folder(run, 1))
    assert found.status == "failed" and f"step {first_step}" in (found.why or "")
    assert "windows/0001" in capfd.readouterr().err


@pytest.mark.parametrize(("content", "words"), [
    (b"{", "cannot be read"), (b'{"number": 1, "steps": "\xff"}', "cannot be read"),
    (b'{"x":' * 100_000, "cannot be read"), (b'{"number": 1, "first_step": 9, "steps": "tracy=2"}', "unknown pass"),
    (b'{"number": 1, "first_step": 9, "steps": "trace=0"}', "nothing to record")])
def test_a_request_that_makes_no_sense_is_said_once(tmp_path, capfd, content, words):
    run = tmp_path / "run"

    def at(step: int) -> None:
        if step == 6:
            (run / WATCH).mkdir()
            (run / WATCH / REQUEST_JSON).write_bytes(content)
        if step == 10:
            request(run, 13, number=2)

    train(run, 18, at)
    said = [line for line in capfd.readouterr().err.splitlines() if words in line]
    assert len(said) == 1 and not window_folder(run, 1).exists()
    assert about(window_folder(run, 2)).status == "complete"


def test_a_request_of_somebody_else_is_left_alone(tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr(windows.Windows, "_read", lambda self, owner, step, read=windows.Windows._read: read(
        self, owner + 1, step))
    train(run, 14, lambda step: request(run, 10) if step == 6 else None)
    assert not window_folder(run, 1).exists()


def test_what_an_earlier_attempt_recorded_is_not_recorded_again(tmp_path):
    run = tmp_path / "run"

    def at(step: int) -> None:
        if step == 6:
            (window_folder(run, 1) / "rank00000").mkdir(parents=True)
            request(run, 10)

    train(run, 14, at)
    assert not any((window_folder(run, 1) / "rank00000").iterdir())


@pytest.mark.parametrize("error", [None, ValueError("bad sample")])
def test_where_the_script_ends_inside_what_was_recorded_is_kept(tmp_path, error):
    run = tmp_path / "run"

    def at(step: int) -> None:
        if step == 6:
            request(run, 9, "time=20")
        if step == 13 and error is not None:
            raise error

    if error is None:
        train(run, 13, at)
    else:
        with pytest.raises(ValueError, match="bad sample"):
            train(run, 20, at)
    found = about(window_folder(run, 1))
    assert (found.status, found.num_steps) == ("partial", 4) and "after 4 of 20 steps" in (found.why or "")
    assert (found.failure is None) == (error is None)
    assert len(table(window_folder(run, 1), "steps")) == 4


def test_a_request_whose_step_never_comes_is_marked(tmp_path):
    run = tmp_path / "run"
    train(run, 12, lambda step: request(run, 500) if step == 6 else None)
    found = about(window_folder(run, 1))
    assert found.status == "failed" and "script ended" in (found.why or "")


def test_the_profiler_of_the_script_comes_first(tmp_path):
    run, profiler = tmp_path / "run", torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def at(step: int) -> None:
        if step == 6:
            request(run, 10, "trace=2")
        if step == 8:
            profiler.start()
        if step == 12:
            profiler.stop()

    train(run, 20, at)
    assert any(event.key == "aten::linear" for event in profiler.key_averages())
    folder = window_folder(run, 1)
    assert about(folder).status == "complete" and about(folder).profiled_steps == [0, 1]
    assert table(folder, "steps")["pass"].to_list() == ["wait", "wait", "trace", "trace"]


def test_a_failure_of_ours_ends_the_recording_alone(tmp_path, monkeypatch, capfd):
    run = tmp_path / "run"

    def fail(*_: object, **__: object) -> None:
        raise KeyError("ours")

    def at(step: int) -> None:
        if step == 6:
            request(run, 9)
        if step == 9:
            monkeypatch.setattr("distprof.recording.rank_recording.RankRecording.add_step", fail)
        if step == 10:
            monkeypatch.undo()

    train(run, 20, at)
    assert "training continues" in capfd.readouterr().err
    assert about(window_folder(run, 1)).status == "failed"
    assert json.loads(called("stats", "--json", run).stdout)["steps"]["num_run"] == 20


def test_evaluation_that_spans_the_begin_is_evaluation(tmp_path):
    run, model, validated = tmp_path / "run", nn.Sequential(Block()), Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(run, steps=PLAN) as rec:
        for step in range(16):
            if step == 6:
                request(run, 10)
            model(torch.ones(2, 4)).sum().backward()
            if step == 9:
                with rec.evaluation():
                    optimizer.step()  # the step ends inside
                    validated(torch.ones(2, 4))
            else:
                optimizer.step()
    steps = table(window_folder(run, 1), "steps")
    assert steps["evaluation_calls"].to_list() == [1, 0] and steps["forward_calls"].to_list() == [1, 1]


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_records_nothing(tmp_path):
    run = tmp_path / "run"

    def at(step: int) -> None:
        if step == 6:
            request(run, 8, "time=6")
        if step == 10:
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)

    train(run, 20, at)
    assert (about(window_folder(run, 1)).status, about(window_folder(run, 1)).num_steps) == ("complete", 6)


ENDS_BY_SIGNAL = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from recording.watch.test_windows import request, train
from distprof.recording.watch import rows
rows.ROW_NS = rows.BATCH_NS = 0
run = Path(sys.argv[1])
def at(step):
    if step == 6:
        request(run, 10, "time=3,trace=20")
    if step == 7:
        time.sleep(1)
    if step == 15:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
train(run, 40, at)
"""


@pytest.mark.job
def test_sigterm_inside_keeps_what_was_recorded(tmp_path):
    (tmp_path / "ends.py").write_text(ENDS_BY_SIGNAL.format(tests=str(Path(__file__).parents[2])))
    done = forked.run([sys.executable, str(tmp_path / "ends.py"), str(tmp_path / "run")], env=clean_environ(),
                      timeout=120)
    assert done.returncode == -signal.SIGTERM
    found = about(window_folder(tmp_path / "run", 1))
    assert (found.status, found.num_steps) == ("partial", 5) and "SIGTERM" in (found.why or "")
    assert len(table_of_partial(window_folder(tmp_path / "run", 1))) == 5


def table_of_partial(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(next(folder.glob("rank00000*")) / "steps.parquet")
