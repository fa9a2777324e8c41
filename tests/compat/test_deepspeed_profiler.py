"""The profiler of DeepSpeed's drop-in: its methods, what it leaves behind, and `get_model_profile`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from distprof.compat import deepspeed as ours
from distprof.errors import UsageError
from support.side_by_side import CASES, Calls, Sensors, Shared, printed, profile, rand


def test_numbers_by_hand() -> None:
    flops, macs, params = ours.get_model_profile(Sensors(), (5, 3, 22), print_profile=False, as_string=False)
    assert (flops, macs, params) == (14_780, 6_600, 345)


@pytest.mark.parametrize("given", [nn.Linear, [nn.Linear], (nn.Linear, nn.ReLU), {nn.Linear}])
def test_one_type_to_ignore_needs_no_brackets(given) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile(given)
    model(rand(1, 4))
    profiler.stop_profile()
    assert ours.get_module_macs(model[0][0]) == 0 and ours.get_module_macs(model[0]) == 16
    assert ours.get_model_profile(model, (1, 4), print_profile=False, as_string=False, ignore_modules=given)[1] == 16


@pytest.mark.parametrize("given", ["Linear", ["Linear"], nn.Linear(4, 4), 3])
def test_what_is_no_type_is_refused(given) -> None:
    with pytest.raises(UsageError, match="ignore_modules must contain module types") as caught:
        ours.get_model_profile(nn.Linear(4, 4), (1, 4), ignore_modules=given)
    assert caught.value.hint
    with pytest.raises(UsageError, match="ignore_list"):
        ours.FlopsProfiler(nn.Linear(4, 4)).start_profile(given)


def test_partitioned_parameters_count_in_full(deepspeed_package) -> None:
    """ZeRO-3 leaves one element in place of a parameter and notes the full size."""
    def partitioned() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4))
        model[0].weight.data = torch.empty(1)
        model[0].weight.ds_numel, model[0].bias.ds_numel = 16, 4
        return model

    profilers = [library.FlopsProfiler(partitioned()) for library in (deepspeed_package, ours)]
    for profiler in profilers:
        profiler.start_profile()
    assert [profiler.get_total_params() for profiler in profilers] == [5, 20]
    for profiler in profilers:
        profiler.end_profile()


def test_before_and_after(capsys) -> None:
    model = Sensors()
    profiler = ours.FlopsProfiler(model)
    profiler.print_model_profile()
    profiler.print_model_aggregated_profile()
    assert capsys.readouterr().out.count("no profile") == 2
    profiler.end_profile()
    for question in (profiler.get_total_flops, profiler.get_total_params, lambda: ours.get_module_flops(model)):
        with pytest.raises(UsageError, match="start_profile"):
            question()


def test_attributes_and_strings() -> None:
    model = Sensors()
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile()
    assert (profiler.started, profiler.func_patched) == (True, True)
    model(rand(5, 3, 22))
    profiler.stop_profile()
    assert (profiler.started, profiler.func_patched) == (True, False)
    assert profiler.get_total_flops(as_string=True) == "14.78 K"
    assert profiler.get_total_macs(as_string=True) == "6.6 KMACs"
    assert profiler.get_total_params(as_string=True) == "345"
    assert profiler.get_total_duration(as_string=True).endswith("s")
    assert 0 < profiler.get_total_duration() == ours.get_module_duration(model)
    assert ours.get_module_duration(model.head) < profiler.get_total_duration()
    printed(profiler.print_model_profile)
    assert (profiler.flops, profiler.macs, profiler.params) == (14_780, 6_600, 345)
    profiler.reset_profile()
    assert (profiler.get_total_flops(), profiler.get_total_duration()) == (0, 0)
    profiler.end_profile()
    assert not profiler.started


def state(model: nn.Module):
    functions = {name: getattr(F, name) for name in dir(F)} | {name: getattr(torch.Tensor, name)
                                                               for name in ("matmul", "__matmul__", "add", "mul")}
    return ({name: dict(vars(module)) for name, module in model.named_modules()},
            functions, torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
            len(nn.modules.module._global_forward_hooks), len(nn.modules.module._global_forward_pre_hooks))


def test_nothing_is_left() -> None:
    model = Shared()
    before = state(model)
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile()
    model(rand(4, 8))
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before[0]
    printed(profiler.print_model_profile)
    profiler.end_profile()
    assert state(model) == before


def test_repeats_are_equal_and_follow_the_calls() -> None:
    model = CASES["transformer_encoder"].model()
    seen = [profile(ours, CASES["transformer_encoder"])[0] for _ in range(3)]
    assert len(set(seen)) == 1
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile()
    CASES["transformer_encoder"].call(model)
    CASES["transformer_encoder"].call(model)
    assert profiler.get_total_flops() == 2 * seen[0][0]
    profiler.start_profile()  # begins again
    CASES["transformer_encoder"].call(model)
    assert profiler.get_total_flops() == seen[0][0]
    profiler.end_profile()


def test_a_model_that_raises() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            self.layer(x)
            raise ValueError("mine")

    model = Broken()
    before = state(model)
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile()
    with pytest.raises(ValueError, match="mine"):
        model(rand(2, 4))
    profiler.stop_profile()
    assert profiler.get_total_macs() == 32
    profiler.end_profile()
    with pytest.raises(ValueError, match="mine"):
        ours.get_model_profile(model, (2, 4))
    assert state(model) == before


def test_a_mode_of_the_program_stays_on() -> None:
    model = nn.Linear(4, 4)
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile()
    with torch.device("meta"):
        profiler.end_profile()
        assert torch.empty(1).is_meta
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("warm_up", [0, 1, 3])
def test_as_many_calls_as_the_package_makes(deepspeed_package, warm_up: int) -> None:
    calls = []
    for library in (deepspeed_package, ours):
        made: list[int] = []
        model = Calls(lambda x, made=made: made.append(1) or F.relu(x))
        result = library.get_model_profile(model, (2, 4), warm_up=warm_up, print_profile=False, as_string=False)
        assert result == (8, 0, 0)
        calls.append(len(made))
    assert calls == [warm_up + 1] * 2


def test_generate_mode(deepspeed_package) -> None:
    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x)

        def generate(self, x, times: int = 1):
            for _ in range(times):
                x = self(x)
            return x

    arguments = {"args": [rand(2, 4)], "kwargs": {"times": 3}, "mode": "generate", "print_profile": False,
                 "as_string": False}
    found = ours.get_model_profile(Generator(), **arguments)
    assert found == deepspeed_package.get_model_profile(Generator(), **arguments)
    assert found[1] == 3 * 32


@pytest.mark.parametrize(("arguments", "why"), [
    ({"mode": "train", "input_shape": (2, 4)}, "mode must be forward or generate"),
    ({"mode": "generate", "input_shape": (2, 4)}, "has no method generate"), ({}, "no inputs for the model"),
    ({"input_shape": 3}, "input_shape must be a shape"), ({"input_shape": ()}, "input_shape must be a shape"),
    ({"args": None}, "no inputs for the model"), ({"args": torch.ones(2, 4)}, "args must be a list"),
    ({"kwargs": [torch.ones(2, 4)]}, "kwargs must be a dict")])
def test_wrong_arguments(arguments: dict, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ours.get_model_profile(nn.Linear(4, 4), **arguments)


def test_not_a_model() -> None:
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        ours.get_model_profile(torch.relu, (2, 4))
