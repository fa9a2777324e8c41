"""Counting and timing of modules, on models with known answers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import distprof
from support.models import Checkpointed, Inplace, Residual, Shared, Sleepy
from support.recording import Recorded, train


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def inputs(*shape: int):
    return lambda: torch.randn(*shape)


def test_work_belongs_to_the_module_that_does_it_forward_and_backward(tmp_path):
    seen = train(tmp_path / "run", nn.Sequential(Residual(8), Residual(8)), inputs(3, 8))
    product = 2 * 3 * 8 * 8
    assert seen.flops("forward") == {"0": product, "0.inner": product, "1": product, "1.inner": product}
    # the input of the model needs no gradient: one product less in the first module
    assert seen.flops("backward") == {"0": product, "0.inner": 2 * product, "1": 2 * product, "1.inner": 2 * product}
    modules = seen.modules()
    assert modules[""]["fwd_flops"] == 4 * product and modules[""]["bwd_flops"] == 7 * product
    assert modules["1"]["fwd_flops"] == 2 * product and modules["1"]["bwd_flops"] == 4 * product
    assert modules["0"]["params"] == 128 and modules["0"]["own_params"] == 64


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_counted_apart(tmp_path, reentrant):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), Checkpointed(Residual(8), reentrant=reentrant))
    seen = train(tmp_path / "run", model, inputs(3, 8))
    product = 2 * 3 * 8 * 8
    modules = seen.modules()
    assert modules["1.block"]["fwd_flops"] == 2 * product
    assert modules["1.block"]["bwd_flops"] == 4 * product
    # the newer way stops as soon as backward has what it needs: before the last product
    again = 2 * product if reentrant else product
    assert modules["1.block"]["recompute_flops"] == modules[""]["recompute_flops"] == again
    assert modules["1.block.inner"]["recompute_flops"] == again - product
    assert modules["1.block.inner"]["calls"] == 1, "a repeated call is not a call of the step"
    assert modules["1.block"]["fwd_time_ns"] < modules[""]["fwd_time_ns"]


def test_in_place_changes_and_dict_outputs_survive(tmp_path):
    seen = train(tmp_path / "run", Inplace(), inputs(3, 4))
    assert seen.info["status"] == "complete"
    assert seen.flops("forward") == {"linear": 2 * 3 * 4 * 4}
    assert seen.modules()["linear"]["bwd_time_ns"] > 0


def test_a_shared_layer_is_counted_at_every_call_and_held_once(tmp_path):
    modules = train(tmp_path / "run", Shared(), inputs(2, 4)).modules()
    assert set(modules) == {"", "first"}
    assert modules["first"]["calls"] == 3
    assert modules[""]["fwd_flops"] == modules["first"]["fwd_flops"] == 3 * 2 * 2 * 16
    assert modules[""]["params"] == 16


def test_grouped_convolution_backward_is_right_where_torch_is_not(tmp_path):
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.Conv2d(8, 4, 1, bias=False))
    seen = train(tmp_path / "run", model, inputs(2, 8, 6, 6))
    depthwise, pointwise = 2 * 2 * 8 * 36 * 9, 2 * 2 * 8 * 4 * 36
    assert seen.flops("forward") == {"0": depthwise, "1": pointwise}
    assert seen.flops("backward") == {"0": depthwise, "1": 2 * pointwise}


def test_sleeping_modules_take_what_they_sleep_and_no_part_of_another(tmp_path):
    first, second = Sleepy(0.01, 0.02), Sleepy(0.03, 0.0)
    model = nn.Sequential(nn.Linear(4, 4), first, nn.Linear(4, 4), second)
    modules = train(tmp_path / "run", model, inputs(2, 4), steps="wait=1,count=0,time=4,trace=0",
                    num_steps=5).modules()

    def mean_ns(slept: list[float]) -> float:
        return sum(slept[1:]) / 4 * 1e9

    for path, module in (("1", first), ("3", second)):
        assert modules[path]["fwd_time_ns"] >= mean_ns(module.slept_forward)
        assert modules[path]["bwd_time_ns"] >= mean_ns(module.slept_backward)
    # nothing is counted twice, however often the machine stops us between two marks
    for column in ("fwd_time_ns", "bwd_time_ns"):
        assert sum(modules[path][column] for path in "0123") <= modules[""][column]


def test_wrappers_share_the_path_of_what_they_wrap(tmp_path):
    seen = train(tmp_path / "run", nn.DataParallel(nn.Sequential(nn.Linear(4, 4))), inputs(2, 4))
    assert {path: row["class_name"] for path, row in seen.modules().items()} == {"": "Sequential", "0": "Linear"}


def test_a_second_model_and_a_loss_module_have_names_of_their_own(tmp_path):
    loss, first, second = nn.MSELoss(), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=1,trace=0"):
        for _ in range(2):
            loss(torch.zeros(2), torch.zeros(2))
            loss(second(first(torch.randn(3, 4))), torch.zeros(3, 2)).backward()
            optimizer.step()
    modules = Recorded(tmp_path / "run").modules()
    assert {path: row["class_name"] for path, row in modules.items()} == {
        "": "Linear", "model1:": "Sequential", "model1:0": "Linear", "model2:": "MSELoss"}
    assert Recorded(tmp_path / "run").info["params"]["params"] == 20 + 10


def test_a_submodule_called_first_is_found_in_its_model_later(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=0,trace=0"):
        model[1](torch.zeros(1, 4))
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()
    modules = Recorded(tmp_path / "run").modules()
    assert set(modules) == {"", "0", "1"}
    assert modules["1"]["calls"] == 2 and modules["1"]["fwd_flops"] == 2 * 16 * 3


def test_a_module_that_raises_leaves_the_stack_balanced(tmp_path):
    class Raises(nn.Module):
        def forward(self, x):
            raise KeyError("inside")

    bad, good = nn.Sequential(nn.Linear(4, 4), Raises()), nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(good.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=1,trace=1"):
        for _ in range(3):
            with pytest.raises(KeyError, match="inside"):
                bad(torch.zeros(1, 4))
            good(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == "complete"
    assert seen.flops("forward") == {"0": 2 * 16, "model1:": 2 * 2 * 16}


def test_work_that_is_no_contraction_is_listed_by_kind_with_elements_and_bytes(tmp_path):
    rows = train(tmp_path / "run", nn.Sequential(nn.Linear(4, 4), nn.Tanh()), inputs(2, 4)).table("ops").to_dicts()
    (tanh,) = [row for row in rows if row["op"] == "aten::tanh"]
    assert (tanh["kind"], tanh["calls"], tanh["elements"], tanh["flops"]) == ("activation", 1, 8, 0)
    assert (tanh["read_bytes"], tanh["write_bytes"], tanh["io_bytes"], tanh["module_path"]) == (32, 32, 64, "1")
    assert (tanh["counted"], tanh["dtype"]) == (True, "float32")
    views = [row for row in rows if row["op"] == "aten::t"]
    assert views and all(row["view"] and row["io_bytes"] == 0 for row in views)
    assert {row["phase"] for row in rows} >= {"forward", "backward", "optimizer"}
