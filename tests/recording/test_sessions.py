"""Sessions of the profiler, ours and the script's: none leaves anything open that is written to when it is over."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import distprof
from distprof.launch import worker
from distprof.recording.tracing import timeline
from distprof.recording.tracing.foreign_profiler import ForeignProfiler
from distprof.recording.tracing.profiler_sessions import close_open_slices
from support import forked
from support.freed_memory import environ_that_ends_it
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ
from support.ports import free_port
from support.recording import Recorded, train

TWO = "wait=1,count=0,time=0,trace=2,memory=2,arrivals=0"
SHAPES = ("scheduled", "in_slice", "across_slices", "in_optimizer", "at_once", "later", "earlier")


def quick(first, others):
    return [first, *(pytest.param(one, marks=pytest.mark.stress) for one in others)]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of processes that end where they use memory after it was freed, and a server that forks them."""
    environ = environ_that_ends_it(tmp_path_factory.mktemp("strict"))
    with forked.server_with(environ):
        yield environ


def record(strict: dict[str, str], folder: Path, script: str, *arguments: str, steps: str, ranks: int = 2) -> Path:
    environ = clean_environ() | strict | {
        "DISTPROF_OUT": str(folder / "run"), "DISTPROF_STEPS": steps, "TORCHELASTIC_RUN_ID": "one",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port())}
    started = [forked.popen([sys.executable, worker.__file__, SCRIPTS / script, *arguments], text=True,
                            stderr=subprocess.PIPE, env=environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
               for rank in range(ranks)]
    told = [one.communicate(timeout=PATIENCE_S)[1] for one in started]
    assert [one.returncode for one in started] == [0] * ranks, told
    return folder / "run"


@pytest.mark.job
@pytest.mark.parametrize("how", quick("across_slices", [one for one in SHAPES if one != "across_slices"]))
def test_the_script_s_own_profiler_begins_and_ends_anywhere(strict, tmp_path, how):
    record(strict, tmp_path, "own_profiler.py", how, steps="wait=1,count=0,time=0,trace=12,arrivals=0", ranks=1)


@pytest.mark.job
@pytest.mark.stress
@pytest.mark.parametrize("how", [how for how in SHAPES if how != "in_optimizer"])  # DDP still ends there, as without us
@pytest.mark.parametrize("options", [(), ("profile_memory=1", "with_stack=1", "record_shapes=1")])
def test_the_script_s_own_profiler_and_both_of_our_sessions(strict, tmp_path, how, options):
    record(strict, tmp_path, "own_profiler.py", how, *options,
           steps="wait=1,count=1,time=1,trace=3,memory=3,arrivals=2")


@pytest.mark.job
@pytest.mark.parametrize("how", quick("collective", ["single"]))
def test_communication_that_goes_on_behind_a_session(strict, tmp_path, how):
    run = record(strict, tmp_path, "crossing.py", how, steps="wait=1,count=0,time=0,trace=2,arrivals=3")
    for rank in range(2):
        assert (run / f"rank{rank:05d}" / "trace.json.gz").exists(), "it was written when that had ended"


@pytest.mark.job
@pytest.mark.stress
def test_communication_that_goes_on_behind_the_recording(strict, tmp_path):
    run = record(strict, tmp_path, "crossing.py", "single", steps="wait=1,count=0,time=0,trace=2,arrivals=0")
    notes = json.loads((run / "rank00000" / "rank.json").read_text())["notes"]
    assert any("communication is still in flight after the recorded steps" in note for note in notes)


@pytest.mark.job
@pytest.mark.stress
def test_trace_and_memory_in_many_jobs(strict, tmp_path):
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        record(strict, tmp_path / str(number), "job.py", "plain", steps=TWO)


@pytest.mark.long
def test_trace_and_memory_in_one_recording(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    found = train(tmp_path / "run", model, lambda: torch.ones(2, 4), steps=TWO, num_steps=5)
    assert found.info["passes"] | {"trace": 2, "memory": 2} == found.info["passes"]
    assert {"trace.json.gz", "memory.json.gz"} <= {file.name for file in found.folder.iterdir()}
    assert set(found.table("events")["step"].drop_nulls()) == {1, 2}
    assert found.table("tensors").height


def test_a_slice_that_was_closed_here_is_closed_again_by_its_script():
    with torch.profiler.profile() as first:
        slice_ = record_function("open")
        slice_.__enter__()
        close_open_slices()
    with torch.profiler.profile() as second:
        slice_.__exit__(None, None, None)
        torch.ones(1)
    assert [event.count for event in first.key_averages() if event.key == "open"] == [1]
    assert "open" not in {event.key for event in second.key_averages()}


@pytest.mark.parametrize("around", [nullcontext, lambda: record_function("iteration")])
def test_no_session_follows_one_that_ended_inside_of_torch(tmp_path, around):
    model = nn.Linear(4, 4)
    with distprof.record(tmp_path / "run", steps=TWO):
        for _ in range(7):
            with around():
                checkpoint(model, torch.ones(2, 4, requires_grad=True), use_reentrant=True)
    found = Recorded(tmp_path / "run")
    why = "the previous profiler session ended inside CheckpointFunction"
    assert f"no timeline is recorded: {why}" in found.info["notes"]
    assert {file.name for file in found.folder.iterdir()} & {"trace.json.gz", "memory.json.gz"} == {"trace.json.gz"}


@contextmanager
def hooks_of_the_script():
    handles = [register(lambda *_: None) for register in
               (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def test_hooks_of_the_script_behind_ours_are_no_trouble(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=1,count=0,time=1,trace=0"), hooks_of_the_script():
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert Recorded(tmp_path / "run").info["status"] == "complete"


@pytest.mark.long
def test_what_is_open_when_the_profiler_stops_ends_with_the_last_step(tmp_path):
    """The search for open slices, which takes as long as there are objects, is in none of them."""
    kept = [[number] for number in range(300_000)]
    found = train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.ones(2, 4), num_steps=7,
                  steps="wait=1,count=0,time=0,trace=3,arrivals=2")
    assert len(kept) == 300_000
    last_ns = found.table("steps").filter(pl.col("pass") == "trace")["end_ns"].max()
    events = found.table("events").with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    of_steps = events.filter(pl.col("name").cast(pl.String).str.starts_with("Optimizer.step")).sort("start_ns")
    assert len(of_steps) == 3 and of_steps["end_ns"][-1] == last_ns
    host = pl.col("category").cast(pl.String).is_in(["cpu_op", "user_annotation"])
    assert events.filter(host)["end_ns"].max() == last_ns
    text = json.loads(gzip.decompress((found.folder / "trace.json.gz").read_bytes()))
    written = [event["dur"] for event in text["traceEvents"] if event["name"].startswith("Optimizer.step")]
    assert sorted(round(1000 * dur) for dur in written) == sorted(of_steps["duration_ns"].to_list())


def test_what_is_open_when_the_timeline_of_memory_stops_ends_with_the_last_step(tmp_path):
    found = train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.ones(2, 4), num_steps=7,
                  steps="wait=1,count=0,time=0,memory=3,trace=0,arrivals=2")
    last_ns = found.table("steps").filter(pl.col("pass") == "memory")["end_ns"].max()
    text = json.loads(gzip.decompress((found.folder / "memory.json.gz").read_bytes()))
    own = [event for event in text["traceEvents"] if event["tid"] == threading.get_native_id() and "dur" in event]
    ends = [text["baseTimeNanoseconds"] + round(1000 * event["ts"]) + round(1000 * event["dur"]) for event in own]
    assert max(ends) == last_ns
    assert sum(event["name"].startswith("Optimizer.step") for event in own) == 3


@pytest.mark.parametrize(("cuda", "asked", "found"), [
    (None, None, None), ("12.4", None, None), ("12.6", None, "1"), ("13.0", None, "1"), ("13.0", "0", "0")])
def test_cupti_is_detached_where_that_is_safe_unless_the_user_decided(monkeypatch, cuda, asked, found):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(timeline.os, "environ", {} if asked is None else {"TEARDOWN_CUPTI": asked})
    timeline.detach_at_end()
    assert timeline.os.environ.get("TEARDOWN_CUPTI") == found


@pytest.mark.parametrize(("wrapped", "other"), [("_prepare_trace", "__exit__"), ("__exit__", "_prepare_trace")])
def test_where_the_script_has_wrapped_a_method_the_other_is_restored_and_nothing_of_ours_runs(
        monkeypatch, wrapped, other):
    kind, heard = torch.autograd.profiler.profile, []
    before = getattr(kind, other)
    for name in (wrapped, other):
        monkeypatch.setattr(kind, name, getattr(kind, name))  # as it is, again after the test
    foreign = ForeignProfiler(lambda: heard.append("begins"), lambda: heard.append("ends"))
    foreign.start()
    ours = getattr(kind, wrapped)
    setattr(kind, wrapped, lambda *arguments: ours(*arguments))
    with kind():
        assert foreign.is_active()
    assert heard == ["begins", "ends"]
    foreign.stop()
    with kind() as theirs:
        torch.ones(2)
    assert getattr(kind, other) is before and len(heard) == 2 and not foreign.is_active()
    assert any(event.name == "aten::ones" for event in theirs.function_events)
