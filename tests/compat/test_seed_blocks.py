"""Code of the documents that the drop-ins stand in for runs as printed, with imports from the drop-ins."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import distprof.compat.deepspeed.profiling.flops_profiler.profiler as flops_profiler
from distprof.compat.deepspeed import FlopsProfiler, accelerator, get_model_profile
from distprof.compat.fvcore.nn import FlopCountAnalysis, flop_count_table
from distprof.compat.megengine import profile_analyze, trace
from support import forked, zoo
from support.chakra_tools import chakra, has_chakra
from support.execution_traces import read_et
from support.fork_server import SPAWNED
from support.jobs import PATIENCE_S, clean_environ, distprof
from support.ports import free_port
from support.seed_blocks import ALSO, CODE, blocks, code, document, needs_seeds, printed

IMPORTS = {
    "from deepspeed.profiling.flops_profiler import FlopsProfiler":
        "from distprof.compat.deepspeed.profiling.flops_profiler import FlopsProfiler",
    "from deepspeed.profiling.flops_profiler import get_model_profile":
        "from distprof.compat.deepspeed.profiling.flops_profiler import get_model_profile",
    "from deepspeed.accelerator import get_accelerator":
        "from distprof.compat.deepspeed.accelerator import get_accelerator",
    "from fvcore.nn import FlopCountAnalysis": "from distprof.compat.fvcore.nn import FlopCountAnalysis",
    "from megengine.utils.profiler import profile, Profiler": "from distprof.compat.megengine import profile, Profiler",
    "from transformers import BertForSequenceClassification, BertTokenizer":
        "from support.random_bert import BertForSequenceClassification, BertTokenizer",
}
"""Import line of a document -> what replaces it."""


def run(name: str, **names) -> dict:
    """Names after a block, which knows these before it."""
    exec(compile(code(name, IMPORTS), name, "exec"), names)
    return names


@needs_seeds
@pytest.mark.parametrize("name", blocks())
def test_a_block_is_that_of_its_document(name):
    for number in {name[:3], ALSO.get(name, name[:3])}:
        assert printed(name).search(document(number))


@needs_seeds
@pytest.mark.parametrize("number", ["000", "001", "002", "003", "004"])
def test_no_code_of_a_document_is_missing(number):
    text = document(number)
    for name in sorted(blocks(), key=lambda name: -len(code(name))):  # some are parts of others
        if number in (name[:3], ALSO.get(name)):
            text = printed(name).sub("\n", text)
    assert CODE.search(text) is None
    assert CODE.search(document(number)) is not None, "so that the pattern finds code"


def test_every_line_of_the_table_is_of_a_block():
    lines = [line for name in blocks() for line in code(name).splitlines()]
    assert set(IMPORTS) <= set(lines)
    changed = [line for line in lines if re.match(r"from (deepspeed|fvcore|megengine)\b", line)]
    assert set(changed) < set(IMPORTS)


def test_names_are_where_deepspeed_has_them():
    assert flops_profiler.FlopsProfiler is FlopsProfiler and flops_profiler.get_model_profile is get_model_profile
    found = accelerator.get_accelerator()
    assert found.device_count() >= 1 and found.is_available()
    with found.device(0):
        found.synchronize()
        assert found.current_device() == 0
    assert torch.ones(1, device=found.device_name(0)).device == torch.device(found.current_device_name())


class Loss(nn.Module):
    """A model whose result is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        return self.layers(batch).square().mean()


@pytest.mark.parametrize("name", ["000-workflow", "001-deepspeed"])
def test_a_training_is_profiled(name, capsys):
    model = Loss()
    names = run(name, Model=lambda: model, FlopsProfiler=FlopsProfiler, profile_step=5,
                data_loader=[torch.rand(2, 4) for _ in range(7)], optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert names["step"] == 6
    macs, params = 2 * (4 * 8 + 8), 4 * 8 + 8 + 8 + 1
    assert (names["flops"], names["params"]) == (("176 ", "49") if name == "000-workflow" else (2 * macs + 16, params))
    shown = capsys.readouterr().out
    assert "Profile Summary at step 5:" in shown and re.search(r"fwd MACs per GPU: +80 MACs", shown)
    assert "Linear(40 = 81.63% Params" in shown


ALEXNET = {"macs": 714_188_480 * 256, "params": "61.1 M"}
"""MACs of an image, by torchvision's documentation 0.71 GFLOPS; 61,100,840 parameters."""


@pytest.mark.parametrize("name", ["000-alexnet", "004-alexnet"])
@pytest.mark.parametrize("device", ["meta", pytest.param("cpu", marks=pytest.mark.stress)])
def test_alexnet(name, device, capsys):
    """On meta nothing is computed: 256 images through 11 calls take a minute on a CPU."""
    zoo.torchvision_model("alexnet")  # skips without torchvision
    import torchvision

    with torch.device("meta") if device == "meta" else contextlib.nullcontext():
        names = run(name, torchvision=torchvision, get_model_profile=get_model_profile)
    assert (names["macs"], names["params"]) == ("182.83 GMACs", ALEXNET["params"])
    assert float(names["macs"].split()[0]) == round(ALEXNET["macs"] / 1e9, 2)
    assert "AlexNet(" in capsys.readouterr().out


@pytest.mark.long
def test_bert(capsys):
    pytest.importorskip("transformers")
    zoo.torchvision_model("alexnet")  # transformers imports torchvision, whose operators it defines
    names = run("004-bert")
    tokens, layers, wide, inner = 4 * 128, 12, 768, 3072
    linear = layers * tokens * (4 * wide * wide + 2 * wide * inner)
    attention = layers * 2 * tokens * 128 * wide
    head = 4 * (wide * wide + wide * 2)
    assert names["macs"] == f"{round((linear + attention + head) / 1e9, 2)} GMACs"
    assert names["params"] == "109.48 M"
    assert "BertForSequenceClassification(" in capsys.readouterr().out


class Columns(nn.Linear):
    """A linear layer that calls `addmm`, as all did when fvcore's documentation was written."""

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight.t())


class LeNet(nn.Module):
    """The network of torch's tutorial, which fvcore's documentation counts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 16, 3)
        self.fc1, self.fc2, self.fc3 = Columns(16 * 6 * 6, 120), Columns(120, 84), Columns(84, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))


def test_fvcore_counts_what_the_document_prints():
    names = run("001-fvcore", model=LeNet(), input=torch.rand(1, 1, 32, 32), Counter=Counter)
    shown = [eval(statement, names) for statement in _expressions("001-fvcore")]
    assert shown[0] == 274_656 and len(shown) == 7
    for found, expected in zip(shown[1::2], shown[2::2], strict=True):
        assert found == expected


def _expressions(name: str) -> list[str]:
    return [ast.unparse(one) for one in ast.parse(code(name, IMPORTS)).body if isinstance(one, ast.Expr)]


def test_the_table_of_fvcore(capsys):
    run("001-table", model=LeNet(), inputs=torch.rand(1, 1, 32, 32), FlopCountAnalysis=FlopCountAnalysis,
        flop_count_table=flop_count_table)
    assert re.search(r"\| +model +\| +81\.194K +\| +0\.275M +\|", capsys.readouterr().out)


def test_times_and_parameters(capsys, monkeypatch):
    monkeypatch.setattr(random, "randint", lambda *_: 1)
    run("001-time")
    assert float(capsys.readouterr().out.split()[-1]) >= 0.1
    run("001-parameters")["calc_param"](nn.Linear(1024, 255, bias=True))
    assert capsys.readouterr().out == f"{(1024 * 255 + 255) * 4 / 1024 / 1024} MB\n"
    assert run("001-throughput", time=time, run_num=3, model=nn.Linear(2, 2), data=torch.rand(1, 2))["infer_thro"] > 0


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_the_profiler_of_torch(capsys):
    model = nn.Linear(2, 2)
    run("001-both", torch=torch, code_to_profile=lambda: model(torch.rand(1, 2)))
    assert "aten::addmm" in capsys.readouterr().out


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@needs_cuda
@pytest.mark.filterwarnings("ignore:`use_cuda` is deprecated")
def test_what_needs_cuda(capsys):
    model = nn.Linear(2, 2).cuda()
    data = torch.rand(1, 2, device="cuda")
    run("001-profiler", torch=torch, profile=profile, ProfilerActivity=ProfilerActivity,
        record_function=record_function, model=model, input_data={"ego": data})
    names = run("001-events", torch=torch, np=np)
    assert names["inference_throughput_cuda_event"](model, data) > 0
    assert "CPU time sorted operators:" in capsys.readouterr().out


class Gradients:
    """MegEngine's `GradManager`, as far as the document uses it."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def backward(self, loss):
        loss.backward()


class Sgd:
    """MegEngine's optimizer, whose `step` returns it."""

    def __init__(self, model):
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(self):
        self.optimizer.step()
        return self

    def clear_grad(self):
        self.optimizer.zero_grad()


F = SimpleNamespace(loss=functional)


def trained(step) -> tuple[float, float]:
    """The losses of two steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    given = {"optimizer": Sgd(model), "gm": Gradients(), "model": model}
    data, label = torch.rand(4, 3, 16, 16), torch.arange(4)
    return step(data, label, **given).item(), step(data, label, **given).item()


def test_the_steps_of_megengine(tmp_path, monkeypatch):
    """Each way to write it trains alike; the profile is where the document says."""
    monkeypatch.chdir(tmp_path)
    plain = trained(run("002-plain", F=F)["train_step"])
    assert plain[1] < plain[0]
    assert trained(run("002-trace", F=F, trace=trace)["train_step"]) == plain
    assert trained(run("002-profile", F=F)["train_step"]) == plain
    events = json.loads((tmp_path / "profile.chrome_timeline.json").read_text())["traceEvents"]
    assert any("conv" in event["name"].lower() for event in events)


def test_the_static_graph_of_megengine(tmp_path, monkeypatch, capsys):
    """The dump is made by the first block, and analysed by the commands of the second."""
    monkeypatch.chdir(tmp_path)
    definition, _, rest = code("002-profiling").partition("...")
    names: dict = {"F": F, "trace": trace, "json": json}
    exec(definition, names)
    trained(names["train_step"])
    exec(f"...{rest}", names | {"train_func": names["train_step"]})
    shown = []
    for line in code("002-analyze").splitlines():
        if not line.startswith("#"):
            program, _, module, *words = line.split()
            assert (program, module) == ("python3", "megengine.tools.profile_analyze")
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
                profile_analyze.main(words)
            shown.append(out.getvalue())
    assert shown[0].startswith("usage:") and "ConvolutionForward" in shown[1] + shown[2]
    assert "Elemwise" not in shown[3]


def run_program(name: str, folder: Path, replaced: tuple[str, str] = ("", ""), run=forked.run) -> list[str]:
    """The lines that a program of a document prints."""
    assert replaced[0] in code(name)
    (folder / f"{name}.py").write_text(code(name).replace(*replaced))
    done = run([sys.executable, f"{name}.py"], cwd=folder, env=clean_environ() | {SPAWNED: "1"},
               timeout=PATIENCE_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def slices(trace: dict) -> int:
    return sum(event["ph"] == "X" for event in trace["traceEvents"])


@pytest.mark.job
def test_the_network_of_the_article(tmp_path):
    """Its trace and execution trace, which torch completes when Python ends, are one graph that Chakra's tools read."""
    lines = run_program("003-network", tmp_path, run=subprocess.run)
    assert [line.split(",")[0] for line in lines[:3]] == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]
    done = distprof("export", tmp_path, "--out", tmp_path / "et")
    assert done.returncode == 0, done.stderr
    exported, = (tmp_path / "et").glob("*.et")
    given = json.loads((tmp_path / "nn_demo_et.json").read_text())["nodes"]
    assert len(read_et(exported)[1]) > 0.9 * len(given)
    if has_chakra():
        chakra("converter", *code("003-convert").split()[1:], cwd=tmp_path)
        chakra("visualizer", *code("003-visualize").replace(".pdf", ".graphml").split()[1:], cwd=tmp_path)


@pytest.mark.job
def test_the_four_ranks_of_the_article(tmp_path):
    """Our merge has each slice that the article's script merges."""
    lines = run_program("003-ddp", tmp_path, ("29500", str(free_port())))
    assert len(lines) == 3 and lines[-1].startswith("Rank 0, Epoch 3/3, Loss: ")
    assert {path.name for path in tmp_path.glob("nn_*")} == {
        f"nn_ddp_demo_{kind}_r{rank}.json" for kind in ("et", "trace") for rank in range(4)}
    run_program("003-merge", tmp_path)
    theirs = json.loads((tmp_path / "merge_trace.json").read_text())
    (tmp_path / "merge_trace.json").unlink()
    done = distprof("merge", tmp_path, "--out", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    assert f"4 of 4 ranks, {slices(theirs)} slices" in done.stdout
    comms = distprof("comms", tmp_path, "--json")
    assert comms.returncode == 0, comms.stderr
    assert {(one["op"], one["num_ranks"]) for one in json.loads(comms.stdout)["kinds"]} == {
        ("all_reduce", 4), ("broadcast", 4)}
