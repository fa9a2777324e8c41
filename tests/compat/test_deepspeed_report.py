"""The report of DeepSpeed's drop-in: equal to the package's line by line, and without its bugs."""

from __future__ import annotations

import re
import sys
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from distprof.compat import deepspeed as ours
from distprof.errors import DistprofError
from support.side_by_side import CASES, LARGE, Case, Sensors, profile, rand

LATENCY = re.compile(r"\S+ [KMGTmu]?s = \S+% latency, \S+ [KMGTmu]?FLOPS")

RATE = re.compile(r"((?:latency|FLOPS per GPU = .*): +).*")

TOP = re.compile(r"(fwd latency - ).*")


def layout(text: str) -> list[str]:
    """Lines of a report without times, and without the three remarks, which are in words of our own."""
    lines = [TOP.sub(r"\1", RATE.sub(r"\1", LATENCY.sub("LATENCY", line))) for line in text.splitlines()]
    return ["REMARK" if line.startswith(("Note: 1. ", "2. ", "3. ")) else line for line in lines]


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.stress] if name in LARGE else [])
                                  for name in CASES])
def test_equal_to_the_package(deepspeed_package, name: str) -> None:
    case = CASES[name]
    if name == "lstm":  # the package divides by the latency of a root without one
        case = Case(lambda: nn.Sequential(CASES["lstm"].make()), case.args)
    theirs, same = profile(deepspeed_package, case), profile(ours, case, compat=True)
    assert same[0] == theirs[0]
    assert same[1] == theirs[1]
    assert layout(same[2]) == layout(theirs[2])


@pytest.mark.long
@given(num=st.one_of(st.floats(0, 1e18), st.integers(0, 10**18)), precision=st.integers(0, 6),
       units=st.sampled_from([None, "T", "G", "M", "K", "m", "u", "B", ""]))
def test_strings(deepspeed_package, num: float, units: str | None, precision: int) -> None:
    for name in ("number_to_string", "macs_to_string", "flops_to_string", "bytes_to_string", "params_to_string",
                 "duration_to_string"):
        assert getattr(ours, name)(num, units, precision) == getattr(deepspeed_package, name)(num, units, precision)
    assert ours.DEFAULT_PRECISION == deepspeed_package.DEFAULT_PRECISION


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
def test_report_with_an_engine(deepspeed_package, changes: dict, factor: float) -> None:
    case = Case(Experts, (rand(3, 4),))
    settings = {"ds_engine": engine(**changes), "recompute_fwd_factor": factor}
    theirs, same = profile(deepspeed_package, case, **settings)[2], profile(ours, case, compat=True, **settings)[2]
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


def test_bugs_of_the_report_are_fixed_by_default() -> None:
    case = Case(lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))), (rand(2, 4),))
    fixed, same = profile(ours, case)[2], profile(ours, case, compat=True)[2]
    assert ("depth 2:" in fixed, "depth 2:" in same) == (True, False)
    assert re.search(r"params of model = params per GPU \* mp_size: +40 ", fixed)
    assert re.search(r"params of model = params per GPU \* mp_size: +0 ", same)


def test_root_without_a_latency_prints(deepspeed_package, tmp_path, capsys) -> None:
    layer = nn.LSTM(3, 4)
    theirs, out = deepspeed_package.FlopsProfiler(layer), sys.stdout
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
    profiler = ours.FlopsProfiler(Sensors())
    profiler.start_profile()
    profiler.stop_profile()
    profiler.print_model_profile()
    out = capsys.readouterr().out
    assert "the model's forward was not called" in out
    assert re.search(r"fwd latency: +- ", out)
    profiler.end_profile()


@pytest.mark.parametrize("arguments", [
    {"input_shape": (2, 3, 22)}, {"args": [rand(2, 3, 22)]}, {"kwargs": {"x": rand(2, 3, 22)}},
    {"input_shape": (2, 3, 22), "as_string": False, "warm_up": 0},
    {"input_shape": (2, 3, 22), "ignore_modules": [nn.Tanh], "module_depth": 1, "top_modules": 2},
    {"input_shape": (2, 3, 22), "detailed": False}])
def test_get_model_profile(deepspeed_package, arguments: dict, capsys) -> None:
    results, texts = [], []
    for library, options in ((deepspeed_package, {}), (ours, {"compat": True})):
        results.append(library.get_model_profile(Sensors(), **arguments, **options))
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


def test_report_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DistprofError, match="cannot write"):
        ours.get_model_profile(nn.Linear(4, 4), (2, 4), output_file=str(tmp_path / "file" / "report"))
