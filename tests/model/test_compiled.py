"""torch.compile: recording compiles nothing again, counts what was written, and times compiled modules."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import distprof
from distprof.model.compiled import ABOUT_HOOKS, ForcedEager
from support.jobs import SCRIPTS, torchrun
from support.jobs import distprof as command
from support.recording import Recorded

# torch 2.15 warns of itself while it compiles a part of a model
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")]


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
        self.breaks = breaks

    def forward(self, x):
        x = x + 1
        if self.breaks:
            torch._dynamo.graph_break()
        return self.last(self.relu(self.first(x)))


def wrapped(model: Net, backend) -> nn.Module:
    return torch.compile(model, backend=backend)


def in_place(model: Net, backend) -> nn.Module:
    model.compile(backend=backend)
    return model


def parts(model: Net, backend) -> nn.Module:
    model.first = torch.compile(model.first, backend=backend)
    model.last.compile(backend=backend)
    return model


def both(model: Net, backend) -> nn.Module:
    model.last.compile(backend=backend)
    return torch.compile(model, backend=backend)


def function(model: Net, backend):
    return torch.compile(lambda x: model(x * 1), backend=backend)


WAYS = (wrapped, in_place, parts, both, function)


def record(run, way, *, warmup: int, steps: str, breaks: bool = False) -> tuple[Recorded, list[int]]:
    """Records all steps and takes two more; gives how many graphs had been compiled after each."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    model = Net(breaks=breaks)
    call = way(model, counter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = []

    def step() -> None:
        call(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        compiled.append(counter.frame_count)

    for _ in range(warmup):
        step()
    with distprof.record(run, steps=steps) as rec:
        while rec.recording:
            step()
    step()
    step()
    return Recorded(run), compiled


@cache
def forgets_without_hooks() -> bool:
    """True for a torch (2.15) that compiles what was compiled in place again where there are hooks."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    layer = nn.Linear(4, 4)
    layer.compile(backend=counter)
    layer(torch.ones(2, 4))
    handle = register_module_forward_hook(lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer(torch.ones(2, 4))
    handle.remove()
    return counter.frame_count > 1


@pytest.mark.parametrize("warmup", [0, 1], ids=["compiled under recording", "compiled before"])
@pytest.mark.parametrize(("way", "breaks"), [
    *((way, False) for way in WAYS), pytest.param(next(iter(WAYS)), True, marks=pytest.mark.long),
    *(pytest.param(way, True, marks=pytest.mark.stress) for way in [*WAYS][1:])])
def test_nothing_is_compiled_twice_and_counts_are_those_of_the_code(tmp_path, way, warmup, breaks):
    if way is parts and forgets_without_hooks():
        pytest.skip("this torch compiles parts that were compiled in place again where there are hooks")
    seen, compiled = record(tmp_path / "run", way, warmup=warmup, breaks=breaks,
                            steps="wait=1,count=1,time=2,trace=1,arrivals=0")
    assert compiled[0] >= 1 + (breaks and way is not parts) and set(compiled) == {compiled[0]}
    assert not torch.compiler.is_compiling() and seen.info["status"] == "complete" and seen.info["notes"] == []
    modules, product = seen.modules(), 2 * 2 * 4 * 4
    assert {path: row["class_name"] for path, row in modules.items()} == {
        "": "Net", "first": "Linear", "relu": "ReLU", "last": "Linear"}
    assert [modules[path]["fwd_flops"] for path in ("", "first", "last")] == [2 * product, product, product]
    assert [modules[path]["bwd_flops"] for path in ("", "first", "last")] == [3 * product, product, 2 * product]


@pytest.mark.parametrize(("way", "timed"), [(wrapped, {""}), (in_place, {""}), (both, {""}), (function, set()),
                                            (parts, {"", "first", "relu", "last"})])
def test_the_outermost_compiled_module_is_timed(tmp_path, way, timed):
    modules = record(tmp_path / "run", way, warmup=1, steps="wait=0,count=1,time=2,trace=0,arrivals=0")[0].modules()
    assert {path for path, row in modules.items() if row["calls"]} == timed
    for path in timed:
        assert modules[path]["fwd_time_ns"] > 0 and modules[path]["bwd_time_ns"] > 0


def test_a_compilation_in_a_timed_step_is_said(tmp_path):
    seen, compiled = record(tmp_path / "run", wrapped, warmup=0, steps="wait=0,count=0,time=2,trace=0,arrivals=0")
    assert compiled == [1, 1, 1, 1]
    note, = seen.info["notes"]
    assert note.startswith("torch.compile compiled during a step of the time pass, so means include that time")


def test_a_stance_of_the_script_is_kept(tmp_path):
    with torch.compiler.set_stance("eager_on_recompile"):
        record(tmp_path / "run", wrapped, warmup=1, steps="wait=0,count=1,time=1,trace=0,arrivals=0")
        assert torch._dynamo.eval_frame._stance.stance == "eager_on_recompile"
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_a_stance_that_is_chosen_while_we_count_holds_afterwards(tmp_path):
    model = Net()
    call = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=2,count=1,time=1,trace=0,arrivals=0") as rec:
        for step in range(6):
            if step == 2:
                assert stance() == "force_eager"
                torch.compiler.set_stance("fail_on_recompile")
            call(torch.ones(2, 4)).sum().backward()  # raises where the mode of the count pass meets the stance
            optimizer.step()
        assert not rec.recording and stance() == "fail_on_recompile"
    torch.compiler.set_stance("default")
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == "complete" and seen.modules()[""]["fwd_flops"] == 4 * 2 * 4 * 4


def stance() -> str:
    return torch._dynamo.eval_frame._stance.stance


STANCES = ("default", "eager_on_recompile", "fail_on_recompile", "force_eager")


@given(st.lists(st.one_of(st.sampled_from(STANCES), st.sampled_from(("enter", "leave", "start", "stop")))))
def test_stances_of_the_script_are_those_without_us(events):
    """What the script does with stances, and ours that begin and end in between, one inside the other."""
    entered, running, plain, plain_entered = [], [], "default", []
    for event in events:
        if event in STANCES:
            torch.compiler.set_stance(event)
            plain = event
        elif event == "enter":
            entered.append(torch.compiler.set_stance("eager_on_recompile"))
            entered[-1].__enter__()
            plain_entered.append(plain)
            plain = "eager_on_recompile"
        elif event == "leave" and entered:
            entered.pop().__exit__(None, None, None)
            plain = plain_entered.pop()
        elif event == "start":
            running.append(ForcedEager())
            running[-1].start()
        elif event == "stop" and running:
            running.pop().stop()
        assert stance() == ("force_eager" if running else plain)
    while running:
        running.pop().stop()
    assert stance() == plain
    torch.compiler.set_stance("default")


def test_nothing_of_ours_stays_with_the_compiler(tmp_path):
    handler = torch._dynamo.callback_handler
    model = Net()
    model.compile(backend="eager")
    own = torch._dynamo.decorators._set_stance
    before = model._compiled_call_impl, list(handler.start_callbacks), list(handler.end_callbacks)
    filters = list(warnings.filters)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=9,trace=0,arrivals=0"):
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert model._compiled_call_impl is not before[0] and len(handler.start_callbacks) == len(before[1]) + 1
    assert (model._compiled_call_impl, handler.start_callbacks, handler.end_callbacks) == before
    assert torch._dynamo.decorators._set_stance is own
    assert not any(entry[1] is not None and entry[1].pattern == ABOUT_HOOKS for entry in warnings.filters)
    assert [entry for entry in warnings.filters if entry in filters] == filters  # torch may add some when it compiles


def test_what_the_compiler_tries_while_it_is_imported_is_no_work_of_the_model(monkeypatch):
    class ImportsIt(Net):
        def forward(self, x):
            monkeypatch.setattr(torch._dynamo.__spec__, "_initializing", True, raising=False)
            torch.ones(1) @ torch.ones(1)
            monkeypatch.setattr(torch._dynamo.__spec__, "_initializing", False)
            return super().forward(x)

    monkeypatch.setattr("distprof.counting.count_pass.has_compiler", lambda: False)
    assert distprof.count(ImportsIt(), torch.ones(2, 4)).macs == distprof.count(Net(), torch.ones(2, 4)).macs == 64


def test_an_exception_in_a_compiled_module_is_the_script_s(tmp_path):
    class Raises(Net):
        def forward(self, x):
            if x.shape[0] == 3:
                raise KeyError("inside")
            return super().forward(x)

    model = Raises()
    model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=2,trace=0,arrivals=0"):
        for _ in range(3):
            with pytest.raises(KeyError, match="inside"):
                model(torch.ones(3, 4))
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == "complete" and seen.modules()[""]["calls"] == 2


@pytest.mark.job
@pytest.mark.parametrize("how", ["stance", pytest.param("config", marks=pytest.mark.stress)])
def test_a_job_that_refuses_to_compile_again_ends_as_without_us(tmp_path, how):
    script = SCRIPTS / "compiled_strictly.py"
    plain = torchrun(1, script, how)
    done = command("run", "--nproc-per-node", 1, "--out", tmp_path / "run", "--no-merge", script, how)
    assert plain.returncode == done.returncode == 0, done.stderr
    assert plain.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    assert plain.stdout.startswith("fail_on_recompile" if how == "stance" else "default")
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == "complete" and "compiled::aot_compile" in seen.info["notes"][0]
    assert sum(seen.flops("forward").values()) == 2 * 6 * (8 * 16 + 16 * 4)
