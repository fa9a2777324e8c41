"""Two runs of different jobs, or recorded by different passes: what is compared, and what stands on top."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from support.differing_runs import simulated
from support.jobs import called
from support.recording import train
from support.simulator import device_job
from support.simulator.device_job import DeviceJob, Slow

PLAN = "wait=1,count=1,time=6,trace=0,arrivals=0"


def diff(*arguments: object) -> dict:
    done = called("diff", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def trained(path: Path, batch: int, dtype: torch.dtype = torch.float32) -> Path:
    train(path, nn.Sequential(nn.Linear(16, 16), nn.ReLU()).to(dtype), lambda: torch.ones(batch, 16, dtype=dtype),
          steps=PLAN, num_steps=9)
    return path


@pytest.mark.long
def test_the_gate_on_flops_compares_per_sample(tmp_path):
    base, new = trained(tmp_path / "base", 80), trained(tmp_path / "new", 96)
    done = called("diff", "--fail-if", "flops > 1 %", base, new)
    assert done.returncode == 0 and "flops changed by +0 %, within the limit" in done.stdout, done.stdout
    assert "equal: " in done.stdout and "FLOPs per sample" in done.stdout
    assert "these are two different jobs: samples per step of a rank 80 -> 96" in done.stdout


@pytest.mark.long
def test_other_types_are_another_job(tmp_path):
    done = called("diff", trained(tmp_path / "base", 8), trained(tmp_path / "new", 8, torch.float64))
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("these are"))
    assert "parameter types float32 -> float64" in line and "types of products float32 -> float64" in line


@pytest.mark.long
def test_another_world_size_and_more_collectives_are_the_headline(tmp_path):
    base, new = simulated(tmp_path / "a", 1, ranks=2), simulated(tmp_path / "b", 1, ranks=4, shape="fsdp")
    first = called("diff", base, new).stdout.splitlines()[2]
    assert first.startswith("these are two different jobs: ranks 2 -> 4; ")
    assert "collectives per step of a rank " in first
    assert "two different jobs" not in called("diff", base, simulated(tmp_path / "c", 2, ranks=2)).stdout


@pytest.mark.parametrize("launch_ns", [6_000, 2_500_000])
def test_what_kernels_of_a_module_take_does_not_depend_on_the_host(tmp_path, monkeypatch, launch_ns):
    base = DeviceJob(num_ranks=2, untraced=4, noise=0.001).write(tmp_path / "base")
    step_of = DeviceJob._step

    def profiled(job: DeviceJob, ranks: Sequence, step: int, scale: object) -> None:
        """A profiler makes the host slow in the first steps: with 2.5 ms, the device waits for it."""
        monkeypatch.setattr(device_job, "LAUNCH_NS", launch_ns if step < job.steps - job.untraced else 6_000)
        step_of(job, ranks, step, scale)

    monkeypatch.setattr(DeviceJob, "_step", profiled)
    slow = [Slow(rank, "forward", 2, 1_000_000) for rank in range(2)]
    new = DeviceJob(num_ranks=2, untraced=4, noise=0.001, slow=slow, seed=1).write(tmp_path / "new")
    found = diff(base, new)
    grown = {row["module"]: row["change"]["difference"] for row in found["modules"]["rows"]}
    assert grown.pop("layers.2") == pytest.approx(1e6, rel=0.02)
    assert max(map(abs, grown.values())) < 50_000
    parts = {row["part"]: row["change"] for row in found["parts"]["rows"]}
    assert parts["forward"]["difference"] == pytest.approx(1e6, rel=0.05)
    assert abs(parts["backward"]["difference"]) < 50_000 and abs(parts["optimizer"]["difference"]) < 50_000
    assert sum(one["difference"] for one in parts.values()) == pytest.approx(
        found["step_time"]["difference"] - found["parts"]["rest_ns"])


def recorded_by(run: Path, folder: Path, passes: Sequence[str]) -> Path:
    """The run as if its last steps had been of these passes, a step each, and took 10 ms longer in arrivals."""
    shutil.copytree(run, folder)
    for file in folder.glob("rank*/steps.parquet"):
        table = pl.read_parquet(file)
        named = pl.Series([None] * (len(table) - len(passes)) + list(passes), dtype=pl.String)
        longer = pl.when(named == "arrivals").then(10_000_000).otherwise(0)
        table.with_columns(pl.coalesce(named, pl.col("pass")).alias("pass"),
                           pl.col("duration_ns") + longer).write_parquet(file)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return simulated(tmp_path_factory.mktemp("run") / "run", 1, ranks=2, steps=20)


@pytest.mark.long
def test_both_sides_are_from_equal_passes(run, tmp_path):
    base = recorded_by(run, tmp_path / "base", ["time"] * 5)
    new = recorded_by(run, tmp_path / "new", ["arrivals"] * 5 + ["time"] * 5)
    found = diff(base, new)
    assert found["step_passes"] == ["time"] and found["step_time"]["difference"] == 0
    assert "(5 steps of the time pass, which all runs have)" in called("diff", base, new).stdout
    assert diff(new, new)["step_passes"] == ["time", "arrivals"]
    with_profiler = diff(run, base)
    assert with_profiler["step_passes"] == ["trace"] and with_profiler["rates"]["mfu"]["verdict"] == "unknown"
    assert "with the profiler on, as a side has no others)" in called("diff", run, base).stdout


@pytest.mark.long
def test_an_interval_that_is_wider_than_what_is_measured_is_unknown(run, tmp_path):
    sides = [recorded_by(run, tmp_path / name, ["time"] * 2) for name in ("base", "new")]
    for number, side in enumerate(sides):
        for file in side.glob("rank*/steps.parquet"):
            table = pl.read_parquet(file)
            grown = pl.when((pl.col("pass") == "time") & (pl.col("step") == 19)).then(2 + number).otherwise(1)
            table.with_columns(pl.col("duration_ns") * grown).write_parquet(file)
    found = diff(*sides)["step_time"]
    assert found["low"] is None and found["verdict"] == "unknown"
    assert "to tell this from noise" in called("diff", *sides).stdout
