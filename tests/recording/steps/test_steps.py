"""Where a step ends: optimizers, several of them, accumulation, inference, explicit calls."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import distprof
from support.recording import Recorded, train


def steps_of(run) -> list[dict]:
    return Recorded(run).table("steps").to_dicts()


def test_gradient_accumulation_is_one_step(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=1,trace=0"):
        for _ in range(3):
            for _ in range(4):
                model(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
    steps = steps_of(tmp_path / "run")
    assert [step["forward_calls"] for step in steps] == [4, 4, 4]
    assert [step["samples"] for step in steps] == [8, 8, 8]
    assert Recorded(tmp_path / "run").modules()[""]["fwd_flops"] == 4 * 2 * 2 * 16


def test_two_optimizers_in_turn_make_one_step(tmp_path):
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, other)]
    with distprof.record(tmp_path / "run", steps="wait=2,count=2,time=0,trace=0"):
        for _ in range(4):
            for one, optimizer in zip((model, other), optimizers, strict=True):
                one(torch.zeros(2, 4)).sum().backward()
                optimizer.step()
    assert Recorded(tmp_path / "run").info["status"] == "complete"
    assert [step["forward_calls"] for step in steps_of(tmp_path / "run")][2:] == [2, 2]


def test_inference_has_a_step_per_forward_call(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=2,trace=1"), torch.inference_mode():
        for _ in range(5):
            model(torch.zeros(3, 4))
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == "complete", seen.info["why"]
    assert seen.info["passes"] == {"wait": 1, "count": 1, "time": 2, "trace": 1, "arrivals": 0}
    assert seen.modules()[""]["fwd_flops"] == 2 * 3 * 16 and seen.modules()[""]["bwd_flops"] == 0
    assert seen.modules()[""]["bwd_time_ns"] is None
    assert [step["samples"] for step in steps_of(tmp_path / "run")] == [3] * 5


def test_explicit_steps_win_over_the_optimizer(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=1,trace=0") as rec:
        for _ in range(3):
            for _ in range(2):
                model(torch.zeros(2, 4)).sum().backward()
                optimizer.step()
            rec.step()
    assert Recorded(tmp_path / "run").info["status"] == "complete"
    assert steps_of(tmp_path / "run")[-1]["forward_calls"] == 2


def test_what_comes_before_the_first_forward_call_is_no_part_of_the_first_step(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=0,count=0,time=2,trace=0"):
        time.sleep(0.3)  # loading the data set, say
        begin = time.perf_counter_ns()
        for _ in range(2):
            model(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
        all_steps_ns = time.perf_counter_ns() - begin
    steps = steps_of(tmp_path / "run")
    assert sum(step["duration_ns"] for step in steps) <= all_steps_ns
    assert sum(step["before_forward_ns"] for step in steps) <= all_steps_ns


def test_explicit_steps_alone(tmp_path):
    model = nn.Linear(4, 4)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=1,trace=1") as rec:
        for _ in range(3):
            model(torch.zeros(2, 4))
            rec.step()
    assert [step["pass"] for step in steps_of(tmp_path / "run")] == ["count", "time", "trace"]


def test_a_script_that_ends_early_leaves_what_it_has(tmp_path):
    seen = train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.zeros(2, 4), steps="wait=1,count=1,time=9,trace=9",
                 num_steps=5)
    assert (seen.info["status"], seen.info["why"]) == ("partial", "the script ended after 5 of 20 steps")
    assert seen.modules()[""]["fwd_flops"] == 2 * 2 * 16
    timed = [step for step in steps_of(tmp_path / "run") if step["pass"] == "time"]
    assert len(timed) == 3 and all(step["fwd_ns"] > 0 for step in timed)
    assert seen.modules()[""]["calls"] == 1


def test_an_exception_in_the_script_is_the_script_s(tmp_path):
    with pytest.raises(ZeroDivisionError), distprof.record(tmp_path / "run"):
        1 / 0  # noqa: B018
    assert not list((tmp_path / "run").glob("rank*.partial"))


def test_a_recorder_inside_a_recorder_is_the_same(tmp_path):
    with distprof.record(tmp_path / "run") as outer, distprof.record(tmp_path / "other") as inner:
        assert outer is inner
    assert not (tmp_path / "other").exists()


def test_recording_can_be_disabled_from_outside(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTPROF_DISABLE", "1")
    with distprof.record(tmp_path / "run") as rec:
        rec.step()
        assert not rec.recording
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("steps", ["wait=x", "nothing=1"])
def test_a_wrong_plan_is_an_error_at_once(tmp_path, steps):
    from distprof.errors import UsageError

    with pytest.raises(UsageError), distprof.record(tmp_path / "run", steps=steps):
        pass
