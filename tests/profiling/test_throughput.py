"""The inference benchmark: times are those of the calls, and the model is as it was afterwards."""

from __future__ import annotations

import io
import json
import statistics
import sys
import time
from contextlib import nullcontext
from itertools import accumulate

import pytest
import torch
from rich.console import Console
from torch import nn

import distprof
from distprof.errors import UsageError
from distprof.profiling import throughput as inference
from distprof.timing import repetition
from distprof.units import counted
from support import forked
from support.jobs import clean_environ
from support.models import nap


class Sleeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.slept = []

    def forward(self, x):
        nap(0.005, self.slept)
        return x


class Witness(nn.Module):
    """Notes how it is called."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout()
        self.layer = nn.Linear(4, 4)
        self.calls = []

    def forward(self, x, scale=1):
        self.calls.append((self.training, self.dropout.training, torch.is_grad_enabled(),
                           torch.is_inference_mode_enabled(), scale))
        torch.rand(3)
        return self.layer(self.dropout(x)) * scale


def test_a_module_that_sleeps_takes_as_long_as_it_slept():
    model = Sleeper()
    found = distprof.throughput(model, torch.zeros(4, 2), warmup=2, runs=40)
    slept_ns = sorted(nap * 1e9 for nap in model.slept[2:])  # on a busy machine more than was asked for
    latency = found.latency_ns
    assert statistics.median(slept_ns) <= latency.median
    assert slept_ns[0] <= latency.min <= latency.median <= latency.p90 <= latency.p99
    assert latency.p99 <= found.latency_ns.max <= found.wall_ns
    assert found.samples_per_second == pytest.approx(4 * 40 / found.wall_ns * 1e9)
    assert sum(slept_ns) <= found.latency_ns.mean * 40 <= found.wall_ns
    assert found.user_cpu_ns + found.system_cpu_ns < found.wall_ns / 2, "who sleeps needs no CPU"


def test_cpu_time_is_what_the_calls_burn():
    def burn():
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass

    before = time.process_time_ns()
    found = distprof.throughput(burn, (), warmup=1, runs=10)
    burned = time.process_time_ns() - before
    assert 0.95e8 <= found.user_cpu_ns + found.system_cpu_ns <= burned
    assert found.samples is None and found.samples_per_second is None


@pytest.mark.parametrize("inference_mode", [False, True])
def test_runs_are_counted_and_run_in_eval_without_gradients(inference_mode):
    model = Witness()
    found = distprof.throughput(model, {"x": torch.ones(2, 4), "scale": 3}, warmup=3, runs=5,
                                inference_mode=inference_mode)
    assert model.calls == [(False, False, False, inference_mode, 3)] * 8
    assert (found.warmup, found.runs, found.samples) == (3, 5, 2)


def test_the_model_is_as_it_was():
    model = Witness()
    model.layer.eval()
    torch.manual_seed(7)
    random = torch.get_rng_state()
    distprof.throughput(model, torch.ones(2, 4), warmup=0, runs=1)
    assert (model.training, model.dropout.training, model.layer.training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), random) and torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters()) and not model._forward_hooks


def test_a_module_that_works_when_the_mode_changes_may_undo_it():
    class Merged(nn.Linear):
        def train(self, mode=True):
            if self.training != mode:
                self.weight.data.mul_(2 if not mode else 0.5)
            return super().train(mode)

    model = nn.Sequential(Merged(2, 2))
    before = model[0].weight.detach().clone()
    distprof.throughput(model, torch.ones(1, 2), warmup=0, runs=1)
    assert torch.equal(model[0].weight, before) and model[0].training


def test_the_error_of_the_model_passes_and_the_model_is_as_it_was():
    class Broken(Witness):
        def forward(self, x, scale=1):
            super().forward(x)
            if len(self.calls) == 3:
                raise ZeroDivisionError("third call")

    model = Broken()
    random = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError, match="third call"):
        distprof.throughput(model, torch.ones(2, 4), warmup=1, runs=9)
    assert model.training and model.dropout.training and torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), random) and len(model.calls) == 3


@pytest.mark.parametrize(("inputs", "samples", "tokens"), [
    (torch.zeros(8, 16, dtype=torch.long), 8, 128), (torch.zeros(8, 16, dtype=torch.int32), 8, 128),
    (torch.zeros(8, 16), 8, None), (torch.zeros(8, 16, dtype=torch.bool), 8, None),
    (torch.zeros(8, 16, 2, dtype=torch.long), 8, None), (torch.tensor(1.0), None, None),
    ((3, torch.zeros(5, 2, dtype=torch.long)), 5, 10), (({"ids": torch.zeros(6, 7, dtype=torch.long)},), 6, 42),
    ({"ids": torch.zeros(6, 7, dtype=torch.long), "mask": torch.zeros(2)}, 6, 42), ((), None, None)])
def test_samples_and_tokens_come_from_the_first_tensor(inputs, samples, tokens):
    def model(*args, **kwargs):
        return None

    found = distprof.throughput(model, inputs, warmup=0, runs=2)
    assert (found.samples, found.tokens) == (samples, tokens)
    given = distprof.throughput(model, inputs, warmup=0, runs=2, samples=3, tokens=11)
    assert (given.samples, given.tokens) == (3, 11)
    assert given.tokens_per_second == pytest.approx(given.samples_per_second * 11 / 3)


@pytest.mark.parametrize(("changed", "words"), [
    ({"runs": 0}, "runs .* at least 1, not 0"), ({"warmup": -1}, "warmup .* at least 0, not -1"),
    ({"runs": 2.5}, "runs .* not 2.5"), ({"runs": True}, "runs .* not True"), ({"samples": 0}, "samples"),
    ({"tokens": -5}, "tokens"), ({"inputs": [1]}, "not list.*hint"), ({"inputs": {1: 2}}, "not dict"),
    ({"inputs": None}, "not NoneType"), ({"model": 3}, "callable, not int"),
    ({"inputs": torch.zeros(2, device="meta")}, "storage, but found tensors on the meta device")])
def test_a_wrong_argument_is_told_before_the_model_is_called(changed, words):
    model = Witness()
    with pytest.raises(UsageError, match=words):
        distprof.throughput(**{"model": model, "inputs": torch.ones(2, 4)} | changed)
    assert not model.calls and model.training


def test_percentiles_agree_with_those_of_the_standard_library(monkeypatch):
    times = [(index * 37) % 101 * 1000 for index in range(101)]
    monkeypatch.setattr(inference, "durations", lambda call, runs, device: times)
    latency = distprof.throughput(Sleeper(), torch.zeros(1)).latency_ns
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    assert (latency.median, latency.p90, latency.p99) == pytest.approx((statistics.median(times), cuts[89], cuts[98]))
    assert (latency.min, latency.max, latency.mean) == (0, 100_000, pytest.approx(statistics.mean(times)))


def test_the_text_says_what_the_dictionary_says():
    found = distprof.throughput(nn.Linear(4, 4), torch.zeros(8, 4), warmup=1, runs=3)
    again = json.loads(json.dumps(found.to_dict()))
    assert again["latency_ns"]["median"] == found.latency_ns.median and again["runs"] == 3
    lines = {line[:9].strip(): line[11:] for line in str(found).splitlines() if line[:9].strip()}
    assert list(lines) == ["device", "runs", "samples/s", "tokens/s", "latency", "time", "memory"]
    assert lines["runs"] == "3 after 1 for warm-up" and lines["tokens/s"] == "-" and "(8 a run)" in lines["samples/s"]
    assert counted(torch.get_num_threads(), "thread") in lines["device"] and "resident set" in lines["memory"]


@pytest.mark.long
def test_memory_is_the_rise_of_the_resident_set_or_unknown():
    code = ("import json, torch, distprof\n"
            "def model(): torch.ones(50_000_000).sum()\n"
            "first, second = (distprof.throughput(model, (), warmup=0, runs=2) for _ in range(2))\n"
            "small = distprof.throughput(lambda: None, (), warmup=0, runs=2)\n"
            "print(json.dumps([first.peak_memory_bytes, second.peak_memory_bytes, small.peak_memory_bytes]))")
    done = forked.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean_environ(),
                      check=True)
    first, second, small = json.loads(done.stdout)
    assert 1.9e8 <= first < 3e8 and (second is None or 1.9e8 <= second < 3e8)
    assert small is None, "it had been as large before"


class FakeEvents:
    """A stream that is 1, 2, 3, ... ms behind at each event, instead of CUDA."""

    def __init__(self):
        self.log = []
        self.times = accumulate(range(100))

    def event(self, _device, *, enable_timing):
        stream = self

        class Event:
            def record(self):
                stream.log.append("record")
                self.at = next(stream.times)

            def elapsed_time(self, end):
                assert stream.log[-1] == "synchronize"
                return float(end.at - self.at)

        assert enable_timing
        return Event()


def test_cuda_runs_lie_between_events_with_one_synchronisation_at_the_end(monkeypatch):
    fake = FakeEvents()
    monkeypatch.setattr(torch, "Event", fake.event)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: fake.log.append("synchronize"))
    times = repetition.durations(lambda: fake.log.append("call"), 3, torch.device("cuda"))
    assert fake.log == ["record", "call", "record", "call", "record", "call", "record", "synchronize"]
    assert times == [1_000_000, 2_000_000, 3_000_000]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_time_is_that_of_the_device_and_memory_that_of_the_allocator():
    model, x = nn.Linear(2048, 2048, device="cuda"), torch.ones(512, 2048, device="cuda")
    found = distprof.throughput(model, x, warmup=5, runs=20)
    assert found.device == torch.cuda.get_device_name() and "events" in found.latency_clock
    assert found.latency_ns.mean * 20 <= found.wall_ns
    assert found.peak_memory_bytes >= 4 * (2048 * 2048 + 2 * 512 * 2048)


def test_a_console_gets_the_same_text():
    console = Console(width=200, file=io.StringIO(), markup=True)
    found = distprof.throughput(nn.Linear(4, 4), torch.ones(1, 4), warmup=0, runs=1)
    console.print(found)
    assert console.file.getvalue().split() == str(found).split()
