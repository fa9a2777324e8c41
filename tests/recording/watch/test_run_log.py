"""`--log-to wandb|mlflow`: what is in the script's own run in the end, read from the files that the trackers wrote."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest

from distprof.contract.watch_state import write_state
from distprof.recording.watch import run_log as module
from distprof.recording.watch.run_log import VARIABLE, MlflowRun, RunLog, WandbRun, points, run_log
from support import forked, wandb_files
from support.jobs import clean_environ, record_run
from support.made_up_states import job_state, rank_state, slow_rank
from support.watched_ranks import make_run

OURS = ("distprof/", "_")
LOGGING = """
import sys
import wandb
from distprof.recording.watch.run_log import WandbRun
from distprof.threads import UnseenThread

run, ours, over = wandb.init(project="p", dir=sys.argv[1]), WandbRun(), []


def ours_is_written(step):
    if sys.argv[2] != "alone" and ours.name():
        ours.write(step, {"distprof/step_seconds/rank 1": step / 100}, {"distprof/findings/slow_rank-1": f"at {step}"})


def goes_on():
    while not over:
        ours_is_written(7)


thread = UnseenThread(goes_on)
if sys.argv[2] == "thread":
    thread.start()
for step in range(60):  # rows that wandb numbers
    ours_is_written(step)
    run.log({"loss": step})
for step in range(100, 160):  # rows with a step, in two parts; ours is in front, between and behind
    run.log({"loss": step}, step=step)
    ours_is_written(step)
    run.log({"accuracy": step / 2}, step=step)
for step in range(160, 200):  # parts that are not committed
    run.log({"loss": step}, commit=False)
    ours_is_written(step)
    run.log({"accuracy": step / 2})
run.log({"validation": 1.0, "epoch": 3}, step=5000)
ours_is_written(5)
over.append(True)
thread.join()
run.finish()
ours_is_written(6)
"""
"""A script that logs in all ways that wandb has."""


def own_rows(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What the script logged: step and values."""
    found = [(row["_step"], {key: value for key, value in row.items() if not key.startswith(OURS)})
             for row in wandb_files.rows(folder)]
    return [(step, values) for step, values in found if values]


@pytest.mark.job
@pytest.mark.parametrize("how", ["between", "thread"])
def test_rows_that_a_script_logs_to_wandb_are_as_without_us_and_ours_are_there(tmp_path, how):
    pytest.importorskip("wandb")
    for name in ("alone", how):
        (tmp_path / name).mkdir()
        forked.run([sys.executable, "-c", LOGGING, str(tmp_path / name), name], check=True, cwd=tmp_path,
                   env=clean_environ() | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    rows = own_rows(tmp_path / "alone")
    assert len(rows) == 160 and rows[60] == (100, {"loss": 100, "accuracy": 50.0})
    assert own_rows(tmp_path / how) == rows
    ours = [row for row in wandb_files.rows(tmp_path / how) if "distprof/step" in row]
    assert len(ours) > (100 if how == "between" else 0)
    if how == "between":
        assert [(row["distprof/step"], row["distprof/step_seconds/rank 1"]) for row in ours][:3] == [
            (0, 0.0), (1, 0.01), (2, 0.02)]
        assert wandb_files.summary(tmp_path / how)["distprof/findings/slow_rank-1"] == "at 5"
    assert wandb_files.metrics(tmp_path / how) == {"distprof/step": "", "distprof/*": "distprof/step"}


class Kept:
    """An open run in memory."""

    def __init__(self, *, fails: bool = False) -> None:
        self.open: str | None = "first"
        self.fails, self.written = fails, list[tuple[int, dict[str, float], dict[str, str]]]()

    def look(self) -> None:
        pass

    def name(self) -> str | None:
        return self.open

    def write(self, step, values, texts) -> None:
        if self.fails:
            threading.current_thread()  # as logging does
            raise ConnectionError("no route to host")
        self.written.append((step, dict(values), dict(texts)))


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(module, "LOOKS_S", 0.01)
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr("distprof.contract.watch_state.SETTLES_S", 0.0)


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_new_run_gets_all_findings_and_no_step_comes_twice(tmp_path, fast):
    run, kept = make_run(tmp_path / "run"), Kept()
    log = RunLog(run, 3, "wandb", kept, print)
    write_state(run, job_state(num_steps=100))
    log.start()
    until(lambda: kept.written)
    kept.open = None
    write_state(run, job_state(num_steps=150))
    time.sleep(0.1)
    assert len(kept.written) == 1
    kept.open = "second"
    write_state(run, job_state(num_steps=200))
    until(lambda: len(kept.written) == 2)
    write_state(run, job_state(num_steps=200))
    log.stop()
    assert [step for step, _, _ in kept.written] == [99, 199]
    assert [texts for _, _, texts in kept.written] == [{"distprof/findings/slow_rank-1": slow_rank().text}] * 2
    assert kept.written[0][1]["distprof/step_seconds/rank 1"] == 0.02
    assert (run / "watch" / "log-to-wandb").read_text() == "rank 3: first\nrank 3: second\n"


def test_a_finding_that_ended_says_so_and_pauses_are_not_told(tmp_path, fast):
    run, kept = make_run(tmp_path / "run"), Kept()
    log = RunLog(run, 0, "wandb", kept, print)
    write_state(run, job_state(findings=[slow_rank(until_step=6500), slow_rank(2, kind="pauses")]))
    log.start()
    log.stop()
    (_, _, texts), = kept.written
    assert list(texts) == ["distprof/findings/slow_rank-1"]
    assert texts["distprof/findings/slow_rank-1"].endswith("lost (until step 6,500)")


def test_a_tracker_that_does_not_answer_is_one_line_and_the_thread_stays_unseen(tmp_path, fast):
    run, said = make_run(tmp_path / "run"), list[str]()
    log = RunLog(run, 0, "mlflow", Kept(fails=True), said.append)
    before = threading.enumerate()
    log.start()
    for steps in range(100, 200):
        write_state(run, job_state(num_steps=steps))
        time.sleep(0.005)
    until(lambda: said)
    log.stop()
    assert said == ["--log-to mlflow: logging has stopped: ConnectionError: no route to host"]
    assert threading.enumerate() == before


def test_without_a_state_or_an_open_run_nothing_is_written(tmp_path, fast, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", type(sys)("wandb"))  # a folder that wandb left is a package without a run
    monkeypatch.setitem(sys.modules, "mlflow", type(sys)("mlflow"))
    for to in (WandbRun(), MlflowRun()):
        to.look()
        assert to.name() is None
    run, kept = make_run(tmp_path / "run"), Kept()
    log = RunLog(run, 0, "wandb", kept, print)
    log.start()
    log.stop()
    assert kept.written == [] and run_log(run / "rank00000", 0, print, {VARIABLE: "tensorboard"}) is None
    assert run_log(run / "rank00000", 0, print, {}) is None


def test_of_many_ranks_those_with_findings_are_written_in_units_of_their_names():
    found = points(job_state(ranks=[rank_state(rank) for rank in range(512)], findings=[slow_rank(400)]))
    assert "distprof/step_seconds/rank 400" in found and "distprof/step_seconds/rank 300" not in found
    assert found["distprof/memory_bytes/rank 400 host"] == 310 << 20 and found["distprof/job_step_seconds/job"] == 0.02
    assert found["distprof/finding_cost_seconds/slow_rank rank 400"] == 68.0


TRAINING = """
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, tracker = dist.get_rank(), sys.argv[1]
if rank == 0 and tracker == "wandb":
    import wandb
    wandb.init(project="p", dir=sys.argv[2])
    log = lambda step: wandb.log({"loss": step}, step=step)
elif rank == 0:
    import mlflow
    mlflow.set_tracking_uri(sys.argv[2])
    mlflow.start_run()
    log = lambda step: mlflow.log_metric("loss", step, step=step)
else:
    log = lambda step: None
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**6):
    over = torch.tensor([float(os.path.exists(sys.argv[3]))])
    dist.all_reduce(over)
    if over:
        break
    time.sleep(0.06 if rank == 1 and step >= 200 else 0.02)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step % 10 == 0:
        log(step)
if rank == 0 and tracker == "wandb":
    wandb.finish()
elif rank == 0:
    mlflow.end_run()
dist.destroy_process_group()
"""
"""Rank 1 becomes slow at step 200; trains until a file is there."""


def logged(tmp_path: Path, tracker: str, place: str) -> str:
    """A job that logs there, until a finding was told; gives what was said."""
    (tmp_path / "train.py").write_text(TRAINING)
    told = tmp_path / "told"
    done = record_run(tmp_path / "run", 2, tmp_path / "train.py", tracker, place, told, flags=(
        "--passes", "off", "--log-to", tracker, "--on-finding", f"sleep 5; touch {told}"),
        WANDB_MODE="offline", WANDB_SILENT="true")
    return done.stderr


@pytest.mark.job
def test_a_job_finds_step_times_and_its_slow_rank_in_its_wandb_run(tmp_path):
    pytest.importorskip("wandb")
    said = logged(tmp_path, "wandb", str(tmp_path))
    rows = wandb_files.rows(tmp_path)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses == [*range(0, 10 * len(losses), 10)] == [row["_step"] for row in rows if "loss" in row]
    assert [row["distprof/step"] for row in rows if "distprof/step_seconds/rank 1" in row], said
    assert "rank 1 slow from step" in wandb_files.summary(tmp_path)["distprof/findings/slow_rank-1"], said
    assert (tmp_path / "run" / "watch" / "log-to-wandb").read_text().startswith("rank 0: ")
    assert "nothing was written" not in said


@pytest.mark.job
def test_a_job_finds_step_times_and_its_slow_rank_in_its_mlflow_run(tmp_path):
    for needed in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(needed)
    said = logged(tmp_path, "mlflow", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        losses = store.execute("select step, value from metrics where key = 'loss' order by step").fetchall()
        ours = store.execute("select step, value from metrics where key = 'distprof/step_seconds/rank 1'").fetchall()
        tags = dict(store.execute("select key, value from tags").fetchall())
    assert losses == [(step, float(step)) for step in range(0, 10 * len(losses), 10)]
    assert ours and all(0.005 < value < 60 for _, value in ours), said
    assert "rank 1 slow from step" in tags["distprof/findings/slow_rank-1"], json.dumps(tags)
    assert "nothing was written" not in said
