"""Our drop-in for DeepSpeed's flops profiler beside the real package."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import distprof
from distprof.compat import deepspeed as ours
from distprof.errors import DistprofError, UsageError
from distprof.peers.deepspeed import peer_lines
from distprof.peers.deepspeed_bugs import BUGS, NOT_REPRODUCED
from support.side_by_side import CASES, Case, LeNet5, Shared

LATENCY = re.compile(r"\S+ [KMGTmu]?s = \S+% latency, \S+ [KMGTmu]?FLOPS")
RATE = re.compile(r"((?:latency|FLOPS per GPU = .*): +).*")
TOP = re.compile(r"(fwd latency - ).*")


@pytest.fixture(scope="module")
def real():
    package = pytest.importorskip("deepspeed.profiling.flops_profiler.profiler",
                                  reason="needs deepspeed (distprof[test])")
    package.logger.setLevel("WARNING")
    return package


def profile(library, case: Case, **settings):
    """Totals, numbers by module and the report of one forward call."""
    model = case.model()
    profiler = library.FlopsProfiler(model, **settings)
    profiler.start_profile()
    try:
        case.call(model)
        profiler.stop_profile()
        text = printed(profiler.print_model_profile, top_modules=2)
        totals = profiler.get_total_flops(), profiler.get_total_macs(), profiler.get_total_params()
        modules = {name: (library.get_module_flops(module), library.get_module_macs(module))
                   for name, module in model.named_modules()}
    finally:
        profiler.end_profile()
    return totals, modules, text


def printed(function, *args, **kwargs) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(*args, **kwargs)
    return out.getvalue()


def layout(text: str) -> list[str]:
    """Lines of a report without times, and without the three remarks, which are in words of our own."""
    lines = [TOP.sub(r"\1", RATE.sub(r"\1", LATENCY.sub("LATENCY", line))) for line in text.splitlines()]
    return ["REMARK" if line.startswith(("Note: 1. ", "2. ", "3. ")) else line for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_package(real, name: str) -> None:
    case = CASES[name]
    if name == "lstm":  # the package divides by the latency of a root without one
        case = Case(lambda: nn.Sequential(CASES["lstm"].make()), case.args)
    theirs, same = profile(real, case), profile(ours, case, compat=True)
    assert same[0] == theirs[0]
    assert same[1] == theirs[1]
    assert layout(same[2]) == layout(theirs[2])


class Calls(nn.Module):
    """A module that does what a test says."""

    def __init__(self, function, **held) -> None:
        super().__init__()
        self.function = function
        vars(self).update(held)

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def deepspeed_counts(real, function, *args) -> tuple[int, int]:
    totals, _, _ = profile(real, Case(lambda: Calls(function), args))
    return totals[:2]


def our_counts(function, *args, exact: bool) -> tuple[int, int]:
    lines = peer_lines(distprof.count(Calls(function), *args), exact=exact)
    return sum(line.flops for line in lines), sum(line.macs for line in lines)


def rand(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


PATCHED = {
    "linear": lambda: F.linear(rand(2, 3, 4), rand(5, 4), rand(5)),
    **{f"conv{n}d": lambda n=n: getattr(F, f"conv{n}d")(
        rand(2, 4, *[9] * n), rand(6, 2, *[3] * n), rand(6), 2, 1, 2, 2) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": lambda n=n: getattr(F, f"conv_transpose{n}d")(
        rand(2, 4, *[5] * n), rand(4, 3, *[3] * n), rand(6), 2, 1, 1, 2) for n in (1, 2, 3)},
    "conv2d valid": lambda: F.conv2d(rand(2, 4, 7, 7), rand(6, 4, 3, 3), padding="valid"),
    "conv2d same": lambda: F.conv2d(rand(2, 4, 7, 7), rand(6, 4, 3, 3), padding="same"),
    **{name: lambda name=name: getattr(F, name)(rand(3, 4)) for name in (
        "relu", "elu", "leaky_relu", "relu6", "silu", "gelu")},
    "prelu": lambda: F.prelu(rand(3, 4), rand(4)),
    "batch_norm": lambda: F.batch_norm(rand(3, 4), rand(4), rand(4)),
    "batch_norm affine": lambda: F.batch_norm(rand(3, 4), rand(4), rand(4), weight=rand(4), bias=rand(4)),
    "batch_norm training": lambda: F.batch_norm(rand(3, 4), rand(4), rand(4), rand(4), rand(4), True),
    "layer_norm": lambda: F.layer_norm(rand(3, 4), (4,)),
    "layer_norm affine": lambda: F.layer_norm(rand(3, 4), (4,), rand(4), rand(4)),
    "group_norm": lambda: F.group_norm(rand(3, 4, 5), 2, weight=rand(4)),
    "instance_norm": lambda: F.instance_norm(rand(3, 4, 5)),
    **{f"{kind}_pool{n}d": lambda kind=kind, n=n: getattr(F, f"{kind}_pool{n}d")(rand(2, 3, *[8] * n), 2)
       for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)},
    "max_pool2d indices": lambda: F.max_pool2d(rand(2, 3, 8, 8), 2, return_indices=True),
    "interpolate": lambda: F.interpolate(rand(2, 3, 4, 4), scale_factor=2),
    "interpolate each": lambda: F.interpolate(rand(2, 3, 4, 4), scale_factor=(2.0, 3.0), mode="bilinear"),
    "softmax": lambda: F.softmax(rand(3, 4), dim=-1),
    "embedding": lambda: F.embedding(torch.tensor([1]), rand(3, 4)),
    "attention": lambda: F.scaled_dot_product_attention(rand(2, 4, 3, 8), rand(2, 4, 5, 8), rand(2, 4, 5, 6)),
    "attention causal": lambda: F.scaled_dot_product_attention(
        rand(2, 4, 5, 8), rand(2, 4, 5, 8), rand(2, 4, 5, 8), is_causal=True),
    "matmul": lambda: torch.matmul(rand(2, 3, 4), rand(4, 5)),
    "matmul method": lambda: rand(3, 4).matmul(rand(4, 5)),
    "matmul operator": lambda: rand(3, 4) @ rand(4, 5),
    "mm": lambda: (torch.mm(rand(3, 4), rand(4, 5)), rand(3, 4).mm(rand(4, 5))),
    "bmm": lambda: (torch.bmm(rand(2, 3, 4), rand(2, 4, 5)), rand(2, 3, 4).bmm(rand(2, 4, 5))),
    "addmm": lambda: (torch.addmm(rand(5), rand(3, 4), rand(4, 5)), rand(3, 5).addmm(rand(3, 4), rand(4, 5))),
    "baddbmm": lambda: torch.baddbmm(rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)),
    "mul and add": lambda: (torch.mul(rand(2, 1, 3), rand(4, 1)), torch.add(rand(2, 3), 1), rand(3).mul(2),
                            rand(3).add(rand(2, 3)), torch.mul(rand(3), other=rand(3))),
    "operators": lambda: (rand(3) + rand(3), 2 * rand(3), rand(3) * 2, sum([rand(3), rand(3)])),
    "in place": lambda: rand(3).add_(1).mul_(2),
    "not patched": lambda: (torch.relu(rand(3)), rand(3).softmax(-1), torch.sigmoid(rand(3)), F.hardtanh(rand(3)),
                            F.dropout(rand(3)), torch.addbmm(rand(3, 5), rand(2, 3, 4), rand(2, 4, 5))),
    "attention in Python": lambda: F.multi_head_attention_forward(
        rand(3, 2, 4), rand(3, 2, 4), rand(3, 2, 4), 4, 2, rand(12, 4), rand(12), None, None, False, 0.0,
        rand(4, 4), rand(4)),
}


@pytest.mark.parametrize("name", PATCHED)
def test_every_function_it_patches(real, name: str) -> None:
    theirs = deepspeed_counts(real, PATCHED[name])
    assert our_counts(PATCHED[name], exact=True) == theirs
    assert our_counts(PATCHED[name], exact=False) == theirs


def einops_einsum() -> torch.Tensor:
    einops = pytest.importorskip("einops", reason="needs einops (distprof[test])")
    return einops.einsum(rand(2, 3, 4), rand(2, 4, 5), "b i j, b j k -> b i k")


def warned_of(function, *args, **kwargs):
    """A call that torch warns of, for reasons that are not ours."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        return function(*args, **kwargs)


WRONG = {  # what runs, the bug, FLOPs and MACs by the convention
    "matmul vector": (lambda: torch.matmul(rand(4, 5), rand(5)), "matmul_second_operand", (40, 20)),
    "matmul batch": (lambda: rand(3, 4) @ rand(2, 4, 5), "matmul_second_operand", (240, 120)),
    "matmul broadcast": (lambda: rand(1, 3, 4) @ rand(8, 4, 5), "matmul_second_operand", (960, 480)),
    "same": (lambda: warned_of(F.conv2d, rand(1, 3, 8, 8), rand(2, 3, 8, 8), padding="same"), "conv_same_padding",
             (2 * 64 * 2 * 3 * 64, 64 * 2 * 3 * 64)),
    "transposed without batch": (lambda: F.conv_transpose2d(rand(3, 5, 6), rand(3, 2, 2, 2), rand(2)),
                                 "conv_without_batch", (2 * 90 * 8 + 84, 90 * 8)),
    "size": (lambda: F.interpolate(rand(2, 3, 10, 10), size=(20, 20)), "interpolate_size", (2400, 0)),
    "one size": (lambda: F.interpolate(rand(2, 3, 10, 10), size=20), "interpolate_size", (2400, 0)),
    "scale": (lambda: F.interpolate(rand(1, 1, 5, 5), scale_factor=1.5), "interpolate_scale", (49, 0)),
    "einsum": (lambda: torch.einsum("bij,bjk->bik", rand(2, 3, 4), rand(2, 4, 5)), "einsum", (240, 120)),
    "einsum of three": (lambda: torch.einsum("ij,jk,kl->il", rand(2, 30), rand(30, 40), rand(40, 5)), "einsum",
                        (2 * (2400 + 400), 2400 + 400)),
    "einops": (einops_einsum, "einops_twice", (240, 120)),
}


@pytest.mark.parametrize("name", WRONG)
def test_bugs_of_the_package(real, name: str) -> None:
    """Ours without `exact` is the convention; with it, the package's own number."""
    function, bug, right = WRONG[name]
    theirs = deepspeed_counts(real, function)
    counts = distprof.count(Calls(function))
    assert our_counts(function, exact=False) == right
    assert our_counts(function, exact=True) == theirs != right
    assert [line.bug for line in peer_lines(counts) if line.flops or line.macs] == [bug]
    assert all(line.reason == BUGS[bug] for line in peer_lines(counts))


def test_upsample_counts_twice(real) -> None:
    def upsample(x):
        return warned_of(F.upsample, x, scale_factor=2)

    assert deepspeed_counts(real, upsample, rand(2, 3, 10, 10)) == (4800, 0)
    assert our_counts(upsample, rand(2, 3, 10, 10), exact=True) == (4800, 0)
    assert our_counts(upsample, rand(2, 3, 10, 10), exact=False) == (2400, 0)


RAISES = {
    "conv without batch": (lambda: F.conv2d(rand(3, 8, 8), rand(16, 3, 3, 3), padding=1), AssertionError,
                           (2 * 64 * 16 * 27, 64 * 16 * 27)),
    "attention by name": (lambda: F.scaled_dot_product_attention(
        query=rand(2, 3, 8), key=rand(2, 3, 8), value=rand(2, 3, 8)), TypeError, (2 * 288, 288)),
    "einsum of a list": (lambda: torch.einsum("ij,jk->ik", [rand(2, 3), rand(3, 4)]), AttributeError, (48, 24)),
}


@pytest.mark.parametrize("name", RAISES)
def test_where_the_package_raises(real, name: str) -> None:
    function, error, right = RAISES[name]
    model = Calls(function)
    profiler = real.FlopsProfiler(model)
    profiler.start_profile()
    with pytest.raises(error):
        model()
    profiler.end_profile()
    lines = peer_lines(distprof.count(model), exact=True)
    assert [line.raises for line in lines] == [True]
    assert (lines[0].flops, lines[0].macs) == right
    assert "raises" in lines[0].reason


class Warned(nn.Module):
    """A module that torch warns of."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return warned_of(self.layer, x)


@pytest.mark.parametrize("layer", [
    nn.RNN(3, 4), nn.RNN(3, 4, nonlinearity="relu", bias=False), nn.GRU(3, 4, 2), nn.LSTM(3, 4, bidirectional=True),
    nn.LSTM(3, 4, 2, bias=False, bidirectional=True), nn.LSTM(3, 8, 2, bidirectional=True), nn.LSTM(3, 8, proj_size=4)])
def test_recurrent_layers(real, layer: nn.Module) -> None:
    case = Case(lambda: Warned(layer), (rand(5, 2, 3),))
    assert profile(ours, case, compat=True)[1] == profile(real, case)[1]
    assert profile(ours, case)[0][1] == distprof.count(case.model(), rand(5, 2, 3)).macs


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_recurrent_cells(real, kind: type) -> None:
    case = Case(lambda: nn.Sequential(kind(3, 4)), (rand(5, 3),))
    assert profile(ours, case, compat=True)[1] == profile(real, case)[1]
    assert profile(ours, case)[0][1] == distprof.count(case.model(), rand(5, 3)).macs


def test_packed_sequences_count_their_steps() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(rand(5, 2, 3), torch.tensor([5, 2]))
    layer = nn.LSTM(3, 4)
    (line,) = peer_lines(distprof.count(layer, packed))
    assert line.raises
    assert line.macs == 7 * (16 * 3 + 16 * 4)


def test_subclass_of_a_recurrent_layer(real) -> None:
    class Mine(nn.GRU):
        pass

    case = Case(lambda: nn.Sequential(Mine(3, 4)), (rand(5, 2, 3),))
    assert profile(real, case)[0][:2] == profile(ours, case, compat=True)[0][:2] == (0, 0)
    assert profile(ours, case)[0][1] == 10 * 12 * 7


def test_function_that_a_module_holds(real) -> None:
    case = Case(lambda: Calls(lambda x: model_relu(x), relu=model_relu), (rand(3, 4),))
    model_relu = F.relu
    assert profile(real, case)[0][0] == profile(ours, case, compat=True)[0][0] == 0
    assert profile(ours, case)[0][0] == 12


def test_expected_lenet5() -> None:
    """Numbers of DeepSpeed's own test."""
    flops, macs, params = ours.get_model_profile(LeNet5(10), (1024, 1, 32, 32), print_profile=False, as_string=False)
    assert (flops, macs, params) == (866_076_672, 426_516_480, 61_706)


@given(num=st.one_of(st.floats(0, 1e18), st.integers(0, 10**18)), precision=st.integers(0, 6),
       units=st.sampled_from([None, "T", "G", "M", "K", "m", "u", "B", ""]))
def test_strings(real, num: float, units: str | None, precision: int) -> None:
    for name in ("number_to_string", "macs_to_string", "flops_to_string", "bytes_to_string", "params_to_string",
                 "duration_to_string"):
        assert getattr(ours, name)(num, units, precision) == getattr(real, name)(num, units, precision)
    assert ours.DEFAULT_PRECISION == real.DEFAULT_PRECISION


class Timer:
    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds

    def elapsed(self, reset: bool) -> float:
        assert not reset
        return self.milliseconds


def engine(**changes):
    """What the report reads of a DeepSpeed engine."""
    values = {
        "world_size": 8, "dp_world_size": 4, "seq_dp_world_size": 2, "mp_world_size": 2, "has_moe_layers": False,
        "wall_clock_breakdown": lambda: True, "train_micro_batch_size_per_gpu": lambda: 3,
        "timers": lambda name: Timer({"fwd": 12.5, "bwd": 30.0, "step": 7.5}[name])}
    return types.SimpleNamespace(**values | changes)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.expert = nn.Linear(4, 2), nn.Linear(4, 4)
        for parameter in self.expert.parameters():
            parameter.group_name = "ep_size_4"

    def forward(self, x):
        return self.expert(x) * self.gate(x).sum()


@pytest.mark.parametrize("changes", [
    {}, {"dp_world_size": None}, {"wall_clock_breakdown": lambda: False}, {"has_moe_layers": True}])
@pytest.mark.parametrize("factor", [0.0, 1.0, 0.5])
def test_report_with_an_engine(real, changes: dict, factor: float) -> None:
    case = Case(Experts, (rand(3, 4),))
    settings = {"ds_engine": engine(**changes), "recompute_fwd_factor": factor}
    theirs, same = profile(real, case, **settings)[2], profile(ours, case, compat=True, **settings)[2]
    if changes.get("wall_clock_breakdown"):
        assert layout(same) == layout(theirs)
    else:  # times come from the engine: all of the summary is equal
        end = theirs.splitlines().index("")
        assert end == 0
        summary = theirs[:theirs.index("Aggregated")]
        assert same[:same.index("Aggregated")] == summary
        assert "samples/second" in summary


def test_experts_without_an_engine() -> None:
    text = profile(ours, Case(Experts, (rand(3, 4),)))[2]
    assert re.search(r"params per GPU: +30 ", text)
    assert re.search(r"params of model: +90 ", text)
    assert re.search(r"   expert params of model: +80 ", text)


def test_partitioned_parameters_count_in_full(real) -> None:
    """ZeRO-3 leaves one element in place of a parameter and notes the full size."""
    def partitioned() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4))
        model[0].weight.data = torch.empty(1)
        model[0].weight.ds_numel, model[0].bias.ds_numel = 16, 4
        return model

    profilers = [library.FlopsProfiler(partitioned()) for library in (real, ours)]
    for profiler in profilers:
        profiler.start_profile()
    assert [profiler.get_total_params() for profiler in profilers] == [5, 20]
    for profiler in profilers:
        profiler.end_profile()


def test_bugs_of_the_report_are_fixed_by_default() -> None:
    case = Case(lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))), (rand(2, 4),))
    fixed, same = profile(ours, case)[2], profile(ours, case, compat=True)[2]
    assert ("depth 2:" in fixed, "depth 2:" in same) == (True, False)
    assert re.search(r"params of model = params per GPU \* mp_size: +40 ", fixed)
    assert re.search(r"params of model = params per GPU \* mp_size: +0 ", same)


def test_root_without_a_latency_prints(real, tmp_path, capsys) -> None:
    layer = nn.LSTM(3, 4)
    theirs, out = real.FlopsProfiler(layer), sys.stdout
    theirs.start_profile()
    layer(rand(5, 2, 3))
    with pytest.raises(ZeroDivisionError):
        theirs.print_model_profile(output_file=str(tmp_path / "theirs"))
    stolen, sys.stdout = sys.stdout, out
    stolen.close()
    assert stolen is not out
    theirs.end_profile()
    profiler = ours.FlopsProfiler(layer, compat=True)
    profiler.start_profile()
    layer(rand(5, 2, 3))
    profiler.print_model_profile()
    assert re.search(r"fwd latency: +- ", capsys.readouterr().out)
    profiler.end_profile()


def test_no_forward_call(capsys) -> None:
    profiler = ours.FlopsProfiler(LeNet5())
    profiler.start_profile()
    profiler.stop_profile()
    profiler.print_model_profile()
    out = capsys.readouterr().out
    assert "no forward call of the model was seen" in out
    assert re.search(r"fwd latency: +- ", out)
    profiler.end_profile()


def test_before_and_after(capsys) -> None:
    model = LeNet5()
    profiler = ours.FlopsProfiler(model)
    profiler.print_model_profile()
    profiler.print_model_aggregated_profile()
    assert capsys.readouterr().out.count("no profile") == 2
    profiler.end_profile()
    for question in (profiler.get_total_flops, profiler.get_total_params, lambda: ours.get_module_flops(model)):
        with pytest.raises(UsageError, match="start_profile"):
            question()


def test_attributes_and_strings() -> None:
    model = LeNet5()
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile()
    assert (profiler.started, profiler.func_patched) == (True, True)
    model(rand(1024, 1, 32, 32))
    profiler.stop_profile()
    assert (profiler.started, profiler.func_patched) == (True, False)
    assert profiler.get_total_flops(as_string=True) == "866.08 M"
    assert profiler.get_total_macs(as_string=True) == "426.52 MMACs"
    assert profiler.get_total_params(as_string=True) == "61.71 K"
    assert profiler.get_total_duration(as_string=True).endswith("s")
    assert 0 < profiler.get_total_duration() == ours.get_module_duration(model)
    assert ours.get_module_duration(model.classifier) < profiler.get_total_duration()
    printed(profiler.print_model_profile)
    assert (profiler.flops, profiler.macs, profiler.params) == (866_076_672, 426_516_480, 61_706)
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


def test_ignored_types_count_for_the_module_around(real) -> None:
    for settings in ({}, {"compat": True}):
        model = LeNet5().eval()
        results = []
        for library, options in ((real, {}), (ours, settings)):
            profiler = library.FlopsProfiler(model, **options)
            profiler.start_profile(ignore_list=[nn.Conv2d, nn.Linear])
            model(rand(2, 1, 32, 32))
            results.append({name: library.get_module_flops(module) for name, module in model.named_modules()})
            profiler.end_profile()
        assert results[0] == results[1]
        assert results[1]["classifier.0"] == 0


def test_calls_beside_the_model_do_not_count(real) -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    totals = []
    for library in (real, ours):
        profiler = library.FlopsProfiler(model)
        profiler.start_profile()
        F.relu(other(model(rand(2, 4))))
        totals.append(profiler.get_total_flops())
        profiler.end_profile()
    assert totals == [64, 64]


def test_backward_does_not_count() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile()
    torch.utils.checkpoint.checkpoint(model, rand(2, 4).requires_grad_(), use_reentrant=False).sum().backward()
    assert profiler.get_total_macs() == 32
    profiler.end_profile()


@pytest.mark.parametrize("arguments", [
    {"input_shape": (2, 1, 32, 32)}, {"args": [rand(2, 1, 32, 32)]}, {"kwargs": {"x": rand(2, 1, 32, 32)}},
    {"input_shape": (2, 1, 32, 32), "as_string": False, "warm_up": 0},
    {"input_shape": (2, 1, 32, 32), "ignore_modules": [nn.Tanh], "module_depth": 1, "top_modules": 2},
    {"input_shape": (2, 1, 32, 32), "detailed": False}])
def test_get_model_profile(real, arguments: dict, capsys) -> None:
    results, texts = [], []
    for library, options in ((real, {}), (ours, {"compat": True})):
        results.append(library.get_model_profile(LeNet5(), **arguments, **options))
        texts.append(capsys.readouterr().out)
    assert results[0] == results[1]
    assert layout(texts[0]) == layout(texts[1])


def test_get_model_profile_restores(tmp_path, capsys) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    model[0].eval()
    flags, before = [module.training for module in model.modules()], torch.get_rng_state()
    file = tmp_path / "new" / "profile.txt"
    ours.get_model_profile(model, (2, 4), output_file=str(file))
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr().out == ""
    assert "DeepSpeed Flops Profiler" in file.read_text()


@pytest.mark.parametrize("warm_up", [0, 1, 3])
def test_as_many_calls_as_the_package_makes(real, warm_up: int) -> None:
    calls = []
    for library in (real, ours):
        made: list[int] = []
        model = Calls(lambda x, made=made: made.append(1) or F.relu(x))
        result = library.get_model_profile(model, (2, 4), warm_up=warm_up, print_profile=False, as_string=False)
        assert result == (8, 0, 0)
        calls.append(len(made))
    assert calls == [warm_up + 1] * 2


def test_generate_mode(real) -> None:
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
    assert ours.get_model_profile(Generator(), **arguments) == real.get_model_profile(Generator(), **arguments)
    assert ours.get_model_profile(Generator(), **arguments)[1] == 3 * 32


@pytest.mark.parametrize("arguments", [
    {"mode": "train", "input_shape": (2, 4)}, {"mode": "generate", "input_shape": (2, 4)}, {}, {"input_shape": 3},
    {"input_shape": ()}, {"args": None}, {"args": torch.ones(2, 4)}, {"kwargs": [torch.ones(2, 4)]}])
def test_wrong_arguments(arguments: dict) -> None:
    with pytest.raises(UsageError, match="expected"):
        ours.get_model_profile(nn.Linear(4, 4), **arguments)


def test_not_a_model() -> None:
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        ours.get_model_profile(torch.relu, (2, 4))


def test_report_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DistprofError, match="cannot write"):
        ours.get_model_profile(nn.Linear(4, 4), (2, 4), output_file=str(tmp_path / "file" / "report"))


def test_every_public_name_of_the_package(real) -> None:
    import inspect

    assert set(ours.__all__) <= set(dir(real))
    for name in ("start_profile", "stop_profile", "reset_profile", "end_profile", "get_total_flops",
                 "get_total_macs", "get_total_duration", "get_total_params", "is_expert_tensor_parallelism_enabled",
                 "print_model_profile", "print_model_aggregated_profile", "__init__"):
        ours_takes = list(inspect.signature(getattr(ours.FlopsProfiler, name)).parameters)
        theirs = list(inspect.signature(getattr(real.FlopsProfiler, name)).parameters)
        assert ours_takes[:len(theirs)] == theirs
    theirs = list(inspect.signature(real.get_model_profile).parameters)
    assert list(inspect.signature(ours.get_model_profile).parameters)[:len(theirs)] == theirs


def test_every_bug_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compat.md").read_text()
    for bug, sentence in {**BUGS, **NOT_REPRODUCED}.items():
        assert f"| `{bug}` | {sentence} |" in page
