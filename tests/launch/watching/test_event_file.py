"""`--log-to tensorboard`: what TensorBoard's own reader finds in the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from distprof.contract.watch_series import MOST_RANKS
from distprof.launch.watching import event_file
from distprof.launch.watching.event_file import EventFile, scalars
from distprof.launch.watching.watch_process import WatchProcess
from support.made_up_states import job_state, rank_state, slow_rank
from support.watched_ranks import PROGRAM, MadeUpRank, make_run, order

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard's reader


def read(run: Path) -> EventAccumulator:
    found = EventAccumulator(str(run / "watch" / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return found


def points(of: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(one.step, pytest.approx(one.value)) for one in of.Scalars(tag)]


def text(of: EventAccumulator, tag: str) -> list[tuple[int, str]]:
    return [(one.step, one.tensor_proto.string_val[0].decode()) for one in of.Tensors(tag)]


def test_tensorboard_reads_series_by_step_and_findings_as_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(event_file, "EVERY_S", 0.0)
    said = list[str]()
    run = make_run(tmp_path / "run")
    file = EventFile(run, said.append)
    file.show(job_state(num_steps=100))
    file.tell("new", slow_rank())
    file.show(job_state(num_steps=200))
    file.show(job_state(num_steps=200))  # no step has ended since
    file.tell("ended", slow_rank(until_step=6500))
    found = read(run)
    assert said == [] and points(found, "distprof step (s)/rank 1") == [(99, 0.02), (199, 0.02)]
    assert points(found, "distprof waiting/rank 1")[0] == (99, 0.02)
    assert points(found, "distprof phase (s)/rank 1 forward")[0] == (99, 0.023)
    assert points(found, "distprof job step (s)/job")[0] == (99, 0.02)
    (onset, new), (end, over) = text(found, "distprof findings/slow_rank")
    assert (onset, end) == (6204, 6500) and new.startswith("new: rank 1 slow") and over.startswith("ended: ")
    assert found.SummaryMetadata("distprof findings/slow_rank").plugin_data.plugin_name == "text"


def test_points_are_some_seconds_apart_and_the_last_is_there(tmp_path):
    run = make_run(tmp_path / "run")
    file = EventFile(run, print)
    for steps in range(100, 110):
        file.show(job_state(num_steps=steps))
    file.show(job_state(num_steps=200, running=False), at_end=True)
    assert [step for step, _ in points(read(run), "distprof step (s)/rank 0")] == [99, 199]


def test_of_many_ranks_those_with_findings_are_written():
    tags = {one.tag for one in scalars(job_state(ranks=[rank_state(rank) for rank in range(512)],
                                                 findings=[slow_rank(400)]))}
    ranks = {tag for tag in tags if tag.startswith("distprof step (s)/")}
    assert "distprof step (s)/rank 400" in ranks and len(ranks) == MOST_RANKS


def test_a_run_that_is_gone_is_one_line_and_is_not_made_again(tmp_path):
    said = list[str]()
    run = make_run(tmp_path / "run")
    file = EventFile(run, said.append)
    shutil.rmtree(run)
    file.tell("new", slow_rank())
    file.show(job_state(), at_end=True)
    assert said == ["--log-to tensorboard: logging has stopped: No such file or directory"] and not run.exists()


@pytest.mark.job
@pytest.mark.parametrize("opened", [False, True])
def test_that_no_rank_had_a_run_open_is_said_at_the_end(tmp_path, capfd, opened):
    run = make_run(tmp_path / "run")
    watching = WatchProcess(order(run, log_to="wandb"), PROGRAM)
    MadeUpRank(run, 0).steps(200)
    (run / "watch").mkdir(exist_ok=True)
    if opened:
        (run / "watch" / "log-to-wandb").write_text("rank 0: 1a2b3c\n")
    watching.finish()
    said = "--log-to wandb: nothing was logged, because no rank had an open run"
    assert (said in capfd.readouterr().err) != opened


@pytest.mark.job
def test_a_watched_job_is_written(tmp_path):
    run = make_run(tmp_path / "run")
    watching = WatchProcess(order(run, log_to="tensorboard"), PROGRAM)
    ranks = [MadeUpRank(run, rank) for rank in range(4)]
    for rank in ranks:
        rank.steps(200)
        rank.steps(100, forward_ms=23 if rank is ranks[1] else 5)
    watching.finish()
    found = read(run)
    assert points(found, "distprof step (s)/rank 1")[-1] == (299, 0.02)
    assert "rank 1 slow from step" in text(found, "distprof findings/slow_rank")[0][1]
