"""Every kind of communication on real ranks: labelled, matched, shown."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.collective_ops import ranks_of
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.cost.measures import most_often_late
from distprof.merge.run.open_run import open_run
from support.jobs import SCRIPTS, distprof, merged, record_run


@pytest.fixture(scope="module")
def run(recordings) -> Path:
    out = recordings.get("many", lambda out: record_run(
        out, 4, SCRIPTS / "many_collectives.py", flags=("--steps", "wait=1,count=1,time=1,trace=1,arrivals=0")))
    return merged(out)


@pytest.fixture(scope="module")
def rows(run) -> pl.DataFrame:
    return pl.read_parquet(run / "merged" / "collectives.parquet")


def test_each_is_labelled_with_group_size_and_type(rows):
    mine = rows.filter((pl.col("rank") == 0) & (pl.col("group_description") != "mesh_dp"))
    labels = [(row["op"], row["group_description"], row["size_bytes"], row["dtype"], row["asynchronous"])
              for row in mine.sort("enqueue_ns").to_dicts()]
    assert labels == [
        ("all_reduce", "mesh_tp", 3 * 4 * 4, "float32", False),
        ("broadcast", "default_pg", 80, "float64", False),
        ("all_reduce", "default_pg", 20, "float32", True),
        ("all_gather", "mesh_tp", 8, "float32", False),
        ("reduce_scatter", "mesh_tp", 16, "float32", False),
        ("all_to_all", "default_pg", 32, "int32", False),
        ("all_reduce", "mesh_tp", 28, "float32", True),
        ("send", "default_pg", 12, "float32", True),
        ("barrier", "default_pg", 0, None, False),
    ]
    assert set(rows["step"]) == {3}


def test_peers_and_roots_are_global_ranks(rows):
    peers = {(row["op"], row["rank"]): row["peer"] for row in rows.to_dicts() if row["peer"] is not None}
    assert peers == {("send", 0): 1, ("recv", 1): 0, **{("broadcast", rank): 2 for rank in range(4)}}


def test_module_and_phase_that_issued_it(rows):
    inside = rows.filter(pl.col("module_path").is_not_null() & (pl.col("group_description") == "mesh_tp"))
    assert set(inside["module_path"]) == {"talks"} and set(inside["phase"]) == {"forward"}
    of_fsdp = rows.filter(pl.col("group_description") == "mesh_dp")
    assert set(of_fsdp["op"]) == {"all_gather", "reduce_scatter"}
    assert set(of_fsdp.filter(pl.col("op") == "reduce_scatter")["phase"]) == {"backward"}


def test_all_are_matched_over_their_group(rows):
    together = rows.filter(~pl.col("op").is_in(["send", "recv"]))
    assert together["complete"].all()
    assert (together["num_ranks"] == together["group_size"]).all()
    for _, one in together.group_by("collective"):
        assert one["op"].n_unique() == one["size_bytes"].n_unique() == one["group"].n_unique() == 1
        assert sorted(one["rank"]) == list(ranks_of(one["group_ranks"][0]))
        assert one["arrival_spread_ns"][0] == one["arrival_ns"].max() - one["arrival_ns"].min()
    ends = together.filter(pl.col("op").is_in(["all_reduce", "barrier"]))
    assert (ends["end_ns"] >= ends["arrival_ns"]).all()
    # nobody leaves before the last one came: the clocks of one host agree
    for _, one in ends.group_by("collective"):
        assert one["end_ns"].min() >= one["arrival_ns"].max()


def test_the_rank_that_is_late_is_one_that_a_small_merge_keeps(run, rows):
    last = Counter(max(one.rows(named=True), key=lambda row: (row["arrival_ns"], row["rank"]))["rank"]
                   for _, one in rows.filter(pl.col("arrival_spread_ns").is_not_null()).group_by("collective"))
    late = most_often_late([measured_run(open_run(run)).collectives])
    assert last[late] == max(last.values())
    told = distprof("merge", run, "--force", "--max-size", "450kB").stdout
    assert f"{late} (most often late)" in told or f"{late} (slowest)" in told, told


def test_the_timeline_tells_every_end(rows):
    assert rows["end_ns"].null_count() == 0
    # on a busy machine a wait may return before the callback of its future has run
    assert set(rows.filter(~pl.col("asynchronous"))["timed_by"]) <= {"timeline", "future"}
    assert set(rows["timed_by"]) <= {"timeline", "future", "wait"}


def test_runs_of_older_versions_know_less(run, rows, tmp_path):
    older = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    new = ["tag", "split_bytes", "start_ns", "timed_by", "wait_start_ns", "wait_end_ns"]
    for path in older.glob("rank*/collectives.parquet"):
        pl.read_parquet(path).drop(new).write_parquet(path)
    found = measured_run(open_run(older)).collectives
    assert found["complete"].all() and found.select(new).null_count().row(0) == (len(found),) * len(new)
    assert found["arrival_ns"].to_list() == found["enqueue_ns"].to_list()
    by = ["rank", "group", "op", "sequence"]
    assert found.sort(by).select(*by, "num_ranks").equals(rows.sort(by).select(*by, "num_ranks"))


def test_all_are_found_by_their_numbers_and_by_their_other_side(rows):
    pairs = pl.col("op").is_in(["send", "recv"])
    assert set(rows.filter(~pairs)["matched_by"]) == {"sequence"} and set(rows.filter(pairs)["matched_by"]) == {"peer"}
    assert rows["complete"].all() and rows["mismatch"].null_count() == len(rows)


def test_a_sharded_parameter_counts_whole_and_is_stored_in_part(run):
    summary = json.loads(distprof("stats", "--json", run).stdout)
    whole, talks = 2 * (36 + 6), 4
    assert summary["per_gpu"]["params"]["mean"] == whole + talks
    assert summary["per_gpu"]["stored_params"]["mean"] == whole / 2 + talks
    modules = pl.read_parquet(run / "merged" / "modules.parquet")
    assert set(modules["class_name"]) >= {"Talks", "Model", "FSDPSequential", "Linear"}


def test_comms_sums_up_every_op_and_group(run):
    text = distprof("comms", run).stdout
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "send"):
        assert f"\n{op} " in text
    assert "(100.0 %)" in text and "mismatch" not in text


def test_comms_lists_the_slowest(run, rows):
    text = distprof("comms", "--slowest", 3, run).stdout
    longest = rows.with_columns(held=pl.col("end_ns") - pl.col("arrival_ns")).sort("held", descending=True)
    first = text.splitlines()[2].split()
    assert (first[0], first[1]) == (str(longest["step"][0]), longest["op"][0])
    assert len([line for line in text.splitlines() if line.startswith("3 ")]) == 3
    every = distprof("comms", "--slowest", 99, run).stdout
    assert "forward of talks" in every and " 0 - 1 " in every


def test_the_timeline_has_a_row_per_rank_on_one_axis(run):
    text = distprof("comms", "--timeline", run).stdout
    bars = [line for line in text.splitlines() if line.startswith("rank ") and " tp" in line]
    assert [line.split()[:3] for line in bars] == [
        ["rank", "0", "tp0"], ["rank", "1", "tp1"], ["rank", "2", "tp0"], ["rank", "3", "tp1"]]
    assert len({len(line) for line in bars}) == 1 and all("A" in line for line in bars)
    assert "more than 10 collectives in a step: narrow them down with --step, --op and --group" in text


def test_a_collective_by_itself_says_what_each_rank_did(run):
    text = distprof("comms", "--timeline", "--op", "all_to_all", run).stdout
    assert "all_to_all #" in text and "of default_pg (0-3)" in text and "32 B int32" in text
    assert len([line for line in text.splitlines() if ", moves " in line]) == 4
    assert len([line for line in text.splitlines() if "  last, moves " in line]) == 1


@pytest.mark.parametrize(("flags", "words"), [
    (["--op", "allreduce"], "did you mean --op 'all_reduce'?"), (["--op", "x"], "choose from all_gather, all_reduce"),
    (["--group", "mesh_pt"], "did you mean --group 'mesh_tp'?"), (["--step", "17"], "steps with communication: 3"),
    (["--slowest", "0"], "--slowest")])
def test_what_is_not_there_is_one_line(run, flags, words):
    done = distprof("comms", *flags, run)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_groups_by_name_description_and_as_they_are_printed(run):
    told = {flag: json.loads(distprof("comms", "--json", "--group", flag, run).stdout) for flag in (
        "mesh_tp", "mesh_tp (0-1)")}
    assert {tuple(one["group_ranks"]) for one in told["mesh_tp"]["collectives"]} == {(0, 1), (2, 3)}
    assert {tuple(one["group_ranks"]) for one in told["mesh_tp (0-1)"]["collectives"]} == {(0, 1)}
    assert told["mesh_tp"]["breakdown"] is None, "steps are of all communication"


def test_comms_can_be_narrowed_and_read_by_programs(run):
    found = json.loads(distprof("comms", "--json", "--op", "all_reduce", run).stdout)["collectives"]
    assert {one["op"] for one in found} == {"all_reduce"}
    assert len([one for one in found if one["group_description"] == "mesh_tp"]) == 4
    text = distprof("comms", "--op", "barrier", run).stdout
    assert "barrier" in text and "all_reduce" not in text


@pytest.mark.job
def test_termination_flushes_a_rank_that_hangs(tmp_path):
    """torchrun ends the others with SIGTERM; no Python handler runs in a thread that waits in C++."""
    out = tmp_path / "run"
    done = distprof("run", "--out", out, "--nproc-per-node", 2, "--steps", "wait=0,count=1,time=1,trace=9",
                    SCRIPTS / "hangs.py")
    assert done.returncode == 5, done.stderr
    info = json.loads((out / "rank00000" / "rank.json").read_text())
    assert (info["status"], info["why"]) == ("partial", "signal SIGTERM after 4 of 11 steps")
    assert {"collectives.parquet", "steps.parquet", "ops.parquet"} <= set(info["files"])
    assert "timeline" in info["notes"][0] and not (out / "rank00000" / "trace.json.gz").exists()
