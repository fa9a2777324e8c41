"""Jobs of trainers of frameworks: steps, totals and evaluation are right, by hand; late ranks are named."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.tables import STEPS
from distprof.merge.blame.analysis import analyse
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from support import forked
from support.attempts import most_hold
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, distprof, merged, record_run, torchrun
from support.perfetto import ask

PLAN = ("--steps", "wait=2,count=1,time=1,trace=2,arrivals=0")
WIDTH, DEPTH, LENGTH, LATE_RANK = 32, 3, 8, 2
"""As in late_block.py."""
LATE_MS = 20
LAYER = WIDTH * 4 * WIDTH
PARAMS = DEPTH * (2 * LAYER + 5 * WIDTH) + WIDTH + 1


@pytest.fixture(scope="module", autouse=True)
def _trainers_are_loaded() -> Iterator[None]:
    """Once for all ranks."""
    with forked.server_that_loads("torchvision_operators", "transformers.trainer", "lightning"):
        yield


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def stats(out: Path) -> dict:
    found = json.loads(distprof("stats", "--json", out).stdout)
    assert not found["problems"] and found["topology_certain"], found["problems"]
    return found


def check_totals(found: dict, samples: int) -> None:
    """By hand: the model is multiplied out once forward and twice backward, but for the gradient of its input."""
    macs = samples * LENGTH * (DEPTH * 2 * LAYER + WIDTH)
    for quantity, expected in (("params", PARAMS), ("fwd_macs", macs), ("fwd_flops", 2 * macs), ("recompute_flops", 0),
                               ("bwd_flops", 4 * macs - 2 * samples * LENGTH * LAYER)):
        assert {found["per_gpu"][quantity][which] for which in ("min", "max")} == {expected}, quantity
        assert found["model"][quantity] == expected, quantity


def steps_of(out: Path, rank: int) -> pl.DataFrame:
    return pl.read_parquet(out / f"rank{rank:05d}" / STEPS.file)


@pytest.mark.core
@pytest.mark.job
@needs("transformers")
def test_the_trainer_of_transformers_is_recorded_from_outside(tmp_path):
    out = tmp_path / "run"
    record_run(out, 2, SCRIPTS / "hf_trainer.py", tmp_path, flags=PLAN)
    calls = json.loads((tmp_path / "calls1.json").read_text())
    assert calls == {"train": 3 * 7, "evaluation": 4 * 2, "steps": 7}, "the last step is evaluated as well"
    found = stats(out)
    check_totals(found, samples=6)
    assert found["step"]["found"]["rule"] == "optimizer" and found["evaluation"]["flops"] > 0
    assert steps_of(out, 0)["samples"].drop_nulls().unique().to_list() == [6]


@pytest.mark.job
@needs("transformers")
def test_the_callback_of_transformers_records_the_training_and_nothing_else(tmp_path):
    out = tmp_path / "run"
    torchrun(1, SCRIPTS / "hf_trainer.py", tmp_path, "--out", out)
    found = stats(out)
    check_totals(found, samples=6)
    assert found["step"]["found"]["rule"] == "explicit" and len(steps_of(out, 0)) == 6
    info = json.loads((out / "rank00000" / "rank.json").read_text())
    assert info["status"] == "complete" and not (out / "rank00000.partial").exists()


@pytest.mark.job
@needs("lightning")
def test_lightning_finds_its_callback_by_itself_and_validation_with_gradients_is_evaluation(tmp_path, entry_points):
    out = tmp_path / "run"
    record_run(out, 2, SCRIPTS / "lightning_fit.py", tmp_path, flags=PLAN, PYTHONPATH=_path(entry_points))
    calls = json.loads((tmp_path / "calls0.json").read_text())
    assert (calls["steps"], calls["train"], calls["callbacks"]) == (7, 14, ["DistprofCallback"])
    found = stats(out)
    check_totals(found, samples=8)
    assert found["step"]["found"]["rule"] == "optimizer"
    # three batches of 4 in the counted step: once forward, and once backward to the input, which is in no total either
    assert found["evaluation"]["flops"] == 2 * 2 * 3 * 4 * LENGTH * (DEPTH * 2 * LAYER + WIDTH)


@pytest.mark.job
@needs("lightning")
def test_the_profiler_under_lightning_s_own_launcher(tmp_path, entry_points):
    """Without DISTPROF_OUT the callback stays away; the script starts the other rank itself."""
    out = tmp_path / "run"
    done = forked.run([sys.executable, SCRIPTS / "lightning_fit.py", tmp_path, "--profiler", out],
                      env=clean_environ() | {"PYTHONPATH": _path(entry_points)}, capture_output=True, text=True,
                      timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert f"distprof merge {out}" in done.stderr + done.stdout
    assert json.loads((tmp_path / "calls1.json").read_text())["callbacks"] == []
    check_totals(stats(out), samples=8)
    labels = ask(merged(out) / "merged" / "trace.json.gz",
                 "select count(*) as n from slice where name = '[Strategy]DDPStrategy.training_step'")
    assert labels.results[0][0]["n"] == 2 * 2 * 2, "batches of the traced steps of two ranks"


def _path(entry_points: Path) -> str:
    return os.pathsep.join(filter(None, (str(entry_points), os.environ.get("PYTHONPATH", ""))))


@pytest.mark.job
@pytest.mark.stress
@pytest.mark.parametrize("script", [
    pytest.param("hf_trainer.py", marks=needs("transformers")),
    pytest.param("lightning_fit.py", marks=needs("lightning"))])
def test_the_late_rank_of_a_trainer(tmp_path, script):
    def attempt(folder: Path) -> None:
        devices = ("--devices", 4) if script == "lightning_fit.py" else ()
        record_run(folder / "run", 4, SCRIPTS / script, folder, "--late", LATE_MS, "--max-steps", 45, "--plain",
                   *devices)
        found = measured_run(open_run(folder / "run"))
        analysis = analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows)
        certain = [one for one in analysis.culprits if one.certain and one.gain_ns > LATE_MS * 1e6 / 4]
        assert [one.rank for one in certain] == [LATE_RANK], "a busy machine delays others as well, by less"
        cause = certain[0].causes[0]
        assert cause.kind in ("forward", "whole"), "on a machine that is too busy to tell, all its work"
        assert cause.kind == "whole" or (cause.where or "").endswith("blocks.1")

    most_hold(attempt, tmp_path, of=3, at_least=2)
