"""The whole job: points that lose no spike, and what the watch found beside what the recorded steps show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.contract.watch import UNKNOWN, Note, StepRows
from distprof.contract.watch_state import WATCH
from distprof.files import json_text
from distprof.launch.commands.comms import comms_text
from distprof.launch.commands.findings import findings_text
from distprof.launch.commands.stats import stats_text
from distprof.merge.report.document import document
from distprof.merge.text.answer import answer
from distprof.merge.watch.points import points, reduced
from support.made_up_states import job_state, slow_rank
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, programs
from support.watched_jobs.files import write_watch
from support.watched_jobs.job import Job, Trouble

MS = 1_000_000
ONSET = 1500
SLOW = Trouble(ranks=(1,), onset=ONSET, extra_ns=6 * MS)


def recorded(path: Path, ranks: int = 4) -> Path:
    """Nine steps in which nobody is late."""
    return Recorder().write(Simulation(programs(SHAPES["ddp"], ranks, 9, 1, jitter=0.01), lanes=1), path / "run")


def with_state(run: Path, **fields: Any) -> Path:
    """As the watcher of a job that has ended left it."""
    (run / WATCH).mkdir()
    (run / WATCH / "state.json").write_bytes(json_text(job_state(running=False, **fields)))
    return run


@pytest.fixture(scope="module")
def slow_later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rank is slow later."""
    run = recorded(tmp_path_factory.mktemp("job"))
    write_watch(run, Job(num_steps=4000, troubles=(SLOW,), pause_every=1200, pause_ns=2e9, evaluation=True),
                first_step=9, notes=(Note(time_ns=0, step=2000, kind="window_began", text="1"),
                                     Note(time_ns=0, step=2010, kind="window_ended", text="1")))
    return run


@pytest.fixture(scope="module")
def found(slow_later: Path) -> dict[str, Any]:
    """Its document."""
    return document(slow_later)


@pytest.mark.long
def test_the_picture_has_the_onset_pauses_and_windows(found: dict[str, Any]) -> None:
    job = found["whole_job"]
    slow = next(one for one in job["findings"] if one["kind"] == "slow_rank")
    assert slow["ranks"] == [1] == job["late_ranks"] and abs(slow["step"] - ONSET - 9) <= 10
    assert slow["phase"] == "forward" and slow["text"].startswith("rank 1 slow from step 1,5")
    assert job["windows"] == [{"number": 1, "step": 2000, "until_step": 2010}]
    assert [one["kind"] for one in job["pauses"]] == ["evaluation"] * 3
    first = np.array(job["points"]["first_step"])
    forward = {rank: np.array(job["of_rank"][rank]["forward"]) * job["unit_ns"] for rank in ("0", "1")}
    late = forward["1"] - forward["0"]
    assert late[first > slow["step"] + 20].mean() == pytest.approx(6 * MS, rel=0.1)
    assert abs(late[first < slow["step"] - 20].mean()) < MS
    assert sum(value * job["unit_ns"] > 1.5e9 for value in job["points"]["longest"]) == 3, "as many pauses"


@pytest.mark.long
def test_the_recorded_steps_clear_nobody_who_was_slow_later(found: dict[str, Any], slow_later: Path) -> None:
    texts = [one["text"] for one in found["findings"]]
    assert found["findings"][0]["text"].startswith("Rank 1 slow from step 1,5")
    assert (found["findings"][0]["severity"], found["findings"][0]["rank"]) == ("bad", 1)
    straggler = next(one for one in found["findings"] if "No straggler" in one["text"])
    assert straggler["text"].startswith("No straggler in the recorded steps: ") and straggler["severity"] == "note"
    assert not any("looks wrong" in text for text in texts)
    said = [stats_text(slow_later), comms_text(slow_later),
            "\n".join(answer(json.loads(stats_text(slow_later, as_json=True))))]
    for text in said:
        lines = text.splitlines()
        place = next(number for number, line in enumerate(lines) if line.startswith("No straggler"))
        assert lines[place].startswith("No straggler in the recorded steps: ")
        job = next(number for number, line in enumerate(lines) if line.startswith("3,997 steps watched in "))
        assert job - place in (1, 2) and lines[job + 1].startswith("  rank 1 slow from step 1,5"), "beside it"
        assert text.count("rank 1 slow from step 1,5") == 1
    assert "rank 1 slow" in findings_text(slow_later).lower()
    data = json.loads(findings_text(slow_later, as_json=True))
    first = data["findings"][0]
    assert first["watch"]["kind"] == "slow_rank" and first["step"] == first["watch"]["onset_step"]
    assert first["watch"]["cost_ns"] > 1e9 and data["steps"]["change"] is None and "watched" not in data["steps"]


@pytest.mark.long
def test_what_the_watcher_wrote_is_taken_with_module_and_line(tmp_path: Path) -> None:
    run = with_state(recorded(tmp_path), findings=[slow_rank(2, module="encoder.1", line="train.py:33", window=1)])
    first = document(run)["findings"][0]
    assert first["text"] == ("Rank 2 slow from step 6,204 on: +18.0 ms per step, 68 s lost; `encoder.1` forward, "
                             "train.py:33.")
    assert (first["step"], first["module"], first["id"]) == (6204, "encoder.1", "slow_rank-2")


@pytest.mark.long
def test_a_job_in_which_nobody_was_slow_is_cleared(tmp_path: Path) -> None:
    run = with_state(recorded(tmp_path), findings=[])
    text = stats_text(run)
    assert "No straggler: " in text
    assert "no rank was found to slow the job down, nor any lasting growth of step times" in text
    assert document(run)["absent"]["whole_job"].startswith("no step was logged after the recorded ones: run without ")


def test_no_spike_is_lost_and_gaps_stay() -> None:
    columns = {name: np.full(9000, UNKNOWN, np.int64) for name in StepRows.__struct_fields__}
    first = np.arange(9000) * 10 + np.where(np.arange(9000) >= 5000, 777, 0)
    columns |= {"first_step": first, "num_steps": np.full(9000, 10), "span_ns": np.full(9000, 200 * MS),
                "end_ns": 10**18 + (1 + np.arange(9000)) * 200 * MS, "longest_ns": np.full(9000, 21 * MS),
                "longest_step": first + 3, "forward_ns": np.full(9000, 50 * MS)}
    columns["longest_ns"][4321] = 900 * MS
    columns["span_ns"][1234] = 100 * MS
    at = points(columns, 100)
    line = reduced(7, columns, at)
    assert len(at.first_step) == 101 and 5000 * 10 + 777 in at.first_step
    assert line.of["longest_ns"].max() == 900 * MS
    assert at.first_step[line.of["longest_ns"].argmax()] <= 43213 <= at.last_step[line.of["longest_ns"].argmax()]
    assert line.low_ns.min() == 10 * MS and (line.of["step_ns"] == 20 * MS).all()
    assert (line.of["forward_ns"] == 5 * MS).all() and np.isnan(line.of["data_ns"]).all()


def test_a_rank_with_coarser_or_missing_rows_is_unknown_only_where_it_noted_nothing() -> None:
    fine = {name: np.full(400, UNKNOWN, np.int64) for name in StepRows.__struct_fields__}
    fine |= {"first_step": np.arange(400), "num_steps": np.ones(400, np.int64), "span_ns": np.full(400, 20 * MS),
             "end_ns": 10**18 + (1 + np.arange(400)) * 20 * MS}
    coarse = {name: values[:2] for name, values in fine.items()} | {
        "first_step": np.array([0, 100]), "num_steps": np.array([100, 100]),
        "span_ns": np.array([2000 * MS, 4000 * MS])}
    line = reduced(1, coarse, points(fine))
    assert (line.of["step_ns"][:100] == 20 * MS).all() and (line.of["step_ns"][100:200] == 40 * MS).all()
    assert np.isnan(line.of["step_ns"][200:]).all() and np.isnan(line.of["longest_ns"][200:]).all()
    nothing = reduced(1, {name: values[:0] for name, values in fine.items()}, points(fine))
    assert np.isnan(nothing.of["step_ns"]).all()


@pytest.mark.long
def test_of_many_ranks_those_with_findings_are_shown(tmp_path: Path) -> None:
    run = recorded(tmp_path, ranks=70)
    write_watch(run, Job(world=70, num_steps=60))
    found = document(with_state(run, findings=[slow_rank(33), slow_rank(68)]))
    assert len(found["whole_job"]["ranks"]) == 64 and {33, 68} <= set(found["whole_job"]["ranks"])
    assert any(one.startswith("the whole job is shown for 64 of 70 ranks") for one in found["left_out"])
