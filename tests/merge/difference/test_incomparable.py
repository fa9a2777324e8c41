"""Runs of which only a part can be compared: that part is, and the rest is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.differing_runs import simulated
from support.jobs import called
from support.made_up_traces import folder as traces
from support.made_up_traces import op
from support.recording import train


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return simulated(tmp_path_factory.mktemp("base") / "base", 1)


def diff(*arguments: object) -> dict:
    done = called("diff", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def codes(found: dict) -> dict[str, set]:
    """Sides of each note."""
    return {code: {note["side"] for note in found["notes"] if note["code"] == code}
            for code in {note["code"] for note in found["notes"]}}


@pytest.mark.long
def test_another_world_size(base, tmp_path):
    other = simulated(tmp_path / "other", 2, ranks=2)
    found = diff(base, other)
    assert codes(found)["world_size"] == {None}
    assert {"name": "ranks", "base": "4", "new": "2"} in found["facts"]
    assert found["step_time"]["verdict"] in ("noise", "changed") and found["parts"] and found["modules"]
    assert "4 ranks against 2: times are means per rank and step" in called("diff", base, other).stdout


@pytest.mark.long
def test_one_rank(base, tmp_path):
    found = diff(base, simulated(tmp_path / "one", 2, ranks=1))
    assert codes(found)["one_rank"] == {"new"} and found["step_time"] and found["modules"]


@pytest.mark.long
def test_missing_ranks(base, tmp_path):
    other = shutil.copytree(base, tmp_path / "other")
    shutil.rmtree(other / "rank00002")
    found = diff(base, other)
    assert [one["code"] for one in found["new"][0]["problems"]] == ["ranks_missing"]
    assert found["step_time"]["verdict"] == "noise" and "same_run" in codes(found)
    done = called("diff", base, other)
    assert f"new {other}: rank 2 of 4 missing" in done.stdout
    assert called("diff", "--strict", base, other).returncode == 3


@pytest.mark.long
def test_a_job_that_hung(base, tmp_path):
    other = shutil.copytree(base, tmp_path / "other")
    about = other / "rank00001" / "rank.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"status": "partial", "why": "ended by signal 15"}))
    assert "rank 1 is partial: ended by signal 15" in called("diff", base, other).stdout
    assert diff(base, other)["step_time"]


@pytest.mark.long
def test_ranks_without_a_timeline(base, tmp_path):
    other = shutil.copytree(base, tmp_path / "other")
    for events in other.glob("rank*/events.parquet"):
        events.unlink()
    found = diff(base, other)
    assert codes(found)["no_timeline"] == {"new"}
    assert found["parts"] is None and found["modules"] is None and found["operators"] is None
    assert found["step_time"]["verdict"] == "noise"
    done = called("diff", "--fail-if", "exposed > 5 %", base, other)
    assert done.returncode == 3 and "exposed is unknown on at least one side" in done.stderr


@pytest.mark.long
def test_some_ranks_without_a_timeline(base, tmp_path):
    other = shutil.copytree(base, tmp_path / "other")
    (other / "rank00003" / "events.parquet").unlink()
    found = diff(base, other)
    assert codes(found)["some_timelines"] == {"new"} and found["modules"]
    assert "only 0-2 of 4 ranks have a timeline" in called("diff", base, other).stdout


def _traces(path: Path, steps: int, us: int) -> Path:
    path.mkdir()
    events = [[one for step in range(steps) for one in (
        op(f"ProfilerStep#{step}", 1000 * step, 900 + us, cat="user_annotation"),
        op("aten::mm", 1000 * step + 10, 400 + us + step % 3),
        op("aten::add", 1000 * step + 600, 30))] for _ in range(2)]
    return traces(path, *events)


@pytest.mark.long
def test_traces_of_another_program(base, tmp_path):
    one, other = _traces(tmp_path / "one", 12, 0), _traces(tmp_path / "other", 12, 80)
    found = diff("--noise", 1, one, other)
    assert codes(found)["foreign"] == {"base", "new"} and found["modules"] is None
    assert found["step_time"]["difference"] == pytest.approx(80_000) and found["step_time"]["verdict"] == "changed"
    assert found["operators"]["rows"][0]["op"] == "aten::mm"
    assert found["counts"]["params"]["verdict"] == "unknown" and found["rates"]["mfu"]["base"] is None
    mixed = diff(base, other)
    assert codes(mixed)["foreign"] == {"new"} and mixed["step_time"]


@pytest.mark.long
def test_a_merge_alone(base, tmp_path):
    assert called("merge", "--out", tmp_path / "lone", base).returncode == 0
    done = called("diff", base, tmp_path / "lone")
    assert done.returncode == 2 and "holds only a merge" in done.stderr


def test_runs_of_other_plans(ddp, alone):
    """`alone` has one rank, one step that is counted, no time pass and no timeline."""
    found = diff(ddp, alone)
    sides = codes(found)
    assert sides["one_rank"] == sides["no_timeline"] == sides["no_time_pass"] == {"new"}
    assert {"plans", "world_size"} <= set(sides)
    assert found["step_time"] is None and found["step_passes"] == [] and found["parts"] is None
    assert found["counts"]["params"]["verdict"] == "same" and found["counts"]["params"]["base"] > 0
    done = called("diff", "--fail-if", "step_time > 5 %", ddp, alone)
    assert "step times cannot be compared: the runs have no pass in common" in done.stdout
    assert "no step was timed without the profiler" in done.stdout
    assert done.returncode == 3 and "step_time is unknown on at least one side" in done.stderr
    assert called("diff", "--fail-if", "params > 0 %", ddp, alone).returncode == 0


def test_a_model_of_another_size(ddp, sharded):
    """Two layers that are narrower, in place of four."""
    found = diff(ddp, sharded)
    assert "other_model" not in codes(found) and found["counts"]["params"]["verdict"] == "changed"
    assert "base" in {row["only_in"] for row in found["modules"]["rows"]}
    done, back = (called("diff", "--fail-if", "params > 0 %", *sides) for sides in ((ddp, sharded), (sharded, ddp)))
    assert "modules: 20 only on the base side, 0 only on the new side" in done.stdout
    assert done.returncode + back.returncode == 1


@pytest.mark.long
def test_another_model_on_one_rank_each(tmp_path):
    import torch
    from torch import nn

    models = {"one": nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
              "other": nn.ModuleDict({"conv": nn.Conv1d(1, 1, 3), "norm": nn.LayerNorm(6)})}
    models["other"].forward = lambda x: models["other"]["norm"](models["other"]["conv"](x[:, None]))
    for name, model in models.items():
        train(tmp_path / name, model, lambda: torch.randn(4, 8), steps="wait=1,count=1,time=3,trace=4,memory=1",
              num_steps=10)
    found = diff(tmp_path / "one", tmp_path / "other")
    sides = codes(found)
    assert sides["other_model"] == {None} and sides["one_rank"] == {"base", "new"}
    assert found["modules"] and found["parts"]["rows"] and found["collectives"] is None
    assert found["counts"]["peak_bytes"]["base"] > 0 and found["counts"]["peak_bytes"]["verdict"] == "changed"
    within = called("diff", "--fail-if", "memory > 1 GB", tmp_path / "one", tmp_path / "other")
    assert within.returncode == 0 and "the models differ: of 3 and 3 modules, 1 are in both" in within.stdout
    assert called("diff", "--fail-if", "memory > -1 GB", tmp_path / "one", tmp_path / "other").returncode == 1
    assert {row["only_in"] for row in found["modules"]["rows"]} >= {"base", "new"}


def test_the_same_run_twice(ddp, tmp_path):
    found = diff(ddp, ddp)
    assert "same_run" in codes(found) and found["step_time"]["difference"] == 0
    assert {row["change"]["difference"] for row in found["modules"]["rows"]} == {0}
    assert all(change["verdict"] in ("same", "unknown") for change in found["counts"].values())
    assert all(one["base"] == one["new"] for one in found["facts"])
    assert called("diff", "--html", tmp_path / "page.html", ddp, ddp / "merged").returncode == 0
