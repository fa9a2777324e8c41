"""What a report shows where there is too much: within its bounds, what matters first, and said."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from distprof.merge.memory.allocations import SCHEMA
from distprof.merge.memory.run_memory import Peak
from distprof.merge.report import communication, model, section
from distprof.merge.report.document import document
from distprof.merge.report.section import rows_of
from support.many_ranks import PipelinedJob, Recorded, write_tables
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

LATE = Plant(5, "forward", "layers.1", ns=40_000_000)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Eight ranks, of which one is late."""
    job = programs(SHAPES["tp_dp"], 8, 9, 1, plants=(LATE,), jitter=0.01)
    return Recorder(mp_size=4).write(Simulation(job, lanes=1), tmp_path_factory.mktemp("sampled") / "run")


@pytest.mark.long
def test_of_many_ranks_those_that_matter_are_shown_and_it_is_said(run, monkeypatch):
    whole = document(run)
    monkeypatch.setattr(section, "MOST_RANKS", 6)
    monkeypatch.setattr(section, "IN_DETAIL", 2)
    found = document(run)
    shown = found["step_parts"]["by_rank"]["rank"]
    assert len(shown) == 6 and 5 in shown
    assert any(text.startswith("6 of 8 ranks are shown individually") for text in found["left_out"])
    assert set(found["heat_map"]["by"]["rank"]) == set(found["clock"]["ranks"]["rank"]) == set(shown)
    assert {rank for step in found["collectives"]["steps"] for rank in step["parts"]["rank"]} == set(shown)
    for name in ("step", "communication", "blame", "collective_kinds", "critical_path"):
        assert found[name] == whole[name]
    assert found["step_parts"]["mean"] == whole["step_parts"]["mean"]
    by_time = sorted(rows_of(whole["step_parts"]["by_rank"]), key=lambda row: row["duration_ns"])
    assert {by_time[0]["rank"], by_time[-1]["rank"]} <= set(shown)


@pytest.mark.long
def test_steps_are_shown_in_full_as_far_as_there_is_room(run, monkeypatch):
    whole = document(run)["collectives"]
    each = [len(step["parts"]["rank"]) for step in whole["steps"]]
    assert len(each) == 9 and document(run)["left_out"] == []
    monkeypatch.setattr(communication, "MOST_PARTS", 3 * max(each) + 1)
    found = document(run)
    kept = found["collectives"]["steps"]
    parts = {step["step"]: step["parts"] for step in whole["steps"]}
    assert len(kept) == 3 and all(step["parts"] == parts[step["step"]] for step in kept)
    by_time = sorted(whole["steps"][1:], key=lambda step: step["duration_ns"])  # the first one warms up
    assert {by_time[4]["step"], by_time[-1]["step"]} <= {step["step"] for step in kept}
    assert found["left_out"] == [
        "collectives are shown for 3 steps of 9: the median step, the slowest, and others as space allows"]


@pytest.mark.long
def test_of_a_step_that_does_not_fit_the_longest_waits_are_shown(run, monkeypatch):
    whole = {step["step"]: step for step in document(run)["collectives"]["steps"]}
    monkeypatch.setattr(communication, "MOST_PARTS", 60)
    found = document(run)
    assert sum(len(step["parts"]["rank"]) for step in found["collectives"]["steps"]) <= 60
    assert len(found["collectives"]["steps"]) == 2
    for step in found["collectives"]["steps"]:
        waits, shown = (sorted(of["calls"]["wait_ns"], reverse=True) for of in (whole[step["step"]], step))
        assert 0 < len(shown) < len(waits) and shown == waits[:len(shown)]
        assert any(f"collectives of step {step['step']} are shown: those with the longest waits" in text
                   for text in found["left_out"])


def test_modules_that_take_longest_are_kept_with_what_they_lie_in(monkeypatch):
    paths = ["", "a", "a.x", "a.x.0", "b", "b.y", "model1:", "model1:z"]
    times = [9.0, 1.0, 1.0, 8.0, 3.0, 2.0, 1.0, 0.5]
    table = pl.DataFrame({"stage": 0, "module_path": paths, "fwd_time_ns_mean": times, "bwd_time_ns_mean": 0.0,
                          "fwd_flops_mean": None}, schema_overrides={"fwd_flops_mean": pl.Float64})
    assert model._parents([0] * 8, paths) == [-1, 0, 1, 2, 0, 4, -1, 6]
    monkeypatch.setattr(model, "MOST_MODULES", 5)
    sample = SimpleNamespace(left_out=[])
    assert model._largest(table, sample)["module_path"].to_list() == ["", "a", "a.x", "a.x.0", "b"]
    assert sample.left_out == ["5 modules of 8 are shown: the slowest ones and their parents"]


def test_a_curve_of_memory_keeps_its_maximum_and_its_end():
    held = np.random.default_rng(0).integers(0, 10**9, 12_345).cumsum() % 10**10
    places = model._with_maxima(held)
    assert len(places) <= model.MOST_POINTS and (np.diff(places) > 0).all()
    assert held[places].max() == held.max() and places[-1] == len(held) - 1
    assert (model._with_maxima(held[:400]) == np.arange(400)).all()


def test_memory_of_unknown_kind_has_a_name():
    alive = pl.DataFrame({"category": [None, "parameter", None], "size_bytes": [5, 6, 7]}, schema_overrides=SCHEMA)
    peak = Peak(rank=0, device="cpu", time_ns=1, peak_bytes=18, before_bytes=None, unknown_bytes=0, reserved_bytes=None,
                alive=alive, unused_bytes=None)
    assert model._categories([peak]) == {"names": ["unknown", "parameter"],
                                         "by_rank": {"unknown": [12], "parameter": [6]}}


@pytest.mark.stress
def test_a_report_of_a_thousand_ranks_is_small(tmp_path):
    job = PipelinedJob(pp=1, dp=128, tp=8, layers=32, microbatches=1)
    passes = ("time",) * 3 + ("trace",) * 4  # with 96 calls of a collective in each step
    write_tables(tmp_path / "run", Recorded(job=job, passes=passes, kept=range(1024)))
    found = document(tmp_path / "run")
    assert len(json.dumps(found, separators=(",", ":"))) < 4_000_000
    assert len(found["step_parts"]["by_rank"]["rank"]) == 64 and len(found["ranks"]) == 1024
    assert len(found["left_out"]) >= 3
