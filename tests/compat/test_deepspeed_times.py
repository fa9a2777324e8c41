"""Latencies of DeepSpeed's drop-in, and what the program notices of the calls that they take."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module

from distprof.compat.deepspeed import FlopsProfiler, forward_record, get_model_profile, get_module_duration
from distprof.counting import torch_functions
from support import ports
from support.attempts import most_hold
from support.side_by_side import rand
from support.ticks import Clock, Worker


class Stateful(nn.Module):
    """Draws, keeps running means, counts its calls in every kind of attribute, and changes its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4))
        self.calls, self.seen, self.cache, self.kinds = 0, [], {}, {"new"}

    def forward(self, x, past: dict, *, states: list):
        self.calls += 1
        self.seen.append(self.calls)
        self.cache["last"] = self.latest = x
        self.kinds.add(self.calls)
        past["length"] = past.get("length", 0) + 1
        x.add_(1)
        states.append(torch.rand(1))
        return self.layers(x) + states[-1]


def trained(*, profiled: bool) -> list:
    """What three steps leave; the second one is profiled."""
    torch.manual_seed(0)
    model, past, states = Stateful(), {}, []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    profiler = FlopsProfiler(model)
    for step in range(3):
        optimizer.zero_grad()
        x = rand(16, 4)
        if profiled and step == 1:
            profiler.start_profile()
        loss = model(x, past, states=states).square().mean()
        if profiled and step == 1:
            profiler.stop_profile()
            assert profiler.get_total_macs() == 16 * 4 * 8 * 2 and profiler.get_total_duration() > 0
            profiler.end_profile()
        loss.backward()
        optimizer.step()
    return [*model.state_dict().values(), torch.rand(3), *states, x, model.latest, model.cache["last"],
            torch.tensor([model.calls, *model.seen, past["length"], len(model.kinds), len(vars(model))])]


def test_training_is_the_same_to_the_bit():
    plain, profiled = (trained(profiled=on) for on in (False, True))
    assert len(plain) == len(profiled) and all(map(torch.equal, plain, profiled))


NOTED: list[tuple[int, ...]] = []
"""Not held by a model: what one holds is put back."""


class Watching(nn.Module):
    """Notes of each of its calls what is on: hooks of all modules, hooks of its own, modes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        NOTED.clear()

    def forward(self, x, *_):
        NOTED.append((len(nn_module._global_forward_hooks), len(self._forward_hooks),
                      torch._C._len_torch_function_stack()))
        return self.layer(x)


def test_the_model_is_timed_and_called_with_nothing_on():
    model = Watching()
    for _ in range(2):
        profiler = FlopsProfiler(model)
        profiler.start_profile()
        model(rand(2, 4))
        profiler.end_profile()
        counted, timed, *alone, own = NOTED
        assert (counted, timed) == ((1, 0, 1), (1, 0, 0))
        assert set(alone) == {(0, 0, 0)} and own == (0, 1, 0)
        NOTED.clear()


@contextlib.contextmanager
def hooked(model):
    handle = model.layer.register_forward_hook(lambda *_: None)
    yield
    handle.remove()


@contextlib.contextmanager
def in_a_job(model):
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{ports.free_port()}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


CONTEXTS = {
    "hooks": hooked, "global_hooks": lambda _: nn_module.register_module_forward_hook(lambda *_: None),
    "process_group": in_a_job, "profiler": lambda _: torch.autograd.profiler.profile(),
    "function_mode": lambda _: torch.device("cpu"), "saved_tensors": lambda _: torch.autograd.graph.save_on_cpu(),
}


@pytest.mark.parametrize("what", CONTEXTS)
def test_no_call_is_repeated_where_somebody_would_notice(what):
    model = Watching()
    profiler = FlopsProfiler(model)
    with CONTEXTS[what](model):
        profiler.start_profile()
        model(rand(2, 4))
        profiler.stop_profile()
    assert len(NOTED) == 1
    assert profiler.get_total_macs() == 32 and 0 < get_module_duration(model.layer) < profiler.get_total_duration()
    profiler.end_profile()


@pytest.mark.parametrize("given", [(one for one in "ab"), nn.Linear(1, 1)], ids=["generator", "module"])
def test_inputs_that_cannot_be_copied(given):
    model = Watching()
    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(rand(2, 4), given)
    profiler.stop_profile()
    assert len(NOTED) == 1
    assert profiler.get_total_macs() == 32 and 0 < get_module_duration(model.layer) < profiler.get_total_duration()
    profiler.end_profile()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """A clock that only models and instruments move."""
    clock = Clock()
    monkeypatch.setattr(forward_record, "stopwatch", lambda: clock)
    read = torch_functions._all_specs

    def slowly(values):
        clock.now += 1000
        return read(values)

    monkeypatch.setattr(torch_functions, "_all_specs", slowly)
    find = forward_record.ForwardRecord._running_path
    monkeypatch.setattr(forward_record.ForwardRecord, "_running_path",
                        lambda self: setattr(clock, "now", clock.now + 500) or find(self))
    return clock


@pytest.mark.parametrize("repeats", [True, False])
def test_counting_is_not_in_the_times(clock, repeats):
    layers = Worker(clock, 3, 0), Worker(clock, 11, 0)
    model = nn.Sequential(nn.Sequential(layers[0], nn.ReLU()), layers[1], nn.Linear(3, 3))
    handle = None if repeats else model.register_forward_hook(lambda *_: None)
    for _ in range(2):
        profiler = FlopsProfiler(model)
        profiler.start_profile()
        model(torch.ones(2, 3))
        profiler.stop_profile()
        times = [get_module_duration(module) for module in (model, model[0], *layers, model[2])]
        assert [round(1e9 * seconds) for seconds in times] == [14, 3, 3, 11, 0]
        assert profiler.get_total_macs() == 18 and clock.now > 1000
        profiler.end_profile()
    if handle is not None:
        handle.remove()


@pytest.mark.parametrize("warm_up", [0, 1, 2, 5])
def test_counting_is_not_in_the_times_of_get_model_profile(clock, warm_up, capsys):
    model = nn.Sequential(Worker(clock, 3_000_000, 0), nn.ReLU(), Worker(clock, 11_000_000, 0))
    get_model_profile(model, (2, 3), warm_up=warm_up)
    assert "14 ms = 100% latency" in capsys.readouterr().out


USES = """
import sys, time
from statistics import median
import torch
from torch import nn
from distprof.compat.deepspeed import FlopsProfiler

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.attention = nn.MultiheadAttention(size, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)

def seconds():
    begin = time.perf_counter()
    model(x)
    return time.perf_counter() - begin

torch.set_num_threads(1)
model, x = {
    "tiny": lambda: (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), torch.rand(8, 16)),
    "many_small": lambda: (nn.Sequential(*[Block(64) for _ in range(4)]), torch.rand(2, 16, 64)),
    "wide": lambda: (nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]), torch.rand(64, 512)),
}[sys.argv[1]]()
for _ in range(4):
    before = median(seconds() for _ in range(30))
    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(x)
    found = profiler.get_total_duration()
    profiler.end_profile()
    print(found, before, median(seconds() for _ in range(30)))
"""


@pytest.mark.stress
@pytest.mark.parametrize("name", ["tiny", "many_small", "wide"])
def test_each_use_is_what_a_stopwatch_says(name, tmp_path):
    """The first use in a process as well."""
    def attempt(_: Path) -> None:
        done = subprocess.run([sys.executable, "-c", USES, name], capture_output=True, text=True, check=True)
        uses = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
        assert len(uses) == 4
        for found, *truth in uses:
            assert min(truth) / 1.15 <= found <= 1.15 * max(truth), uses

    most_hold(attempt, tmp_path, of=6, at_least=2)
