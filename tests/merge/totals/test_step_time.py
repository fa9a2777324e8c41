"""The step time: one number, over steps in which nothing heavy ran, the same wherever it is printed."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.report.page.render import page
from distprof.merge.totals.step_time import StepTime, middle, parts_of_step, passes_of, settled, step_time
from support.jobs import called
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

MS = 1_000_000
STEP_TIME = re.compile(
    r"(?:^|[ :*])(?:step|[Aa] step takes|cut the step from|ms instead of|the step time) ([\d.]+)(?: to [\d.]+)?"
    r"( m?u?s)?",
    re.MULTILINE)


def steps(*each: tuple[str, float], ranks: int = 2) -> pl.DataFrame:
    """Steps of passes that take so many ms; each further rank takes 2 ms longer."""
    return pl.DataFrame([(rank, step, name, int((ms + 2 * rank) * MS)) for step, (name, ms) in enumerate(each)
                         for rank in range(ranks)], ["rank", "step", "pass", "duration_ns"], orient="row")


def test_it_is_the_median_of_steps_in_which_nothing_heavy_ran_of_each_the_mean_over_ranks():
    found = step_time(steps(("wait", 90), ("count", 500), ("time", 10), ("time", 30), ("trace", 70), ("trace", 70),
                            ("arrivals", 400), ("arrivals", 12), ("arrivals", 11)))
    assert found is not None and found.is_light and found.num_steps == 4  # the first of the arrivals pass warms up
    assert found.time_ns == pytest.approx((11 + 12) / 2 * MS + MS) and found.passes == ["arrivals", "time"]
    assert found.low_ns == pytest.approx((10 + 0.05 * 3) * MS + MS)
    assert found.high_ns == pytest.approx((30 - 0.05 * 3 * 18) * MS + MS)


@pytest.mark.parametrize("more", [0, 1])
def test_where_each_second_step_is_long_it_is_the_mean_of_the_middle_half(more):
    """The median would be the edge of one of the kinds, by chance."""
    found = step_time(steps(*[("arrivals", 30 if step % 2 else 60) for step in range(21 + more)], ranks=1))
    assert found is not None and found.time_ns == pytest.approx(45 * MS, rel=0.05)


@given(usual=st.lists(st.integers(950, 1050), min_size=20, max_size=40),
       late=st.lists(st.integers(1000, 10**6), max_size=4))
def test_of_steps_of_one_kind_it_is_the_median(usual, late):
    each = np.array([*usual, *late], float)[:, None]
    assert middle(each)[0] == np.median(each)


def test_timers_that_slow_a_step_down_are_heavy():
    slow = steps(*[("time", 30)] * 3, *[("arrivals", 20)] * 5)
    assert (found := step_time(slow)) is not None and (found.time_ns, found.passes) == (21 * MS, ["arrivals"])
    few = steps(*[("time", 30)] * 3, *[("arrivals", 20)] * 3)  # two behind the first: too few to judge by
    assert (found := step_time(few)) is not None and found.passes == ["arrivals", "time"]


def test_without_such_steps_it_is_that_of_steps_with_a_timeline():
    found = step_time(steps(("count", 500), ("trace", 90), ("trace", 20), ("trace", 30)))
    assert found is not None and not found.is_light and found.time_ns == 26 * MS
    assert step_time(steps(("wait", 10), ("count", 500))) is None


def test_a_step_that_not_all_ranks_have_does_not_count():
    table = steps(("time", 10), ("time", 20), ("time", 30)).filter(~((pl.col("step") == 2) & (pl.col("rank") == 1)))
    assert settled(table, ("time",))["step"].unique().to_list() == [0, 1]


def test_what_passes_cost_is_told_beside_it():
    taken = steps(("count", 99), ("time", 9), ("time", 9), ("trace", 19), ("trace", 19))
    found = passes_of(taken, step_time(taken))
    assert [(one["pass"], one["num_steps"], one["ratio"]) for one in found] == [
        ("count", 1, 10.0), ("time", 2, 1.0), ("trace", 2, 2.0)]


def test_parts_of_steps_with_a_timeline_add_up_to_it():
    split = pl.DataFrame([{"rank": rank, "duration_ns": 20 * MS, "compute_ns": 5 * MS, "waiting_ns": 15 * MS}
                          for rank in range(2)]).with_columns(
        pl.lit(None, pl.Float64).alias(name) for name in (
            "moving_ns", "data_ns", "optimizer_ns", "host_ns", "message_waiting_ns", "overlapped_ns",
            "communication_ns"))
    usual = StepTime(time_ns=10 * MS, low_ns=9 * MS, high_ns=11 * MS, num_steps=5, passes=["time"])
    for row in parts_of_step(split, usual):
        assert (row["duration_ns"], row["compute_ns"], row["waiting_ns"]) == (10 * MS, 2.5 * MS, 7.5 * MS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A late rank; steps with a timeline take longer, and two are timed."""
    plants = (Plant(2, "forward", "layers.3", 6 * MS), *(Plant(rank, "forward", "layers.1", 9 * MS, once=step)
                                                        for rank in range(4) for step in range(6)))
    job = Simulation(programs(SHAPES["ddp"], 4, 24, 3, plants=plants))
    path = Recorder(num_traced=6).write(job, tmp_path_factory.mktemp("run") / "run")
    for file in path.glob("rank*/steps.parquet"):
        table = pl.read_parquet(file)
        timed = pl.col("step").is_in([22, 23])
        table.with_columns(pl.when(timed).then(pl.lit("time")).otherwise(pl.col("pass")).alias("pass"),
                           pl.when(timed).then(pl.col("duration_ns") // 3).alias("fwd_ns")).write_parquet(file)
    assert called("merge", path).returncode == 0
    return path


def printed(*arguments: object) -> str:
    done = called(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_every_number_that_is_called_a_step_time_is_equal(run):
    """Over all outputs, texts and data."""
    stats, comms, path, change, both, report, answer = (json.loads(printed(*words, "--json", run)) for words in (
        ("stats",), ("comms",), ("critical-path",), ("whatif", "--no-stragglers"), ("diff", run), ("report",),
        ("findings",)))
    ns = stats["step"]["time_ns"]
    assert stats["step"]["passes"] == ["arrivals", "time"]
    assert stats["per_gpu"]["step_ns"]["mean"] == pytest.approx(ns)
    for found in (comms, path, change):
        assert found["step_time"]["time_ns"] == ns
    assert both["step_time"]["base"] == both["step_time"]["new"] == pytest.approx(ns)
    assert answer["step"]["time_ns"] == report["step"]["time_ns"] == ns
    assert report["step_parts"]["mean"]["duration_ns"] == pytest.approx(ns)
    assert sum(row["change"]["base"] for row in both["parts"]["rows"]) == pytest.approx(ns)
    texts = [printed(*words, run) for words in (
        ("stats",), ("stats", "--passes"), ("comms",), ("critical-path",), ("whatif", "--no-stragglers"),
        ("diff", run), ("report", "--markdown"), ("findings",), ("merge", "--force", "--answer"))]
    texts.append(page(report).split("<script")[0])
    shown = f"{ns / MS:.1f}"
    for text in texts:
        named = [number for number, unit in STEP_TIME.findall(text) if unit or "." in number]
        assert named and set(named) == {shown}, (shown, text)
        assert "time pass" not in text
    assert f"{ns / MS:.2f} ms" in next(line for line in texts[0].splitlines() if line.startswith("step   "))
    assert f" {ns / MS:.2f} " in next(line for line in texts[2].splitlines() if line.startswith("mean of"))


@pytest.mark.long
def test_where_timers_are_heavy_it_is_of_the_other_steps_in_diff_too(run, tmp_path):
    slow = shutil.copytree(run, tmp_path / "slow")
    for file in slow.glob("rank*/steps.parquet"):
        longer = pl.when(pl.col("pass") == "time").then(5).otherwise(1)
        pl.read_parquet(file).with_columns(pl.col("duration_ns") * longer).write_parquet(file)
    shutil.rmtree(slow / "merged")
    ns = json.loads(printed("comms", "--json", slow))["step_time"]["time_ns"]
    both = json.loads(printed("diff", "--json", slow, run))
    assert both["step_passes"] == ["arrivals"] and both["step_time"]["base"] == pytest.approx(ns)
    assert "steps of the arrivals pass)" in printed("diff", slow, run)


@pytest.mark.long
def test_gains_are_parts_of_it(run):
    stats, comms = (json.loads(printed(name, "--json", run)) for name in ("stats", "comms"))
    (late,) = (one for one in comms["culprits"] if one["certain"])
    gain = late["gain_ns"] / MS
    assert f"by {gain:.2f} ms ({100 * late['share']:.1f} %)" in printed("comms", run)
    assert late["step_ns"] == pytest.approx(stats["step"]["time_ns"])


@pytest.mark.long
def test_a_merge_alone_has_it_and_one_of_an_earlier_version_is_refused(run, tmp_path):
    alone = tmp_path / "alone"
    assert called("merge", "--out", alone, run).returncode == 0
    assert json.loads(printed("comms", "--json", alone))["step_time"]["passes"] == ["arrivals", "time"]
    summary = json.loads((alone / "summary.json").read_text())
    del summary["step"]["low_ns"]
    (alone / "summary.json").write_text(json.dumps(summary))
    done = called("comms", alone)
    assert done.returncode == 1 and "hint: merge again" in done.stderr


def test_where_the_host_runs_ahead_the_step_is_that_of_the_device():
    """Four steps that the host only sends, and a fifth in which it waits for all of them."""
    table = steps(*[("arrivals", ms) for ms in (9, *[0.3, 0.3, 0.3, 0.3, 13.8] * 4)], ranks=1)
    assert (found := step_time(table)) is not None and found.time_ns == pytest.approx(0.3 * MS)
    table = table.with_columns(device_ns=pl.lit(3 * MS, pl.Int64))
    assert (found := step_time(table)) is not None and found.time_ns == found.high_ns == 3 * MS
    some = table.with_columns(device_ns=pl.when(pl.col("step") > 0).then("device_ns"))
    assert (found := step_time(some)) is not None and found.time_ns == 3 * MS, "the first is of an older device"
