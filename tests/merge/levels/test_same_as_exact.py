"""What summaries tell of a run is what the tables of all its ranks tell, as far as it does not rest on kept calls."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.paths import STUCK_JSON, rank_folder
from distprof.contract.stuck import Stuck, StuckCollective, StuckGroup
from distprof.files import json_text
from distprof.merge.cost.choice import Choice
from distprof.merge.run import recorded
from distprof.merge.run.open_run import open_run
from distprof.merge.totals.level_findings import level_findings
from distprof.merge.totals.read_findings import findings_of
from support.jobs import distprof
from support.many_ranks import FEW_STEPS, PipelinedJob, Plant, write

EXACT = ("world_size", "mp_size", "dp_size", "topology", "topology_source", "topology_certain", "ranks",
         "missing_ranks", "problems", "per_gpu", "model", "step", "evaluation", "slowest_rank", "modules",
         "coverage_ratio", "uncounted_ops")
SHAPES = {
    "tp x pp x dp": PipelinedJob(pp=2, dp=3, tp=2, layers=1, microbatches=2),
    "pp": PipelinedJob(pp=4, dp=1, tp=1, layers=2, microbatches=2),
    "dp": PipelinedJob(pp=1, dp=6, tp=1, layers=4, microbatches=1),
    "tp": PipelinedJob(pp=1, dp=1, tp=4, layers=2, microbatches=2, plants=(Plant(2, "forward", 1, 3_000_000),)),
}


@pytest.fixture
def few(monkeypatch):
    """Two ranks are many."""
    monkeypatch.setattr(recorded, "MANY_RANKS", 1)


def told(*words: object) -> dict:
    done = distprof(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every call of these is kept."""
    folder = tmp_path_factory.mktemp("runs")
    for name, job in SHAPES.items():
        write(folder / name, replace(job), passes=FEW_STEPS, full=True)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_totals(runs, shape):
    by_summaries, exact = (told("stats", "--json", *more, runs / shape) for more in ((), ("--exact",)))
    assert by_summaries["read"]["summaries"] == SHAPES[shape].num_ranks
    assert exact["read"]["summaries"] == 0
    assert {key: by_summaries[key] for key in EXACT} == {key: exact[key] for key in EXACT}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_tables_are_read_of_one_rank_of_each_place(runs, shape):
    job = SHAPES[shape]
    tables = told("stats", "--json", runs / shape)["read"]["tables"]
    assert tables == [rank for rank in range(job.num_ranks) if job.place(rank)[1] == 0]


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_a_merge_of_many_ranks_tells_what_summaries_do(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "tp", run)
    expected = told("stats", "--json", run)["communication"]
    assert distprof("merge", run).returncode == 0
    assert json.loads((run / "merged" / "summary.json").read_text())["communication"] == expected
    assert [one["rank"] for one in expected["culprits"]] == [2]
    assert told("stats", "--json", run)["communication"] == expected, "of the merge"
    shutil.rmtree(run / "summaries")
    assert distprof("merge", "--force", run).returncode == 0
    by_tables = json.loads((run / "merged" / "summary.json").read_text())["communication"]
    assert by_tables["basis"] is None and [one["rank"] for one in by_tables["culprits"]] == [2]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_modules(runs, shape):
    by_summaries, exact = (told("stats", "--json", "--modules", *more, runs / shape) for more in ((), ("--exact",)))
    assert by_summaries["modules"] == exact["modules"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_collectives_of_which_all_calls_are_kept(runs, shape):
    by_summaries, exact = (findings_of(runs / shape, choice=Choice(), exact=one) for one in (False, True))
    assert by_summaries.run.summaries is not None
    # of equal waits, one or the other comes first
    assert [*sorted(by_summaries.kinds, key=str)] == [*sorted(exact.kinds, key=str)]
    assert by_summaries.steps == exact.steps
    for name in ("num_collectives", "num_complete", "num_partial", "matched_by", "num_mismatches"):
        assert getattr(by_summaries.coverage, name) == getattr(exact.coverage, name)
    columns = ["step", "op", "group", "arrival_spread_ns", "late_rank", "end_spread_ns", "first_arrival_ns",
               "last_arrival_ns", "last_end_ns", "wait_ns", "transfer_ns", "longest_ns", "shortest_ns", "unsure",
               "disagrees", "algbw", "busbw", "between_hosts", "num_ranks", "size_bytes", "module_path", "phase"]
    mine, theirs = (_comparable(one.collectives, columns, exact.steps) for one in (by_summaries, exact))
    assert mine.equals(theirs), [name for name in columns if not mine[name].equals(theirs[name])]


def _comparable(collectives: pl.DataFrame, columns: list[str], steps: list[int]) -> pl.DataFrame:
    found = collectives.filter(pl.col("step").is_in(steps)).select(columns)
    # a send shows what it is issued in by its sender's call or its receiver's
    is_send = pl.col("op") == "send"
    texts = found.with_columns(pl.col(pl.Categorical).cast(pl.String)).with_columns(
        pl.when(~is_send).then(name).alias(name) for name in ("module_path", "phase"))
    return texts.sort("step", "group", "first_arrival_ns", "last_end_ns")


@pytest.mark.usefixtures("few")
def test_the_clock(runs):
    by_summaries, exact = (told("stats", "--json", *more, runs / "tp x pp x dp")["clock"]
                           for more in ((), ("--exact",)))
    rests_on_calls = ("residual_ns", "causality", "num_collectives")
    assert {key: value for key, value in by_summaries.items() if key not in rests_on_calls} == {
        key: value for key, value in exact.items() if key not in rests_on_calls}
    assert by_summaries["causality"]["contradicts"] is False


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_an_inferred_topology(tmp_path, shape):
    write(tmp_path / "run", replace(SHAPES[shape]), passes=FEW_STEPS, full=True, is_known=False)
    found = [open_run(tmp_path / "run", exact=exact) for exact in (False, True)]
    assert found[0].summaries is not None and found[1].summaries is None
    for name in ("topology", "topology_source", "topology_certain", "mp_size", "dp_size", "problems"):
        assert getattr(found[0], name) == getattr(found[1], name)
    assert [rank.coordinates for rank in found[0].ranks] == [rank.coordinates for rank in found[1].ranks]


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_a_rank_without_summary_is_read_from_its_tables(runs, tmp_path):
    run = _copy(runs / "tp x pp x dp", tmp_path)
    _without(run, 7)
    by_summaries, exact = (told("stats", "--json", *more, run) for more in ((), ("--exact",)))
    assert (by_summaries["read"]["summaries"], 7 in by_summaries["read"]["tables"]) == (11, True)
    lost = ("unique_params", "stored_params", "active_params")
    assert {key: by_summaries[key] for key in EXACT if key not in ("model", "problems")} == {
        key: exact[key] for key in EXACT if key not in ("model", "problems")}
    assert {key: value for key, value in by_summaries["model"].items() if key not in lost} == {
        key: value for key, value in exact["model"].items() if key not in lost}
    assert [one["code"] for one in by_summaries["problems"]] == ["unreadable"]  # the frame that was torn
    comms = findings_of(run, choice=Choice(), exact=False).coverage
    assert comms.num_partial > 0 and comms.num_complete > 0


@pytest.mark.usefixtures("few")
def test_a_missing_rank_is_missing_in_both(runs, tmp_path):
    run = _copy(runs / "dp", tmp_path)
    _without(run, 3)
    for file in (run / rank_folder(3)).iterdir():
        file.unlink()
    (run / rank_folder(3)).rmdir()
    by_summaries, exact = (told("stats", "--json", *more, run) for more in ((), ("--exact",)))
    assert by_summaries["missing_ranks"] == exact["missing_ranks"] == [3]
    assert by_summaries["per_gpu"] == exact["per_gpu"]


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_folders_are_not_needed(runs, tmp_path):
    """But for those of one rank of each place."""
    whole = told("stats", "--json", runs / "tp x pp x dp")
    run = tmp_path / "run"
    write(run, replace(SHAPES["tp x pp x dp"]), passes=FEW_STEPS)
    assert len(list(run.glob("rank*"))) == 4
    found = told("stats", "--json", run)
    assert {key: found[key] for key in EXACT} == {key: whole[key] for key in EXACT}


def _copy(run: Path, to: Path) -> Path:
    import shutil

    return Path(shutil.copytree(run, to / "run"))


def _without(run: Path, rank: int) -> None:
    """Damages the summary of a rank."""
    from distprof.summaries.host_file import files_of, frames_in

    for path in files_of(run):
        content = bytearray(path.read_bytes())
        for frame in frames_in(path, bytes(content))[0]:
            if frame.rank == rank:
                content[frame.offset + 5] ^= 255
        path.write_bytes(content)


@pytest.mark.usefixtures("few")
def test_a_rank_that_got_stuck_behind_its_last_pass(runs, tmp_path):
    run = _copy(runs / "dp", tmp_path)
    call = StuckCollective(
        number=7, name="nccl:all_reduce", op="all_reduce", point_to_point=False, state="started", completed=False,
        input_sizes=[[4]], input_dtypes=["Float"], output_sizes=[[4]], output_dtypes=["Float"], called_ns=10**18)
    group = StuckGroup(name="dp0_0", description="mesh_dp", backend="nccl", ranks=list(range(6)), last_called=7,
                       last_started=7, last_completed=6, collectives=[call])
    for rank in range(5):
        stuck = Stuck(
            format=1, rank=rank, world_size=6, time_ns=10**18, cause="watchdog", why="no step has ended", waiting=True,
            recording=False, step=11, pass_name=None, phase=None, module_path=None, since_ns=None, groups=[group],
            open_calls=[], threads=[])
        (run / rank_folder(rank) / STUCK_JSON).write_bytes(json_text(stuck))
    by_summaries, exact = (told("comms", "--json", *more, run)["stuck"] for more in ((), ("--exact",)))
    assert by_summaries == exact
    assert by_summaries["hangs"][0]["waiting"] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("few")
def test_what_summaries_do_not_tell_is_refused(runs):
    for flag in ("--timeline", "--matrix"):
        done = distprof("comms", flag, runs / "dp")
        assert done.returncode == 2
        assert "--exact" in done.stderr
        assert distprof("comms", flag, "--exact", runs / "dp").returncode == 0


@pytest.mark.usefixtures("few")
def test_kept_calls_as_json(runs):
    found, exact = (told("comms", "--json", *more, runs / "tp x pp x dp") for more in ((), ("--exact",)))
    assert set(found) == set(exact)
    assert (found["matrix"], found["bandwidths"], found["coverage_by_group"]) == (None, None, None)
    spreads = [sorted((one["step"], one["group"], one["arrival_spread_ns"]) for one in some["collectives"]
                      if one["op"] == "all_reduce" and one["step"] in found["steps"] and one["num_ranks"] > 1)
               for some in (found, exact)]
    assert spreads[0] == spreads[1] and spreads[0]


@pytest.mark.usefixtures("few")
def test_a_choice_of_calls(runs):
    found = level_findings(open_run(runs / "tp x pp x dp", exact=False), Choice(op="all_reduce", group="mesh_tp"))
    assert {one.op for one in found.kinds} == {"all_reduce"}
    assert set(found.collectives["group_description"].cast(pl.String)) == {"mesh_tp"}
    assert distprof("comms", "--op", "all_gather", runs / "dp").returncode == 2


def test_up_to_64_ranks_all_is_as_it_was(runs):
    assert open_run(runs / "tp x pp x dp", exact=False).summaries is None


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_report(runs, tmp_path):
    document = told("report", "--json", runs / "tp x pp x dp")
    exact = told("report", "--json", "--exact", runs / "tp x pp x dp")
    assert document["totals"] == exact["totals"]
    assert document["modules"]["tree"] == exact["modules"]["tree"]
    assert any("read: summaries of 12 ranks" in line for line in document["missing"])
    assert distprof("report", "--out", tmp_path / "page.html", runs / "tp x pp x dp").returncode == 0


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_many_late_ranks_are_all_named(tmp_path):
    """Each hides behind all others: fixing it alone gains nothing."""
    late = range(1, 24, 5)
    plants = tuple(Plant(rank, "forward", 1, 6_000_000) for rank in late)
    write(tmp_path / "run", PipelinedJob(pp=1, dp=24, tp=1, layers=4, microbatches=1, plants=plants), full=True)
    for more in ((), ("--exact",)):
        found = told("comms", "--json", *more, tmp_path / "run")["culprits"]
        assert {one["rank"] for one in found if one["certain"]} == set(late), more
