"""What the files of hosts tell of a run is what the tables of all its ranks tell."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distprof.contract.paths import STUCK_JSON, rank_folder
from distprof.contract.rank_summary import NO_OFFSET
from distprof.contract.stuck import Stuck, StuckCollective, StuckGroup
from distprof.contract.tables import COLLECTIVES, STEPS
from distprof.files import json_text
from distprof.merge.clock.model import Alignment, Clock
from distprof.merge.cost.choice import Choice
from distprof.merge.cost.joined_run import check_of, joined_run
from distprof.merge.cost.measured_meetings import MeasuredMeetings, measured_meetings
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.match.matched_run import match_run
from distprof.merge.run import recorded
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from distprof.merge.totals.findings import findings_of
from distprof.summaries.host_file import append
from distprof.summaries.maker import summarise
from support.jobs import distprof
from support.many_ranks import FEW_STEPS, PipelinedJob, Plant, Recorded, write, write_tables

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


def both(*words: object) -> tuple[dict, dict]:
    """By the files of hosts, and by the tables of ranks."""
    by_hosts = told(*words)
    with patch.object(recorded, "MANY_RANKS", 10**6):
        return by_hosts, told(*words)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Made-up runs with the folders of all ranks."""
    folder = tmp_path_factory.mktemp("runs")
    for name, job in SHAPES.items():
        write(folder / name, replace(job), passes=FEW_STEPS, full=True)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_totals(runs, shape):
    by_summaries, exact = both("stats", "--json", runs / shape)
    assert {key: by_summaries[key] for key in EXACT} == {key: exact[key] for key in EXACT}


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_a_merge_of_many_ranks_tells_what_stats_does(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "tp", run)
    expected = told("stats", "--json", run)["communication"]
    assert distprof("merge", run).returncode == 0
    assert json.loads((run / "merged" / "summary.json").read_text())["communication"] == expected
    assert [one["rank"] for one in expected["culprits"]] == [2]
    assert told("stats", "--json", run)["communication"] == expected, "of the merge"
    shutil.rmtree(run / "columns")
    assert distprof("merge", "--force", run).returncode == 0
    by_tables = json.loads((run / "merged" / "summary.json").read_text())["communication"]
    assert [one["rank"] for one in by_tables["culprits"]] == [2]


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_modules(runs, shape):
    by_summaries, exact = both("stats", "--json", "--modules", runs / shape)
    assert by_summaries["modules"] == exact["modules"]


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_collectives(runs, shape):
    by_summaries, exact = (findings_of(runs / shape, choice=Choice(), of_rows=one) for one in (False, True))
    assert by_summaries.run.by_host
    # of equal waits, one or the other comes first
    assert [*sorted(by_summaries.kinds, key=str)] == [*sorted(exact.kinds, key=str)]
    assert by_summaries.steps == exact.steps
    assert by_summaries.coverage == exact.coverage
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


@pytest.fixture
def late_leaver(tmp_path):
    """A run in which rank 3 leaves some calls much later than the others do."""
    job = replace(SHAPES["dp"])
    write_tables(tmp_path / "run", Recorded(job=job, passes=FEW_STEPS, kept=range(job.num_ranks)))
    table = tmp_path / "run" / rank_folder(3) / COLLECTIVES.file
    rows = pq.read_table(table)
    place, ends = rows.schema.get_field_index("end_ns"), rows["end_ns"].to_pylist()
    later = pa.array([end if index % 5 else end + 10**7 for index, end in enumerate(ends)], rows["end_ns"].type)
    pq.write_table(rows.set_column(place, rows.schema.field(place), later), table)
    for rank in range(job.num_ranks):
        append(tmp_path / "run", summarise(tmp_path / "run" / rank_folder(rank)))
    return tmp_path / "run"


@pytest.mark.usefixtures("few")
def test_what_only_one_rank_of_a_call_shows(late_leaver):
    found = [findings_of(late_leaver, choice=Choice(), of_rows=one) for one in (False, True)]
    assert found[0].run.by_host and found[0].coverage == found[1].coverage
    assert 0 < found[0].coverage.num_disagreeing < found[0].coverage.num_collectives


@pytest.mark.parametrize("hosts", ["aab???", "aaaaaa", "aaaaa?", "??????", "?b?a??"])
@pytest.mark.usefixtures("few")
def test_which_calls_are_between_hosts(runs, hosts):
    """Some are unknown."""
    many = joined_run(run := open_run(runs / "dp", by_host=True), read_table(run, STEPS).rows)
    known = {rank: None if host == "?" else host for rank, host in enumerate(hosts)}
    mine = measured_meetings(many.calls, many.clock, known, many.seen, many.unlike).calls
    theirs = measured_collectives(match_run(run).rows, many.clock, known)
    expected = True if {"a", "b"} <= {*hosts} else None if "?" in hosts else False
    for each in (mine, theirs):
        assert set(each.filter(pl.col("num_ranks") == len(hosts))["between_hosts"]) == {expected}


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_the_clock(runs):
    by_summaries, exact = (one["clock"] for one in both("stats", "--json", runs / "tp x pp x dp"))
    rests_on_calls = ("residual_ns", "causality", "num_collectives")
    assert {key: value for key, value in by_summaries.items() if key not in rests_on_calls} == {
        key: value for key, value in exact.items() if key not in rests_on_calls}
    assert by_summaries["causality"]["contradicts"] is False


@pytest.mark.usefixtures("few")
def test_clocks_are_not_contradicted_by_less_than_the_unit_of_times_of_long_steps(runs):
    many = joined_run(run := open_run(runs / "dp", by_host=True), read_table(run, STEPS).rows)
    assert set(many.calls.unit_ns) == {1}
    coarse = {name: np.where(times == NO_OFFSET, NO_OFFSET, times // 4096) for name, times in many.calls.times.items()}
    calls = replace(many.calls, times=coarse, unit_ns=4096 * many.calls.unit_ns)
    fine, rounded = (replace(many, calls=one).checked_clock.check for one in (many.calls, calls))
    assert rounded.allowed_violation_ns - fine.allowed_violation_ns == 2 * 4095


@pytest.mark.parametrize(("precision_ns", "violations"), [(1, 3), (2, 2), (4, 1)])
def test_by_how_much_a_rank_has_to_leave_before_another_comes(precision_ns, violations):
    last_ns = [1000, 1003, 1005, 1009]  # one rank left at 1000
    calls = pl.DataFrame({"bounds": True, "last_arrival_ns": last_ns, "last_end_ns": 1050, "end_spread_ns": 50})
    clock = Clock(method="shared", num_hosts=1, ranks={rank: Alignment(uncertainty_ns=0) for rank in range(2)})
    check = check_of(MeasuredMeetings(calls=calls, shares=pl.DataFrame()), clock, precision_ns=precision_ns)
    assert (check.violations, check.largest_violation_ns) == (violations, 9) and check.contradicts


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("few")
def test_an_inferred_topology(tmp_path, shape):
    write(tmp_path / "run", replace(SHAPES[shape]), passes=FEW_STEPS, full=True, is_known=False)
    found = [open_run(tmp_path / "run", by_host=by_host) for by_host in (True, False)]
    assert found[0].by_host and not found[1].by_host
    for name in ("topology", "topology_source", "topology_certain", "mp_size", "dp_size", "problems"):
        assert getattr(found[0], name) == getattr(found[1], name)
    assert [rank.coordinates for rank in found[0].ranks] == [rank.coordinates for rank in found[1].ranks]


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_a_rank_without_summary_is_read_from_its_tables(runs, tmp_path):
    run = _copy(runs / "tp x pp x dp", tmp_path)
    _without(run, 7)
    by_summaries, exact = both("stats", "--json", run)
    lost = ("unique_params", "stored_params", "active_params")
    assert {key: by_summaries[key] for key in EXACT if key not in ("model", "problems")} == {
        key: exact[key] for key in EXACT if key not in ("model", "problems")}
    assert {key: value for key, value in by_summaries["model"].items() if key not in lost} == {
        key: value for key, value in exact["model"].items() if key not in lost}
    assert [one["code"] for one in by_summaries["problems"]] == ["unreadable"]  # the frame that was torn
    found = [findings_of(run, choice=Choice(), of_rows=one) for one in (False, True)]
    assert found[0].run.by_host and found[0].coverage == found[1].coverage
    assert [*sorted(found[0].kinds, key=str)] == [*sorted(found[1].kinds, key=str)]


@pytest.mark.long
@pytest.mark.parametrize("shape", ["tp x pp x dp", "dp"])
@pytest.mark.usefixtures("few")
def test_calls_that_are_lost_on_some_ranks(tmp_path, shape):
    """Their meetings are matched row by row, as those of few ranks are."""
    job = replace(SHAPES[shape])
    recorded_job = Recorded(job=job, passes=FEW_STEPS, kept=range(job.num_ranks), lost=job.num_ranks)
    write_tables(tmp_path / "run", recorded_job)
    for rank in range(job.num_ranks):
        append(tmp_path / "run", summarise(tmp_path / "run" / rank_folder(rank)))
    found = [findings_of(tmp_path / "run", choice=Choice(), of_rows=one) for one in (False, True)]
    assert found[0].run.by_host and found[0].coverage == found[1].coverage
    assert found[0].coverage.num_partial + found[0].coverage.num_alone > 0
    assert [*sorted(found[0].kinds, key=str)] == [*sorted(found[1].kinds, key=str)]
    assert found[0].run.problems == found[1].run.problems


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_a_missing_rank_is_missing_in_both(runs, tmp_path):
    run = _copy(runs / "dp", tmp_path)
    _without(run, 3)
    for file in (run / rank_folder(3)).iterdir():
        file.unlink()
    (run / rank_folder(3)).rmdir()
    by_summaries, exact = both("stats", "--json", run)
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


@pytest.mark.long
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
    by_summaries, exact = (one["stuck"] for one in both("comms", "--json", run))
    assert by_summaries == exact
    assert by_summaries["hangs"][0]["waiting"] == [0, 1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_each_rank_of_each_call_is_shown_where_that_is_asked_for(runs):
    for flag in ("--timeline", "--matrix"):
        shown = distprof("comms", flag, runs / "dp")
        with patch.object(recorded, "MANY_RANKS", 10**6):
            assert shown.stdout == distprof("comms", flag, runs / "dp").stdout and shown.returncode == 0


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_calls_as_json(runs):
    found, exact = both("comms", "--json", runs / "tp x pp x dp")
    assert set(found) == set(exact)
    assert found["matrix"] is None
    assert found["coverage_by_group"] == exact["coverage_by_group"]
    assert [one["num_collectives"] for one in found["bandwidths"]] == [
        one["num_collectives"] for one in exact["bandwidths"]]
    assert found["bandwidths"] == [{name: value if isinstance(value, str) else pytest.approx(value)
                                    for name, value in one.items()} for one in exact["bandwidths"]]
    spreads = [sorted((one["step"], one["group"], one["arrival_spread_ns"]) for one in some["collectives"]
                      if one["op"] == "all_reduce" and one["step"] in found["steps"] and one["num_ranks"] > 1)
               for some in (found, exact)]
    assert spreads[0] == spreads[1] and spreads[0]


@pytest.mark.parametrize("shape", ["pp", "dp"])
@pytest.mark.usefixtures("few")
def test_which_ranks_made_a_call(runs, shape):
    """Of a message these are its two sides, not the group that it is sent in."""
    found = [findings_of(runs / shape, choice=Choice(), of_rows=one) for one in (False, True)]
    calls = [with_lists(one.collectives.filter(pl.col("step").is_in(found[1].steps)), "group_ranks", "ranks").select(
        pl.col("op").cast(pl.String), "group_ranks", "ranks", "longest_ns", "size_bytes", "mean_bytes").rows()
        for one in found]
    assert sorted(calls[0]) == sorted(calls[1]) and len(calls[0]) > 20


@pytest.mark.usefixtures("few")
def test_a_choice_of_calls(runs):
    found = findings_of(runs / "tp x pp x dp", choice=Choice(op="all_reduce", group="mesh_tp"), of_rows=False)
    assert found.run.by_host
    assert {one.op for one in found.kinds} == {"all_reduce"}
    assert set(found.collectives["group_description"].cast(pl.String)) == {"mesh_tp"}
    assert distprof("comms", "--op", "all_gather", runs / "dp").returncode == 2


def test_up_to_64_ranks_all_is_as_it_was(runs):
    assert not open_run(runs / "tp x pp x dp", by_host=True).by_host


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_report(runs, tmp_path):
    document, exact = both("report", "--json", runs / "tp x pp x dp")
    assert document["totals"] == exact["totals"]
    assert document["modules"]["tree"] == exact["modules"]["tree"]
    shown, expected = (_calls_of_ranks(one["collectives"]) for one in (document, exact))
    assert shown == expected and len(shown) > 100
    assert distprof("report", "--out", tmp_path / "page.html", runs / "tp x pp x dp").returncode == 0


def _calls_of_ranks(collectives: dict) -> list[tuple]:
    """Of each rank in each call, what is drawn."""
    found = []
    for step in collectives["steps"]:
        calls, parts = step["calls"], step["parts"]
        for at, rank, *times in zip(*(parts[name] for name in ("call", "rank", "arrival_ns", "full_ns", "end_ns")),
                                    strict=True):
            found.append((step["step"], rank, *times, collectives["ops"][calls["op"][at]],
                          *(calls[name][at] for name in ("size_bytes", "late_rank", "wait_ns", "busbw"))))
    return sorted(found, key=repr)


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_many_late_ranks_are_all_named(tmp_path):
    """Each hides behind all others: fixing it alone gains nothing."""
    late = range(1, 24, 5)
    plants = tuple(Plant(rank, "forward", 1, 6_000_000) for rank in late)
    write(tmp_path / "run", PipelinedJob(pp=1, dp=24, tp=1, layers=4, microbatches=1, plants=plants), full=True)
    for found in both("comms", "--json", tmp_path / "run"):
        assert {one["rank"] for one in found["culprits"] if one["certain"]} == set(late)


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(2, 6, 2), (1, 12, 1)])
@pytest.mark.usefixtures("few")
def test_who_is_late_and_what_that_costs(tmp_path, sizes):
    pp, dp, tp = sizes
    job = PipelinedJob(pp=pp, dp=dp, tp=tp, layers=2, microbatches=2, plants=(
        Plant(3, "forward", 1, 5_000_000), Plant(9, "data", 0, 3_000_000)))
    write(tmp_path / "run", job, full=True)
    of_hosts, of_tables = (findings_of(tmp_path / "run", choice=Choice(), of_rows=one).analysis.culprits
                           for one in (False, True))
    assert [(one.rank, one.certain, one.late_steps) for one in of_hosts] == [
        (one.rank, one.certain, one.late_steps) for one in of_tables] and of_hosts[0].certain
    for mine, theirs in zip(of_hosts, of_tables, strict=True):
        assert mine.gain_ns == pytest.approx(theirs.gain_ns, rel=0.01, abs=1e4)
        assert mine.last_gain_ns == pytest.approx(theirs.last_gain_ns, rel=0.01, abs=1e4)
