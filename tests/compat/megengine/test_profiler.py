"""`Profiler` and `profile`: the documentation's code in torch, files, topics, and what a region may meet."""

from __future__ import annotations

import json
import time
from collections import Counter
from decimal import Decimal
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from distprof.compat.megengine import Profiler, is_profiling, profile, scope
from distprof.compat.megengine.chrome_timeline import topics_of
from distprof.compat.megengine.memory_flow import counters, lifetimes
from distprof.contract.passes import Topic
from distprof.errors import UsageError

NAME = "chrome_timeline.json"


def train_step(data, label, *, optimizer, model):
    logits = model(data)
    loss = F.cross_entropy(logits, label)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """A folder to run in, and the arguments of a step."""
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return tmp_path, ((torch.randn(2, 4), torch.zeros(2, dtype=torch.long)), {"optimizer": optimizer, "model": model})


def events(path) -> list[dict]:
    return json.loads(path.read_text())["traceEvents"]


def names(found, phase: str = "X", category: str | None = None) -> Counter:
    return Counter(event["name"] for event in found if event["ph"] == phase
                   and category in (None, event.get("cat")))


@pytest.mark.parametrize("decorate", [profile(), profile], ids=["called", "bare"])
def test_the_decorator_of_the_documentation(setting, decorate):
    folder, (args, kwargs) = setting
    step = decorate(train_step)
    step(*args, **kwargs)
    found = events(folder / f"profile.{NAME}")
    assert names(found)["aten::addmm"] == 2 and names(found)["aten::mm"] == 3
    assert [event["name"] for event in found if event.get("cat") == "user_annotation"][:4] == [
        "Sequential", "0", "1", "2"]
    assert {event["args"]["Input Dims"][1][1] for event in found if event["name"] == "aten::addmm"} == {4, 8}


def test_the_with_statement_of_the_documentation(setting):
    folder, (args, kwargs) = setting
    with Profiler():
        assert is_profiling()
        train_step(*args, **kwargs)
    assert not is_profiling()
    assert names(events(folder / f"profile.{NAME}"))["aten::addmm"] == 2


def test_the_last_region_stays_in_the_file(setting):
    folder, (args, kwargs) = setting
    profiler = Profiler("here")
    for number in range(3):
        with profiler, scope(f"region {number}"):
            train_step(*args, **kwargs)
    assert names(events(folder / f"here.{NAME}"))["region 0"] == 1
    profiler.dump()
    last = names(events(folder / f"here.{NAME}"))
    assert last["region 2"] == 1 and last["region 1"] == last["region 0"] == 0


def test_it_is_written_when_the_profiler_goes(setting):
    folder, _ = setting
    profiler = Profiler("here")
    for number in range(2):
        with profiler, scope(f"region {number}"):
            pass
    del profiler
    assert names(events(folder / f"here.{NAME}"))["region 1"] == 1


def region(folder, run, **arguments) -> list[dict]:
    with Profiler(str(folder / "topic"), **arguments):
        run()
    return events(folder / f"topic.{NAME}")


def work() -> None:
    module = nn.Linear(4, 4)
    with scope("mine"):
        float(module(torch.randn(2, 4)).sum().detach())


@pytest.mark.parametrize(("topic", "there", "missing"), [
    (Profiler.OPERATOR, {"aten::linear", "aten::item"}, {"Linear", "mine"}),
    (Profiler.SCOPE, {"Linear", "mine"}, {"aten::linear"}),
    (Profiler.SYNC, {"aten::item"}, {"aten::linear", "mine"}),
    (Profiler.TENSOR_PROP, {"aten::item"}, {"aten::linear", "mine"}),
    (Profiler.COMMAND, set(), {"aten::linear", "mine", "aten::item"}),
    (Profiler.SHAPE_INFER, set(), {"aten::linear", "mine", "aten::item"}),
    (Profiler.SCOPE | Profiler.SYNC, {"Linear", "aten::item"}, {"aten::linear"}),
    (Profiler.ALL, {"Linear", "aten::item", "aten::linear"}, set())])
def test_topics_say_what_is_recorded(tmp_path, topic, there, missing):
    found = set(names(region(tmp_path, work, topic=topic)))
    assert there <= found and not missing & found


@pytest.mark.long
def test_shapes_are_inferred_where_torch_compiles(tmp_path):
    doubled = torch.compile(lambda x: (x * 2).sum(), backend="eager")
    # once for 3 elements, once for any number
    found = region(tmp_path, lambda: [doubled(torch.ones(number)) for number in (3, 5, 7)], topic=Profiler.SHAPE_INFER)
    assert names(found)["bytecode_tracing (dynamo_timed)"] == 2
    assert all(name.endswith("(dynamo_timed)") for name in names(found))


def test_lifetimes_of_tensors(tmp_path):
    def two() -> torch.Tensor:
        kept = torch.empty(1000)
        torch.empty(500)
        return kept

    held = []
    found = region(tmp_path, lambda: held.append(two()), topic=Profiler.TENSOR_LIFETIME)
    began = {event["id"]: event for event in found if event["ph"] == "b"}
    ended = {event["id"]: event for event in found if event["ph"] == "e"}
    assert began.keys() == ended.keys()
    assert [(event["args"]["bytes"], event["args"]["freed"]) for event in began.values()] == [(4000, False),
                                                                                             (2000, True)]
    assert not names(found, "C") and not names(found)


def test_memory_is_a_counter(tmp_path):
    found = region(tmp_path, lambda: torch.empty(1000), topic=Profiler.MEMORY)
    first, second = (event["args"]["bytes"] for event in found if event["ph"] == "C")
    assert first - second == 4000 and names(found, "C") == {"cpu_alloc_mem": 2}


def test_each_device_is_sampled_at_its_own_changes():
    def instant(at_ns: int, device: int) -> tuple[int, dict]:
        return at_ns, {"args": {"Device Type": device, "Device Id": device - 1, "Total Allocated": at_ns}, "pid": 1}

    found = counters([instant(at_ns, at_ns % 2) for at_ns in range(8)], every=2)
    assert [(at_ns, event["name"], event["args"]["bytes"]) for at_ns, event in found] == [
        (0, "cpu_alloc_mem", 0), (1, "cuda:0_alloc_mem", 1), (4, "cpu_alloc_mem", 4), (5, "cuda:0_alloc_mem", 5)]


def test_memory_that_is_freed_before_it_was_made():
    def instant(change: int) -> dict:
        return {"args": {"Addr": 8, "Bytes": change, "Device Type": 0, "Device Id": -1}, "pid": 1, "tid": 1}

    found = lifetimes([(30, instant(-4)), (10, instant(-4)), (20, instant(4))])
    assert [(one.start_ns, one.end_ns, one.num_bytes) for one in found] == [(20, 30, 4)]


def test_bits_of_topics_are_those_of_megengine():
    assert [getattr(Profiler, name) for name in (
        "COMMAND", "OPERATOR", "TENSOR_LIFETIME", "TENSOR_PROP", "SYNC", "SCOPE")] == [1, 2, 4, 8, 16, 32]
    assert Profiler.ALL & 63 == 63 and all(one in Profiler.ALL for one in Topic)


@pytest.mark.parametrize(("category", "name", "topic"), [
    ("cuda_runtime", "cudaLaunchKernel", Topic.COMMAND),
    ("cuda_runtime", "cudaStreamSynchronize", Topic.COMMAND | Topic.SYNC),
    ("cuda_runtime", "cudaMemcpyAsync", Topic.COMMAND), ("cuda_driver", "cuLaunchKernel", Topic.COMMAND),
    ("kernel", "gemm", Topic.OPERATOR), ("gpu_memcpy", "Memcpy HtoD", Topic.OPERATOR),
    ("user_annotation", "compile_inner (dynamo_timed)", Topic.SHAPE_INFER), ("Trace", "PyTorch Profiler", Topic(0))])
def test_topics_of_events_of_gpus(category, name, topic):
    assert topics_of(category, name) == topic


def test_times_are_absolute_or_of_the_start(tmp_path):
    before = time.time_ns()
    absolute = region(tmp_path, work)
    after = time.time_ns()
    text = (tmp_path / f"topic.{NAME}").read_text()
    stamps = [event["ts"] for event in json.loads(text, parse_float=Decimal)["traceEvents"] if "ts" in event]
    assert stamps and all(before - 10**6 <= stamp * 1000 <= after for stamp in stamps)
    relative = region(tmp_path, work, align_time=False)
    assert all(-1e3 < event["ts"] < 60e6 for event in relative if "ts" in event)
    start = int(json.loads((tmp_path / f"topic.{NAME}").read_text())["metadata"]["localTime"])
    assert after <= start <= time.time_ns() and len(absolute) > 4


def test_names_of_operators_may_be_hidden(tmp_path):
    found = region(tmp_path, work, show_operator_name=False)
    assert set(names(found, category="cpu_op")) == {"Operator"} and names(found)["mine"] == 1


@pytest.mark.long
def test_the_newer_constructor(tmp_path, monkeypatch):
    import os

    monkeypatch.chdir(tmp_path)
    with Profiler("out", formats=["chrome_timeline.json", "memory_flow.svg"], with_backtrace=True, with_scopes=True,
                  sample_rate=1):
        work()
        assert torch.ones(2, requires_grad=True).grad is None
    found = events(tmp_path / "out" / f"{os.getpid()}.{NAME}")
    shown = names(found)
    assert shown["torch.nn.functional.linear"] == shown["torch.Tensor.sum"] == 1
    assert not [name for name in shown if name.startswith("torch.") and "__get__" in name]
    assert any("test_profiler.py" in name and name.endswith(": work") for name in names(
        found, category="python_function"))
    assert names(found, "C") and names(found, "b")
    drawing = ElementTree.parse(tmp_path / "out" / f"{os.getpid()}.memory_flow.svg").getroot()
    tags = [{name.split("}")[-1]: text for name, text in one.attrib.items()} for one in drawing]
    assert {"type", "name", "address", "size", "produced", "erased", "duration", "group"} <= tags[0].keys()
    assert {int(tag["bytes"]) for tag in tags} >= {64, 32}


@pytest.mark.parametrize(("arguments", "words"), [
    ({"format": "chrome_timline.json"}, "did you mean chrome_timeline.json"), ({"sample_rte": 1}, "sample_rate"),
    ({"topic": 256}, "unknown topic"), ({"topic": "OPERATOR"}, "unknown topic"),
    ({"formats": ["x"]}, "unknown format")])
def test_wrong_arguments(arguments, words):
    with pytest.raises(UsageError, match=words):
        Profiler(**arguments)


def test_one_profiler_at_a_time(tmp_path, capsys):
    with Profiler(str(tmp_path / "outer")):
        with Profiler(str(tmp_path / "inner")):
            work()
        assert is_profiling()
    assert "this region is not profiled" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [f"outer.{NAME}"]


def test_beside_a_profiler_of_the_script(tmp_path, capsys):
    with torch.profiler.profile(), Profiler(str(tmp_path / "inner")):
        work()
    assert "another profiler is running" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_function_that_calls_itself_is_one_region(tmp_path):
    @profile(str(tmp_path / "deep"))
    def deep(number: int) -> None:
        with scope(f"level {number}"):
            if number:
                deep(number - 1)

    deep(2)
    shown = names(events(tmp_path / f"deep.{NAME}"))
    assert [shown[f"level {number}"] for number in range(3)] == [1, 1, 1]


def test_an_exception_of_the_script_passes_and_the_file_is_there(tmp_path):
    with pytest.raises(ZeroDivisionError), Profiler(str(tmp_path / "fails")):
        work()
        1 / 0  # noqa: B018
    assert names(events(tmp_path / f"fails.{NAME}"))["mine"] == 1 and not is_profiling()


def test_a_file_that_cannot_be_written_is_said(tmp_path, capsys):
    (tmp_path / "file").touch()
    with Profiler(str(tmp_path / "file" / "below")):
        work()
    assert "could not write the profile" in capsys.readouterr().err


def test_a_step_is_marked(tmp_path):
    profiler = Profiler(str(tmp_path / "steps"))
    with profiler:
        profiler.step()
        profiler.step()
    assert names(events(tmp_path / f"steps.{NAME}"))["StopStep"] == 2
