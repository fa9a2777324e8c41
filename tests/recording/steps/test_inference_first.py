"""Models that are called before there is an optimizer: what was taken for inference was not the training loop."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from torch import nn

import distprof
from support.recording import Recorded
from support.watched import noted, steps_of

pytestmark = pytest.mark.long

SHORT = "wait=2,count=1,time=1,trace=1"
X = torch.ones(2, 4)
PRODUCT = 2 * 2 * 4 * 4
"""FLOPs of a linear layer of width 4 for `X`."""


def called(model: nn.Module, times: int) -> torch.Tensor:
    """The result of a model after so many calls without gradients."""
    with torch.no_grad():
        return [model(X) for _ in range(times)][-1]


def descend(optimizer: torch.optim.Optimizer, result: torch.Tensor) -> None:
    optimizer.zero_grad()
    result.square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("plan", [SHORT, "wait=0,count=1,time=1,trace=1,arrivals=2"])
@pytest.mark.parametrize("calls", [3, 4, 5])
def test_inference_before_the_first_optimizer_is_not_the_loop(tmp_path, plan, calls):
    frozen, model = nn.Linear(4, 8), nn.Linear(8, 2)
    with distprof.record(tmp_path / "run", steps=plan):
        data = called(frozen, calls)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(9):
            descend(optimizer, model(data))
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == "complete"
    assert (seen.info["steps_found"]["rule"], seen.info["steps_found"]["left_in"]) == ("optimizer", None)
    steps = seen.table("steps").filter(pl.col("pass") != "wait")
    assert steps["forward_calls"].to_list() == [1] * len(steps) and not steps["evaluation_calls"].sum()
    counted = seen.table("modules").filter(pl.col("calls") > 0)
    assert counted["fwd_flops"].to_list() == [2 * 2 * 8 * 2], "nothing of the calls before is left"


def test_steps_that_were_taken_for_inference_stay_if_the_script_ends_then(tmp_path):
    model = nn.Linear(4, 4)
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=1,trace=9"):
        called(model, 5)
        torch.optim.SGD(model.parameters(), lr=1e-3)
    assert Recorded(tmp_path / "run").info["steps_found"]["rule"] == "forward"


def test_a_teacher_that_was_called_before_is_work_of_each_step(tmp_path):
    teacher, student = nn.Linear(4, 4), nn.Linear(4, 4)
    with distprof.record(tmp_path / "run", steps=SHORT):
        called(teacher, 5)
        optimizer = torch.optim.SGD(student.parameters(), lr=1e-3)
        for _ in range(14):
            with torch.no_grad():
                wanted = teacher(X)
            descend(optimizer, student(X) - wanted)
    seen = Recorded(tmp_path / "run")
    assert seen.table("modules")["fwd_flops"].sum() == 2 * PRODUCT
    assert seen.info["params"]["params"] == 20, "that of the trained model"


def test_micro_batches_before_the_first_optimizer_step_are_no_inference(tmp_path):
    model = nn.Linear(4, 4)
    with distprof.record(tmp_path / "run", steps=SHORT):
        called(model, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(14):
            for _ in range(16):
                model(X).sum().backward()
            optimizer.step()
    seen = Recorded(tmp_path / "run")
    assert (seen.info["status"], seen.info["steps_found"]["rule"]) == ("complete", "optimizer")
    steps = seen.table("steps").filter(pl.col("pass") != "wait")
    assert steps["forward_calls"].to_list() == [16] * len(steps)


@pytest.mark.parametrize("num_optimizers", [1, 2])
def test_the_watch_sees_training_after_a_recording_of_inference(tmp_path, num_optimizers):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with distprof.record(tmp_path / "run", steps=SHORT):
        called(model, 20)
        optimizers = [torch.optim.SGD(model[place].parameters(), lr=1e-3) for place in range(num_optimizers)]
        for _ in range(30):
            loss = model(X).sum()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    assert any("an optimizer steps from step" in note for note in Recorded(tmp_path / "run").info["notes"])
    watched = steps_of(noted(tmp_path / "run").columns)
    assert watched[0] == 13 and 20 + 30 - 3 * num_optimizers <= watched[-1] <= 20 + 30


def test_the_watch_sees_optimizers_that_step_during_backward(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with distprof.record(tmp_path / "run", steps=SHORT):
        called(model, 20)
        each = {parameter: torch.optim.SGD([parameter], lr=1e-3) for parameter in model.parameters()}
        hooks = [one.register_post_accumulate_grad_hook(lambda one: each[one].step()) for one in each]
        for _ in range(30):
            model(X).sum().backward()
        for hook in hooks:
            hook.remove()  # what hooks refer to lives for ever
    watched = steps_of(noted(tmp_path / "run").columns)
    assert watched[0] == 13 and 20 + 30 - 4 <= watched[-1] <= 20 + 30
