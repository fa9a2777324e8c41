"""The longest chains of simulated and of real jobs: what lies on them adds up to the step, in every table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from distprof.merge.critical.critical_path import KINDS, CriticalPath, OperatorsAt, critical_path
from distprof.merge.critical.grouping import by_collective, by_kind, by_module, by_op, by_rank, slack_by_rank
from distprof.merge.critical.replayable import chosen_steps, open_replayable
from distprof.merge.text.critical import slowed
from distprof.merge.totals.step_time import StepTime
from support.jobs import called, distprof
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

SLEPT_NS = 6_000_000


def run_of(folder: Path, *plants: Plant, name: str = "ddp", ranks: int = 4) -> Path:
    return Recorder().write(Simulation(programs(SHAPES[name], ranks, 6, 1, plants=plants, jitter=0.01)), folder)


def path_of(run: Path) -> tuple[CriticalPath, pl.DataFrame]:
    found = open_replayable(run)
    return critical_path(found.program, found.job, chosen_steps(found, ())), found.program.rows


@pytest.fixture(scope="module")
def late(tmp_path_factory) -> Path:
    """Rank 2 of four takes 6 ms longer in the forward of layers.3."""
    return run_of(tmp_path_factory.mktemp("late") / "run", Plant(2, "forward", "layers.3", SLEPT_NS))


def assert_adds_up(path: CriticalPath, rows: pl.DataFrame) -> None:
    """Links follow each other; each table is the whole chain."""
    links = path.links
    for step, start, end in path.durations.iter_rows():
        mine = links.filter(pl.col("step") == step)
        assert mine["start_ns"][0] == start and mine["end_ns"][-1] == end
        assert (mine["start_ns"][1:] == mine["end_ns"][:-1]).all()
    total = (path.durations["end_ns"] - path.durations["start_ns"]).mean()
    kinds = by_kind(path)
    assert sum(kinds.values()) == pytest.approx(total) and set(links["kind"]) <= set(KINDS)
    assert by_rank(path)["time_ns"].sum() == pytest.approx(total)
    assert by_module(path)["time_ns"].sum() == pytest.approx(kinds["work"])
    assert by_op(path)["time_ns"].sum() == pytest.approx(kinds["work"])
    assert by_collective(path, rows)["time_ns"].sum() == pytest.approx(
        total - kinds["work"] - kinds["unrecorded"])
    assert by_rank(path)["ratio"].sum() == pytest.approx(1)


@pytest.mark.long
def test_the_module_that_takes_long_is_on_the_chain_of_its_rank_and_has_slack_on_the_others(late):
    path, rows = path_of(late)
    assert_adds_up(path, rows)
    is_it = (pl.col("module_path") == "layers.3") & (pl.col("phase") == "forward")
    module = by_module(path).filter(is_it).row(0, named=True)
    assert (module["rank"], module["rank_ratio"], module["slack_ns"], module["slack_rank"]) == (2, 1.0, 0, 2)
    assert module["time_ns"] >= SLEPT_NS
    each = slack_by_rank(path).filter(is_it)
    slack = dict(each.select("rank", "slack_ns").iter_rows())
    assert all(0.8 * SLEPT_NS <= slack[rank] <= SLEPT_NS for rank in (0, 1, 3)), "the others wait for nearly as long"


@pytest.mark.long
@pytest.mark.parametrize(("kind", "where"), [("optimizer", None), ("forward", "layers.3")])
def test_a_step_takes_as_long_as_in_the_job_where_a_rank_is_late_behind_the_last_collective(tmp_path, kind, where):
    """The others are in their next step by then: what the late rank does belongs to one chain."""
    job = Simulation(programs(SHAPES["ddp"], 4, 6, 1, plants=[Plant(2, kind, where, 30_000_000)], jitter=0.01))
    path, rows = path_of(Recorder().write(job, tmp_path / "run"))
    assert_adds_up(path, rows)
    assert (path.durations["start_ns"][1:] == path.durations["end_ns"][:-1]).all()
    assert (path.durations["end_ns"] - path.durations["start_ns"]).mean() == pytest.approx(job.step_ns(2), rel=0.01)


def test_the_rank_of_a_module_is_the_one_that_has_most_of_it_on_the_chain(late):
    path, _ = path_of(late)
    keys = ["phase", "module_path"]
    work = path.links.filter(pl.col("kind") == "work").group_by(*keys, "rank").agg(
        ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    most = work.sort("ns", "rank", descending=[True, False]).unique(keys, keep="first", maintain_order=True)
    found = by_module(path).join(most, on=keys, nulls_equal=True, suffix="_of_most")
    assert found["rank"].to_list() == found["rank_of_most"].to_list() and len(found) == len(most)
    assert found["rank_ratio"].min() < 1, "some are of several ranks"


@pytest.mark.long
@pytest.mark.parametrize("name", ["tp_dp", "fsdp", "pp_dp", "rooted", "pipeline"])
def test_chains_of_all_shapes_add_up(tmp_path, name):
    assert_adds_up(*path_of(run_of(tmp_path / "run", Plant(1, "optimizer", None, 2_000_000), name=name, ranks=8)))


@pytest.mark.job
@pytest.mark.parametrize("fixture", ["two_late_ranks", "sharded", "tp"])
def test_chains_of_real_jobs_add_up(fixture, request):
    path, rows = path_of(request.getfixturevalue(fixture))
    assert_adds_up(path, rows)
    assert by_op(path)["op"].null_count() <= 1 and len(by_op(path)) > 5, "operators are known"


@pytest.mark.job
def test_chains_of_traces_of_other_programs_add_up(two_late_ranks, tmp_path):
    """What torch.profiler wrote, without tables and waits of ours; nothing marks steps, so that all is one."""
    for rank in range(4):
        shutil.copy(two_late_ranks / f"rank{rank:05}" / "trace.json.gz", tmp_path / f"rank{rank}.json.gz")
    path, rows = path_of(tmp_path)
    assert_adds_up(path, rows)
    assert {"layers.1.mlp", "layers.0.mlp"} & set(by_module(path)["module_path"]) and len(path.steps) == 1
    failed = distprof("whatif", "--no-stragglers", tmp_path)
    assert failed.returncode == 1 and "needs at least 3 steps" in failed.stderr


def test_the_answer_as_text(late):
    done = distprof("critical-path", late)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("step ") and lines[2].startswith("critical path: ")
    assert any(line.startswith("rank 2 ") for line in lines)
    (row,) = (line for line in lines if line.startswith("layers.3 ") and " forward " in line)
    assert "rank 2 (100.0 %)" in row and "0 ns (rank 2)" in row
    assert any(line.startswith("all_reduce ") for line in lines)
    assert lines[-2].startswith("Next: distprof merge --force --critical-path ")


@pytest.mark.long
def test_the_answer_as_json(late):
    done = distprof("critical-path", "--json", "--step", "3", "--step", "4", late)
    found = json.loads(done.stdout)
    assert found["kind"] == "critical_path" and [one["step"] for one in found["steps"]] == [3, 4]
    assert sum(found["by_kind"].values()) == pytest.approx(found["duration_ns"])
    assert sum(one["end_ns"] - one["start_ns"] for one in found["chain"]) == pytest.approx(2 * found["duration_ns"])
    assert {"by_rank", "by_module", "by_op", "by_collective", "slack"} <= set(found)
    assert json.loads(distprof("critical-path", "--json", "--top", "1", late).stdout)["chain"] is None


def test_rows_beyond_the_first_are_counted(late):
    assert "more rows: --top " in distprof("critical-path", "--top", "1", late).stdout


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (("--step", "77"), 2, "no step 77"), (("--top", "0"), 2, "--top")])
def test_what_is_not_there_is_said(late, arguments, code, words):
    failed = called("critical-path", *arguments, late)
    assert failed.returncode == code and words in failed.stderr


@pytest.mark.long
def test_a_merge_leads_to_its_run_and_a_merge_alone_is_too_little(late, tmp_path):
    assert distprof("merge", "--force", late).returncode == 0
    assert distprof("critical-path", late / "merged").returncode == 0
    (late / "merged").rename(tmp_path / "alone")
    failed = called("critical-path", tmp_path / "alone")
    assert failed.returncode == 1 and "not a run with its ranks" in failed.stderr and "hint:" in failed.stderr


@pytest.mark.long
def test_waiting_for_a_rank_that_left_nothing_is_called_doubtful(late, tmp_path):
    run = shutil.copytree(late, tmp_path / "run", ignore=shutil.ignore_patterns("rank00002", "merged"))
    line = "what rank 2 did is unknown: time that others waited for it counts as moving"
    assert line in distprof("critical-path", run).stdout
    assert line in distprof("whatif", "--free-communication", run).stdout


@pytest.mark.job
def test_a_rank_alone_meets_nobody(alone):
    failed = distprof("critical-path", alone)
    assert failed.returncode == 1 and "no collectives with known times" in failed.stderr


def test_the_innermost_operator_of_the_busiest_thread_is_named():
    rows = [("aten::linear", "cpu_op", 0, 100, "1"), ("aten::addmm", "cpu_op", 20, 50, "1"),
            ("aten::copy_", "cpu_op", 20, 40, "2"), ("aten::add", "cpu_op", 130, 10, "2"),
            ("c10d::allreduce_", "cpu_op", 150, 10, "1"), ("layers.1 [Linear]", "user_annotation", 0, 200, "1")]
    events = pl.DataFrame(rows, ["name", "category", "start_ns", "duration_ns", "thread"], orient="row")
    found = OperatorsAt(events, on_device=False)
    assert found.at([0, 20, 69, 70, 99, 100, 135, 155]) == [
        "aten::linear", "aten::addmm", "aten::addmm", "aten::linear", "aten::linear", None, "aten::add", None]
    assert sorted(found.edges(0, 141).tolist()) == [20, 20, 60, 70, 100, 130, 140]
    assert OperatorsAt(events.clear(), on_device=True).at([0, 5]) == [None, None]


@pytest.mark.parametrize(("time_ns", "passes", "is_said"), [
    (4e6, ["time"], True), (9.5e6, ["time"], False), (4e6, ["trace"], False)])
def test_why_the_path_is_longer_than_the_step_time_is_said(time_ns, passes, is_said):
    usual = StepTime(time_ns=time_ns, low_ns=time_ns, high_ns=time_ns, num_steps=5, passes=passes)
    path = SimpleNamespace(durations=pl.DataFrame({"start_ns": [0, 10], "end_ns": [10_000_000, 10_000_010]}))
    said = slowed(SimpleNamespace(path=path, step_time=usual))
    assert (said is not None and "ran with the profiler" in said) == is_said
