"""`distprof whatif` on the command line: what it prints, as text and as JSON, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from distprof.merge.text.whatif import _verdict
from distprof.merge.whatif.prediction import SCHEMA, Prediction
from support.jobs import called, distprof
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

MS = 1e6


@pytest.fixture(scope="module")
def late(tmp_path_factory) -> Path:
    """Rank 2 of four sleeps 6 ms in the forward of layers.3, in every second step."""
    plant = Plant(2, "forward", "layers.3", 6_000_000, every=2)
    job = Simulation(programs(SHAPES["ddp"], 4, 9, 1, plants=(plant,)))
    return Recorder().write(job, tmp_path_factory.mktemp("late") / "run")


def answer(*arguments: object) -> dict:
    done = distprof("whatif", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_answer_as_text(late):
    done = distprof("whatif", "--no-stragglers", late)
    assert done.returncode == 0, done.stderr
    assert "  rank 2: `layers.3` forward: " in done.stdout and "less in each of 4 steps" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["step", "time", "replayed", "predicted", "change"] in lines
    assert {"job", "rank", "step"} <= {line[0] for line in lines if line}
    assert "replay without changes: " in done.stdout and "a step would take" in done.stdout


def test_the_answer_as_json_adds_up(late):
    found = answer("--no-stragglers", "--scale", "module=layers.1: 0.5", "--bandwidth", "2x", late)
    assert found["kind"] == "whatif" and found["changes"]["bandwidth"] == 2.0
    assert [one["scale"] for one in found["scaled"]] == ["module=layers.1: 0.5"]
    assert {one["rank"] for one in found["by_rank"]} == {0, 1, 2, 3}
    for step in found["steps"]:
        assert step["predicted_ns"] == pytest.approx(sum(one["predicted_ns"] for one in step["by_rank"]) / 4)
        assert step["replayed_ns"] == pytest.approx(step["measured_ns"])
    assert found["job"]["predicted_ns"] == pytest.approx(
        sum(step["predicted_ns"] for step in found["steps"]) / len(found["steps"]))
    assert found["gain_ns"] == pytest.approx(found["job"]["replayed_ns"] - found["job"]["predicted_ns"])
    assert found["gain_error_ns"] >= 0.06 * found["gain_ns"]


def test_only_the_steps_that_are_asked_for_are_changed(late):
    found = answer("--scale", "rank=2:0", "--step", "5", late)
    assert [step["step"] for step in found["steps"]] == [5]


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "nothing to change"),
    (("--scale", "rank=7:1"), "unknown rank 7 in --scale  hint: choose from 0-3"),
    (("--scale", "step=70:1"), "unknown step 70 in --scale"),
    (("--scale", "module=layer.3:1"), "did you mean module=layers.3?"),
    (("--scale", "phase=forwards:1"), "unknown phase 'forwards' in --scale"),
    (("--scale", "op=aten::nothing*:1"), "unknown op 'aten::nothing*' in --scale"),
    (("--scale", "module=layers.3,phase=optimizer:1"), "matches no work in steps"),
    (("--scale", "module=layers.3"), "takes conditions, a colon and a factor"),
    (("--bandwidth", "0"), "--bandwidth takes a factor of 0.001 or more"),
    (("--bandwidth", "2x", "--free-communication"), "--free-communication and --bandwidth cannot be combined"),
    (("--no-stragglers", "--step", "99"), "no step 99")])
def test_what_cannot_be_changed_is_one_line(late, arguments, words):
    failed = called("whatif", *arguments, late)
    assert failed.returncode == 2 and words in failed.stderr and len(failed.stderr.splitlines()) == 1


def test_few_steps_do_not_tell_what_is_usual(tmp_path):
    run = Recorder().write(Simulation(programs(SHAPES["ddp"], 2, 2, 1)), tmp_path / "run")
    failed = called("whatif", "--no-stragglers", run)
    assert failed.returncode == 1 and "--no-stragglers needs at least 3 steps" in failed.stderr


def made_up(measured: list[float], replayed: list[float], predicted: list[float]) -> Prediction:
    number = range(len(measured))
    frame = pl.DataFrame({"step": number, "rank": [0] * len(measured), "measured_ns": measured,
                          "replayed_ns": replayed, "predicted_ns": predicted}, SCHEMA)
    return Prediction(steps=list(number), of_ranks=frame, work=pl.DataFrame(), scaled_ns=[], bandwidths=[],
                      at_best_ns=None, deferral=None, clock_ns=0)


def test_a_change_below_the_error_of_the_replay_says_nothing():
    lines = list(_verdict(made_up([50 * MS] * 3, [51 * MS] * 3, [50.5 * MS] * 3)))
    assert lines[-1] == "the change (500 us) is no larger than that, so whether steps would be shorter is unknown"
    assert not any("would take" in line for line in lines)


def test_a_change_below_what_steps_scatter_by_is_doubted():
    scattered = [40 * MS, 50 * MS, 60 * MS]
    lines = list(_verdict(made_up(scattered, scattered, [one - MS for one in scattered])))
    assert any("which scatter by 10.0 ms: a real run with the change may not show it" in line for line in lines)
    sure = list(_verdict(made_up(scattered, scattered, [one - 20 * MS for one in scattered])))
    assert not any("scatter" in line for line in sure) and any("30.0 ms instead of 50.0 ms" in line for line in sure)


def test_more_work_makes_steps_longer_and_no_change_is_called_none():
    same = [50 * MS] * 3
    assert any("more: 60.0 ms instead of 50.0 ms" in line for line in _verdict(made_up(same, same, [60 * MS] * 3)))
    assert list(_verdict(made_up(same, same, same)))[-1] == "nothing changes: no step depends on that work"


def test_what_clocks_may_be_off_by_is_part_of_the_error():
    sure = made_up([50 * MS] * 3, [50 * MS] * 3, [40 * MS] * 3)
    assert replace(sure, clock_ns=3_000_000).gain_error_ns > sure.gain_error_ns == pytest.approx(0.6 * MS)
