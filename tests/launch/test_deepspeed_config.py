"""`distprof run --config`: the flops_profiler section of a DeepSpeed config file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from distprof.errors import UsageError
from distprof.launch.deepspeed_config import FlopsProfilerSection, read_section
from distprof.recording.plan import StepPlan
from distprof.units import duration, si
from support.jobs import SCRIPTS, called, distprof, run_and_merge

SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range({steps}):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def config(folder: Path, content: object) -> Path:
    path = folder / "ds_config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def job(folder: Path, section: dict, *flags: str, steps: int = 13):
    script = folder / "train.py"
    script.write_text(SCRIPT.format(steps=steps))
    return distprof("run", "--config", config(folder, {"train_batch_size": 4, "flops_profiler": section}), "--out",
                    folder / "run", *flags, script, cwd=folder)


def test_defaults_are_those_of_the_package() -> None:
    constants = pytest.importorskip("deepspeed.profiling.constants", reason="needs deepspeed (distprof[test])")
    section = FlopsProfilerSection()
    for name in FlopsProfilerSection.__struct_fields__:
        assert getattr(section, name) == getattr(constants, f"FLOPS_PROFILER_{name.upper()}_DEFAULT")


def test_the_section_is_read(tmp_path: Path) -> None:
    values = {"enabled": True, "recompute_fwd_factor": 1, "profile_step": 5, "module_depth": 2, "top_modules": 3,
              "detailed": False, "output_file": "x"}
    section = read_section(config(tmp_path, {"zero_optimization": {"stage": 3}, "flops_profiler": values}))
    assert {name: getattr(section, name) for name in values} == values
    assert section.plan() == StepPlan(wait=5)


@pytest.mark.parametrize("content", [{}, {"flops_profiler": {}}, {"flops_profiler": {"profile_step": 9}}])
def test_not_enabled(tmp_path: Path, content: dict) -> None:
    assert read_section(config(tmp_path, content)).plan() == StepPlan()


@pytest.mark.parametrize(("content", "message"), [
    ("{", "is not valid JSON"),
    ("[]", "must hold a JSON object, not"),
    ({"flops_profiler": 3}, "flops_profiler in .* must be an object, not 3"),
    ({"flops_profiler": {"profile_stp": 1}}, r"unknown setting 'profile_stp'.*did you mean 'profile_step'"),
    ({"flops_profiler": {"profile_step": "one"}}, "expected int, got str for profile_step in flops_profiler of"),
    ({"flops_profiler": {"profile_step": -1}}, "must be 0 or more"),
    ({"flops_profiler": {"enabled": 1}}, "expected bool, got int for enabled"),
])
def test_what_is_wrong_is_said(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_section(config(tmp_path, content))


@pytest.mark.parametrize("content", [b'{"name": "\xff"}', b"[" * 100_000])
def test_what_is_not_json_at_all_is_said(tmp_path: Path, content: bytes) -> None:
    path = config(tmp_path, {})
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not valid JSON"):
        read_section(path)


def test_comments_are_read_as_the_package_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(tmp_path, '{\n  // ours\n  "flops_profiler": {"enabled": true, "profile_step": 4},\n}')
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "hjson", None)
        with pytest.raises(UsageError, match="package hjson"):
            read_section(path)
    pytest.importorskip("hjson", reason="needs hjson, which comes with deepspeed (distprof[test])")
    assert read_section(path).plan() == StepPlan(wait=4)


def test_no_such_file(tmp_path: Path) -> None:
    done = called("run", "--config", tmp_path / "none.json", SCRIPTS / "job.py")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.job
def test_a_job_is_reported(tmp_path: Path) -> None:
    done = job(tmp_path, {"enabled": True, "profile_step": 1, "top_modules": 2, "recompute_fwd_factor": 1.0})
    assert done.returncode == 0, done.stderr
    assert "recording steps wait=1,count=1,time=3,trace=6" in done.stderr
    text = done.stdout
    assert "Profile Summary at step 1:" in text
    assert re.search(r"params per GPU: +144 ", text)
    assert re.search(r"fwd MACs per GPU: +512 MACs", text)
    assert re.search(r"fwd flops per GPU: +1\.02 K", text)
    assert re.search(r"batch size per GPU: +4 ", text)
    assert re.search(r"\nbwd FLOPS per GPU = 3 \* fwd flops per GPU / bwd latency: +\S+ \w?FLOPS", text)
    assert "    MACs        - {'Linear': '512 MACs', 'ReLU': '0 MACs'}" in text
    assert re.search(r"""
  \(blocks\): ModuleList\(
    144 = 100% Params, 512 MACs = 100% MACs, .*
    \(0\): Sequential\(
      72 = 50% Params, 256 MACs = 50% MACs, .*
      \(0\): Linear\(72 = 50% Params, 256 MACs""", text)


@pytest.mark.job
def test_both_numbers_of_samples_per_second_are_explained(tmp_path: Path) -> None:
    """The report's is of forward, backward and optimizer alone, that of stats of whole steps, which wait for data."""
    slow = SCRIPT.replace("optimizer.zero_grad()", "optimizer.zero_grad()\n    time.sleep(0.02)")
    (tmp_path / "train.py").write_text(f"import time\n{slow.format(steps=13)}")
    section = {"enabled": True, "detailed": False}
    done = run_and_merge("--config", config(tmp_path, {"flops_profiler": section}), "--out", tmp_path / "run",
                         tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    step = json.loads(distprof("stats", tmp_path / "run", "--json").stdout)["step"]
    ours = f"{si(step['samples_per_second'])} samples/s"
    assert ours in done.stderr, "the summary of the merge"
    reported = float(re.search(r"\nsamples/second: +(\S+)", done.stdout)[1])
    parts = sum(step[name] for name in ("fwd_ns", "bwd_ns", "optimizer_ns"))
    assert reported == pytest.approx(4 / parts * 1e9, rel=1e-3) and reported > 2 * step["samples_per_second"]
    assert done.stdout.endswith(
        "As in DeepSpeed, samples/second leaves out the rest of a step, such as loading data; whole steps take "
        f"{duration(step['time_ns'])}: {ours}.\n")


@pytest.mark.stress
def test_the_report_goes_to_a_file(tmp_path: Path) -> None:
    done = job(tmp_path, {"enabled": True, "detailed": False, "module_depth": 1,
                          "output_file": str(tmp_path / "new" / "profile.txt")}, "--steps", "wait=0,count=1,time=1")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "new" / "profile.txt").read_text()
    assert "DeepSpeed Flops Profiler" in text
    assert "depth 0:" in text
    assert "depth 1:" not in text
    assert "Detailed" not in text
    assert "DeepSpeed" not in done.stdout


@pytest.mark.stress
def test_a_job_that_ends_too_early_keeps_its_exit_code(tmp_path: Path) -> None:
    done = job(tmp_path, {"enabled": True, "profile_step": 50})
    assert done.returncode == 0
    assert "no report: no counted step" in done.stderr


@pytest.mark.stress
def test_a_section_that_is_not_enabled_is_said(tmp_path: Path) -> None:
    done = job(tmp_path, {"profile_step": 5}, "--steps", "wait=0,count=1,time=0,trace=0", steps=2)
    assert done.returncode == 0, done.stderr
    assert "flops_profiler is not enabled" in done.stderr
    assert done.stdout == ""
