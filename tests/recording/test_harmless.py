"""The training job is left alone: results bitwise equal, nothing left behind, failures of ours swallowed."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import signal
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import distprof
from support import forked
from support.jobs import EXAMPLES, called, clean_environ
from support.left_behind import traces_of_us
from support.models import Inplace
from support.recording import Recorded, train


@pytest.fixture(autouse=True)
def one_thread_and_no_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process loads torch's compiler, which sets a variable
    yield
    torch.set_num_threads(before)


def transformer() -> nn.Module:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from train_ddp import Transformer
    finally:
        sys.path.remove(str(EXAMPLES))
    return Transformer(vocabulary=50, width=32, heads=2, depth=2, length=16)


def losses_and_gradients(record) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen: list[torch.Tensor] = []
    with record:
        for _ in range(13):
            loss = nn.functional.cross_entropy(model(torch.randint(50, (4, 16))).flatten(0, 1),
                                               torch.randint(50, (64,)))
            optimizer.zero_grad()
            loss.backward()
            seen += [loss.detach().clone(), *(parameter.grad.clone() for parameter in model.parameters())]
            optimizer.step()
    return seen


@pytest.mark.long
def test_losses_and_gradients_are_bitwise_equal(tmp_path):
    from contextlib import nullcontext

    plain = losses_and_gradients(nullcontext())
    recorded = losses_and_gradients(distprof.record(tmp_path / "run"))
    assert Recorded(tmp_path / "run").info["status"] == "complete"
    assert len(plain) == len(recorded) > 100
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))


OF_THE_WATCH = {"global optimizer hooks", "global module hooks", "GradScaler.step", "data loaders",
                "warning filters", "the garbage collector"}


@pytest.mark.parametrize("last", ["count", "time", "sync", "trace"])
def test_nothing_is_left_after_the_last_pass_and_nothing_is_there_before(tmp_path, last):
    before = traces_of_us()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    off = {"count": 0, "time": 0, "trace": 0, "arrivals": 0} | {last: 1}
    with distprof.record(tmp_path / "run", steps="wait=1," + ",".join(f"{k}={v}" for k, v in off.items())) as rec:
        for step in range(4):
            model(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
            assert rec.recording == (step < 1)
            if step == 0:
                assert traces_of_us() != before
            if step >= 1:
                assert traces_of_us().keys() == before.keys()
                left = {name for name, seen in traces_of_us().items() if seen != before[name]}
                assert left <= OF_THE_WATCH, "still inside `with`, but the last pass is over"
    assert traces_of_us() == before


@pytest.mark.parametrize("reason", ["count", "time", "sync", "trace"])
def test_nothing_is_left_after_the_script_raises_in_a_pass(tmp_path, reason):
    before = traces_of_us()
    off = {"count": 0, "time": 0, "trace": 0} | {reason: 9}
    with pytest.raises(KeyError):
        train_and_raise(tmp_path / "run", ",".join(f"{k}={v}" for k, v in off.items()))
    assert traces_of_us() == before
    why = Recorded(tmp_path / "run").info["why"]
    assert re.fullmatch(r"KeyError in the script \(test_harmless\.py:\d+\) after 2 of 9 steps", why)


def train_and_raise(run: Path, steps: str) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(run, steps=f"wait=0,{steps}"):
        for step in range(9):
            model(torch.zeros(2, 4)).sum().backward()
            if step == 2:
                raise KeyError
            optimizer.step()


@pytest.mark.long
def test_a_failure_of_ours_is_one_line_and_training_goes_on(tmp_path, monkeypatch, capfd):
    before = traces_of_us()
    monkeypatch.setattr("distprof.counting.count_pass.formulas.cost", lambda *_: 1 / 0)
    model = Inplace()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run"):
        for _ in range(9):
            model(torch.zeros(2, 4))["out"].sum().backward()
            optimizer.step()
    assert traces_of_us() == before
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    assert lines == ["distprof: rank 0: recording stopped, training continues: ZeroDivisionError: division by zero"]
    kept = weakref.ref(optimizer)
    del optimizer, model
    gc.collect()
    assert kept() is None


WRITES = """
import os, signal, sys, time
import torch
import distprof
from distprof.recording.run_directory import RankFolder

run, status, handled = sys.argv[1:]
sent, write = [], RankFolder.write_rank
if handled == "handled":
    signal.signal(signal.SIGTERM, lambda *_: print("handled"))

def interrupted(self, rank):
    if rank.status == status and rank.num_steps and not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # the signal is noticed in here
    write(self, rank)

RankFolder.write_rank = interrupted
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with distprof.record(run, steps="wait=0,count=1,time=1,trace=0"):
    for _ in range(3):
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()
print("done")
"""


@pytest.mark.job
@pytest.mark.parametrize(("status", "written"), [("recording", "partial"), ("complete", "complete")])
@pytest.mark.parametrize("handled", [False, True])
def test_a_sigterm_during_a_write_comes_after_the_files(tmp_path, status, written, handled):
    """The signal is neither lost nor does it cut the write short; where the script handles it, it goes on."""
    done = forked.run([sys.executable, "-c", WRITES, tmp_path / "run", status, "handled" if handled else "-"],
                      capture_output=True, text=True, check=False, env=clean_environ())
    assert done.stderr == ""
    assert (done.returncode, done.stdout) == ((0, "handled\ndone\n") if handled else (-signal.SIGTERM, ""))
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == ("complete" if handled else written)
    assert seen.modules()[""]["fwd_flops"] == 2 * 2 * 16


def profiled_by_the_script(first: int, last: int, number: int, how: str) -> torch.profiler.profile:
    """A training loop that profiles some of its steps by itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.profiler.schedule(wait=first - 1, warmup=1, active=last - first + 1, repeat=1)
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True,
                                    schedule=schedule if how == "schedule" else None)
    if how == "schedule":
        theirs.start()
    for step in range(number):
        if how == "by hand" and step == first:
            theirs.start()
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()
        if how == "schedule":
            theirs.step()
        elif step == last:
            theirs.stop()
    if how == "schedule":
        theirs.stop()
    return theirs


def counts(profile: torch.profiler.profile) -> dict[str, int]:
    return {event.key: event.count for event in profile.key_averages()}


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 7))
@pytest.mark.parametrize("how", ["by hand", "schedule"])
def test_the_script_s_own_profile_is_as_without_us_and_the_plan_goes_on_behind_it(tmp_path, capfd, first, how):
    """Whichever pass it comes across."""
    gc.collect()
    gc.freeze()  # an optimizer that another test left alive would make it unsure which one ends a step
    plain = counts(profiled_by_the_script(first, first + 1, 12, how))
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=2,trace=2,arrivals=0"):
        ours = counts(profiled_by_the_script(first, first + 1, 12, how))
    assert ours == plain
    seen = Recorded(tmp_path / "run")
    warmup = [first - 1] if how == "schedule" else []
    profiled = [step for step in seen.info["profiled_steps"] if step not in warmup]
    assert profiled == ([first, first + 1] if first - len(warmup) < 6 else []), "at the sixth all was recorded"
    cut = 1 if first - len(warmup) == 5 else 0  # a timeline is one session: it is not resumed
    assert seen.info["passes"] == {"wait": 1 + len(seen.info["profiled_steps"]) + cut, "count": 1, "time": 2,
                                   "trace": 2 - cut, "arrivals": 0}
    assert seen.info["status"] == "complete" and seen.modules()[""]["fwd_flops"] == 2 * 2 * (16 + 16)
    traced = seen.table("events")
    assert traced.filter(traced["name"] == "aten::addmm")["step"].n_unique() == 2 - cut
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("distprof: ")]
    assert len(told) == (1 + cut if profiled else 0), told
    assert [line.partition("rank: ")[2] for line in told[1:]] == ["1 of trace"] * cut
    assert ("torch.profiler in step" in called("stats", tmp_path / "run").stdout) == bool(seen.info["profiled_steps"])


def test_a_script_that_is_profiled_to_its_end_has_its_events_and_we_say_that_nothing_was_recorded(tmp_path):
    with torch.profiler.profile(acc_events=True) as theirs:
        train(tmp_path / "plain", nn.Linear(4, 4), lambda: torch.zeros(2, 4))
    assert any(event.key == "aten::addmm" for event in theirs.key_averages())
    info = json.loads(next((tmp_path / "plain").glob("rank00000*/rank.json")).read_text())
    assert info["status"] == "partial" and "4 of them under the script's own profiler" in info["why"]
    assert info["profiled_steps"] == [0, 1, 2, 3]


class Doubles(TorchDispatchMode):
    """A mode of the script's own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_script_that_outlives_the_count_pass_is_not_popped(tmp_path, capfd):
    model, theirs = nn.Linear(4, 4), Doubles()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=1,trace=1"):
        for step in range(4):
            if step == 1:
                theirs.__enter__()
            model(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
    assert torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1) is theirs
    theirs.__exit__(None, None, None)
    while torch._C._len_torch_dispatch_stack():  # ours lies below theirs and cannot be taken out; it does nothing
        torch._C._pop_torch_dispatch_stack(None)
    assert "training continues: RuntimeError: a torch dispatch mode" in capfd.readouterr().err


@pytest.mark.long
def test_forked_data_loader_workers_write_nothing(tmp_path):
    data = [torch.zeros(4) for _ in range(8)]
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=1,trace=1"):
        for batch in DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork"):
            model(batch).sum().backward()
            optimizer.step()
    assert Recorded(tmp_path / "run").info["status"] == "complete"
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith("rank")] == ["rank00000"]


def test_the_events_of_the_trace_pass_are_freed_without_the_garbage_collector(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    gc.disable()
    try:
        with distprof.record(tmp_path / "run", steps="wait=1,count=0,time=1,trace=1,arrivals=1"):
            for _ in range(6):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            kept = [one for one in gc.get_objects() if isinstance(one, torch.profiler.profile) and one.profiler]
    finally:
        gc.enable()
    assert not kept and Recorded(tmp_path / "run").info["passes"]["trace"] == 1


@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_that_is_forked_after_the_trace_pass_exits(tmp_path, capfd):
    """`exit` of the C library, as `sys.exit` calls it: the destructor of Kineto's thread would wait forever."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=1,count=0,time=1,trace=1"):
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    child = os.fork()
    if not child:
        libc = ctypes.CDLL(None)
        libc.puts(b"flushed")
        libc.exit(7)
    for _ in range(300):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("it still runs")
    assert os.waitstatus_to_exitcode(status) == 7
    assert capfd.readouterr().out.endswith("flushed\n")
