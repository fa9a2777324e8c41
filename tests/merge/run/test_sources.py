"""Traces of other programs as a run: how files are found, whose ranks they are, what is said of the rest."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from itertools import pairwise
from pathlib import Path, PurePosixPath

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.problems import (
    RanksFromNames,
    RanksMissing,
    SeveralTraces,
    TraceWithoutRank,
    WorldSizeFromRanks,
    WorldSizesDiffer,
    WorldSizeTooSmall,
)
from distprof.contract.summary import SUMMARY_KEYS
from distprof.errors import DataError, UsageError
from distprof.merge.run.mesh_of_groups import mesh_of
from distprof.merge.run.rank_names import place_in, rank_in, ranks_of_places, suggested_pattern
from distprof.merge.run.ranking import Naming
from distprof.merge.run.run_model import Run, open_run
from distprof.merge.run.trace_identity import Group, identity_of
from distprof.merge.text.problems import sentences
from distprof.units import spans
from support.jobs import ROOT, SCRIPTS, distprof, torchrun
from support.perfetto import ERRORS, FLOWS, SLICES, ask, rank_of

DLRM = ROOT.parent / "shared" / "traces" / "dlrm8"
GLOO = ROOT.parent / "shared" / "traces" / "gloo_rank34_of_300.json.gz"
needs_shared = pytest.mark.skipif(not DLRM.is_dir(), reason="needs the traces of ../shared")


def events(rank: int, *, epoch_us: int = 0) -> list[dict]:
    """A slice of one rank that no other has."""
    pid = 100 + rank
    return [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": epoch_us, "args": {"name": "python"}},
            {"ph": "X", "name": f"work of {rank}", "cat": "cpu_op", "pid": pid, "tid": pid,
             "ts": epoch_us + 10 + rank, "dur": 5, "args": {"External id": 1, "Input Dims": [[1], []]}}]


def kineto(rank: int | None, world_size: int | None = None, *, about: object = None, host: str = "node0",
           form: str = "new", **info: object) -> str:
    """A trace as some version of Kineto has written it."""
    told = {"backend": "gloo", "rank": rank, "world_size": world_size, **info} if about is None else about
    head: dict = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}]}
    after: dict = {"traceName": "/tmp/x.json"}
    base = {"host_name": host, "displayTimeUnit": "ms", "baseTimeNanoseconds": 1_790_857_026_000_000_000}
    distributed = {} if rank is None and about is None else {"distributedInfo": told}
    if form == "old":  # before torch 2.4: microseconds since the epoch, no base; the info as text
        head |= {key: json.dumps(value) for key, value in distributed.items()}
        return json.dumps({**head, "traceEvents": events(rank or 0, epoch_us=1_694_128_201_435_377), **after}, indent=2)
    if form == "on demand":  # a daemon asked for it: everything after the events, lists as text
        groups = [{**group, "ranks": str(group["ranks"])} for group in told.get("pg_config", [])]
        after |= {"distributedInfo": {**told, "rank": str(rank), "pg_config": groups}} | base
    else:
        head |= distributed | base
    indent = 2 if form == "pretty" else None
    whole = {**head, "traceEvents": events(rank or 0), **after}
    if form == "events first":
        whole = {"traceEvents": events(rank or 0), **head, **after}
    return json.dumps(whole, indent=indent, separators=(",", ":") if form == "compact" else None)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def files_of(run: Run) -> dict[int, str]:
    """Rank -> name of its trace."""
    return {rank.number: rank.trace.name for rank in run.ranks}


def plain(path: Path, names: list[str]) -> Path:
    """A folder of traces that do not tell their rank."""
    for index, name in enumerate(names):
        write(path / name, kineto(None).replace("work of 0", f"work of file {index}"))
    return path


FORMS = ("new", "pretty", "compact", "old", "on demand", "events first")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_every_version_of_kineto_tells_its_rank(tmp_path, form, suffix):
    for index, rank in enumerate((2, 0, 1)):
        write(tmp_path / f"host_{4711 + index}.169412820154{index}.pt.trace{suffix}", kineto(rank, 3, form=form))
    run = open_run(tmp_path)
    assert [rank.number for rank in run.ranks] == [0, 1, 2] and run.world_size == 3
    assert (run.kind, run.problems, run.missing) == ("traces", [], [])
    assert files_of(run)[2] == f"host_4711.1694128201540.pt.trace{suffix}"
    assert all(rank.info.device_name == "H100" for rank in run.ranks)
    hosts = {rank.info.host for rank in run.ranks}
    assert hosts == ({""} if form == "old" else {"node0"})


@pytest.mark.parametrize("about", [
    {"rank": "1", "world_size": "2"}, "{'rank': 1, 'world_size': 2}", '{"rank": 1, "world_size": 2}'])
def test_numbers_may_be_text_and_the_info_too(tmp_path, about):
    write(tmp_path / "a.json", kineto(0, 2))
    write(tmp_path / "b.json", kineto(1, about=about))
    assert files_of(open_run(tmp_path)) == {0: "a.json", 1: "b.json"}


KEYS = st.sampled_from(["rank", "world_size", "pg_config", "pg_size", "ranks", "pg_desc"])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_what_a_trace_says_of_itself_may_be_anything(value):
    found = identity_of({"distributedInfo": value, "host_name": value, "deviceProperties": value})
    assert found.rank is None or found.rank >= 0
    assert found.world_size is None or found.world_size > 0


NAMES = {
    "torchtitan": {"rank0_trace.json": 0, "rank11_trace.json.gz": 11},
    "an iteration of torchtitan": {"iteration_10/rank0_trace.json.gz": 0, "iteration_10/rank3_trace.json.gz": 3},
    "TensorBoard with worker names": {"worker0.1694128201545.pt.trace.json": 0,
                                      "worker13.1694128201545.pt.trace.json.gz": 13},
    "the DLRM example of param": {"worker3_step_12.1694128201557.pt.trace.json.gz": 3},
    "Megatron": {"torch_profile_rank_3_step_10.json": 3, "rank-12.1760000000000.pt.trace.json.gz": 12,
                 "rank_0.json.gz": 0},
    "vLLM": {"1767687660802231168-rank-0.1767687963353114465.pt.trace.json.gz": 0,
             "rank1.1787579846432427651.pt.trace.json": 1, "dp0_pp0_tp1_dcp0_ep0_rank2.17.pt.trace.json": 2},
    "HTA": {"rank-34.json.gz": 34}, "Composer": {"ep0-ba3-rank2.json": 2},
    "a folder for each rank": {"rank3/host7_4711.169412.pt.trace.json": 3, "rank_4/trace.json": 4},
    "nothing": {"host7_4711.1694128201545.pt.trace.json": None, "trace.json": None, "frank3.json": None,
                "local_rank0.json": None, "tp_rank_1.json": None, "1700000000-TP-3-DP-0.trace.json.gz": None},
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_ranks_in_names(names):
    assert {name: rank_in(PurePosixPath(name)) for name in names} == names


def test_places_in_names():
    assert place_in(PurePosixPath("1700000000-TP-3-DP-0.trace.json.gz")) == {"tp": 3, "dp": 0}
    assert place_in(PurePosixPath("x/dp0_pp1_tp2.1767.pt.trace.json")) == {"dp": 0, "pp": 1, "tp": 2}
    assert place_in(PurePosixPath("ep0-ba3-rank2.json")) == {}


@pytest.mark.parametrize(("names", "ranks"), [
    (["rank0_trace.json", "rank2_trace.json", "rank10_trace.json"], [0, 2, 10]),
    (["worker0.1694.pt.trace.json", "worker1.1691.pt.trace.json"], [0, 1]),
    # sglang: with data-parallel attention dp is a part of tp
    (["17-TP-0-DP-0.trace.json.gz", "17-TP-1-DP-0.trace.json.gz", "17-TP-2-DP-1.trace.json.gz",
      "17-TP-3-DP-1.trace.json.gz"], [0, 1, 2, 3]),
    (["17-TP-0.trace.json.gz", "17-TP-1.trace.json.gz"], [0, 1]),
    (["dp0_pp0_tp0.1.json", "dp0_pp0_tp1.1.json", "dp0_pp1_tp0.1.json", "dp0_pp1_tp1.1.json", "dp1_pp0_tp0.1.json",
      "dp1_pp0_tp1.1.json", "dp1_pp1_tp0.1.json", "dp1_pp1_tp1.1.json"], list(range(8))),
    (["a/rank_0/host_7.1.pt.trace.json", "a/rank_1/host_8.1.pt.trace.json"], [0, 1]),
])
def test_names_tell_ranks_where_traces_do_not(tmp_path, names, ranks):
    run = open_run(plain(tmp_path, names))
    assert files_of(run) == dict(zip(ranks, names, strict=True))
    assert run.world_size == max(ranks) + 1 and run.missing == sorted({*range(max(ranks) + 1)} - {*ranks})
    assert WorldSizeFromRanks(world_size=run.world_size, contradicted=False) in run.remarks


def test_a_server_of_several_replicas_has_the_ranks_of_its_names(tmp_path):
    """Each replica is a job of its own to torch: two traces say rank 0 of 2."""
    for name, rank in (("dp0_pp0_tp0.1", 0), ("dp0_pp0_tp1.1", 1), ("dp1_pp0_tp0.1", 0), ("dp1_pp0_tp1.1", 1)):
        write(tmp_path / f"{name}.pt.trace.json", kineto(rank, 2))
    run = open_run(tmp_path)
    assert [files_of(run)[rank].partition(".")[0] for rank in range(4)] == [
        "dp0_pp0_tp0", "dp0_pp0_tp1", "dp1_pp0_tp0", "dp1_pp0_tp1"]
    assert run.world_size == 4 and run.problems == []
    assert RanksFromNames(names="mesh", contradicted=True) in run.remarks


def test_a_trace_knows_better_than_its_name(tmp_path):
    write(tmp_path / "rank0.json", kineto(1, 2))
    write(tmp_path / "rank1.json", kineto(0, 2))
    assert files_of(open_run(tmp_path)) == {0: "rank1.json", 1: "rank0.json"}


def refused(*paths: Path, naming: Naming | None = None) -> str:
    with pytest.raises(DataError) as caught:
        open_run(*paths, naming=naming)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_where_nothing_tells_the_rank_the_flag_that_does_is_said(tmp_path):
    plain(tmp_path, ["trace_0.json", "trace_1.json", "trace_10.json"])
    told = refused(tmp_path)
    assert "trace_0.json, trace_1.json, trace_10.json" in told and "--rank-pattern REGEX" in told
    (tmp_path / "trace_10.json").rename(tmp_path / "trace_2.json")
    assert r"--rank-pattern 'trace_(\d+)'" in refused(tmp_path)
    run = open_run(tmp_path, naming=Naming(pattern=r"trace_(\d+)"))
    assert files_of(run) == {rank: f"trace_{rank}.json" for rank in range(3)}


def test_files_may_be_numbered_in_their_order(tmp_path):
    plain(tmp_path, ["host_9.json", "host_100.json", "sub/host_11.json"])
    names = {0: "host_9.json", 1: "host_100.json", 2: "sub/host_11.json"}
    assert files_of(open_run(tmp_path, naming=Naming(in_order=True))) == names
    given = [tmp_path / "host_100.json", tmp_path / "host_9.json"]
    assert files_of(open_run(*given, naming=Naming(in_order=True))) == dict(enumerate(map(str, given)))


@pytest.mark.parametrize(("naming", "words"), [
    (Naming(pattern="("), "expected a regular expression"), (Naming(pattern="trace"), "expected one group"),
    (Naming(pattern="(t)race"), "expected a rank"), (Naming(pattern=r"(\d)", in_order=True), "expected one of"),
])
def test_a_naming_that_makes_no_sense_is_refused(tmp_path, naming, words):
    plain(tmp_path, ["trace_0.json", "trace_1.json"])
    with pytest.raises(UsageError, match=words):
        open_run(tmp_path, naming=naming)
    assert "found it in none of" in refused(tmp_path, naming=Naming(pattern=r"gpu(\d+)"))


@given(st.lists(st.integers(0, 40), min_size=2, max_size=9, unique=True), st.sampled_from(["t_{}", "a1_{}.7", "{}/t"]))
def test_the_suggested_pattern_works(numbers, form):
    import re

    names = [f"{form.format(number)}.json" for number in numbers]
    pattern = suggested_pattern(names)
    if sorted(numbers) == list(range(len(numbers))):
        assert [int(re.search(pattern, name)[1]) for name in names] == numbers
    else:
        assert pattern is None


def test_a_trace_without_a_rank_beside_others_is_left_out_and_said(tmp_path):
    write(tmp_path / "rank0.1.pt.trace.json", kineto(0, 1))
    plain(tmp_path, ["host_7.async_llm.2.pt.trace.json"])
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.1.pt.trace.json"}
    assert run.problems == [TraceWithoutRank(file="host_7.async_llm.2.pt.trace.json")]


def test_iterations_are_refused_and_one_of_them_is_not(tmp_path):
    for step in (10, 20, 100):
        for rank in range(2):
            write(tmp_path / f"traces/iteration_{step}/rank{rank}_trace.json", kineto(rank, 2))
    told = refused(tmp_path)
    assert "found ranks 0-1 in 3 iterations" in told and f"like {tmp_path}/traces/iteration_100" in told
    assert open_run(tmp_path / "traces" / "iteration_20").problems == []


def test_folders_of_one_rank_each_are_refused_with_the_way_out(tmp_path):
    plain(tmp_path, [f"node{gpu // 2}/gpu{gpu}_rank{gpu % 2}.json" for gpu in range(4)])
    told = refused(tmp_path)
    assert f"in 2 places: {tmp_path}/node0, {tmp_path}/node1" in told and "--rank-pattern" in told
    assert len(open_run(tmp_path, naming=Naming(pattern=r"gpu(\d)")).ranks) == 4


def test_ranks_of_several_folders_are_one_run(tmp_path):
    for rank in range(4):
        write(tmp_path / f"node{rank // 2}/host_{rank}.json", kineto(rank, 4, host=f"node{rank // 2}"))
    run = open_run(tmp_path)
    assert len(run.ranks) == 4 and run.problems == []
    assert {rank.info.host for rank in run.ranks} == {"node0", "node1"}
    assert files_of(open_run(tmp_path / "node0", tmp_path / "node1")).keys() == {0, 1, 2, 3}


def test_of_two_traces_of_a_rank_the_newer_is_taken_and_both_are_said(tmp_path):
    for name in ("rank0.900.json", "rank0.1000.json", "rank1.950.json"):
        write(tmp_path / name, kineto(int(name[4]), 2))
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.1000.json", 1: "rank1.950.json"}
    assert run.problems == [SeveralTraces(rank=0, used="rank0.1000.json", left_out=("rank0.900.json",))]
    # names of two forms say nothing of age
    write(tmp_path / "old_rank1.json", kineto(1, 2))
    os.utime(tmp_path / "old_rank1.json", ns=(1, 1))
    assert files_of(open_run(tmp_path))[1] == "rank1.950.json"
    os.utime(tmp_path / "rank1.950.json", ns=(0, 0))
    assert files_of(open_run(tmp_path))[1] == "old_rank1.json"


def test_a_file_that_is_given_twice_is_one(tmp_path):
    file = write(tmp_path / "a" / "rank0.json", kineto(0, 1))
    (tmp_path / "link.json").symlink_to(file)
    run = open_run(tmp_path / "a", file, tmp_path / "link.json")
    assert files_of(run) == {0: str(file)} and run.problems == []


def test_missing_ranks_and_world_sizes_that_differ_are_said(tmp_path):
    write(tmp_path / "a.json", kineto(0, 4))
    write(tmp_path / "b.json", kineto(5, 8))
    write(tmp_path / "c.json", kineto(6, 8))
    run = open_run(tmp_path)
    assert run.world_size == 8 and run.missing == [1, 2, 3, 4, 7]
    assert run.problems == [WorldSizesDiffer(ranks_by_size={4: (0,), 8: (5, 6)}),
                            RanksMissing(ranks=(1, 2, 3, 4, 7), world_size=8)]
    write(tmp_path / "d.json", kineto(9, 8))
    assert WorldSizeTooSmall(world_size=8, highest_rank=9) in open_run(tmp_path).problems


def test_what_is_no_trace_is_left_out_and_said(tmp_path):
    write(tmp_path / "rank0.json", kineto(0, 1))
    write(tmp_path / "package.json", json.dumps({"name": "x", "version": "1", "scripts": {}, "a": 1, "b": 2}))
    write(tmp_path / "tsconfig.json", '{\n  // comments\n  "compilerOptions": {},\n}')
    write(tmp_path / "list.json", "[1, 2, 3]")
    write(tmp_path / "results.json", '[{"accuracy": 1}]')
    write(tmp_path / "empty.json", "{}")
    for rank in range(2):
        write(tmp_path / f"et/rank{rank}_et.json.gz", json.dumps({"schema": "1.1.1", "pid": 1, "nodes": [{"id": 1}]}))
    write(tmp_path / "merged.json.gz", json.dumps({"metadata": {"distprof": {}}, "traceEvents": events(0)}))
    write(tmp_path / "merged" / "trace.json.gz", kineto(0, 1))
    write(tmp_path / ".cache" / "rank0.json", kineto(0, 1))
    write(tmp_path / "one" / "two" / "three" / "rank0.json", kineto(0, 1))
    write(tmp_path / "notes.txt", "mine")
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.json"} and run.problems == []
    assert sorted(sentences(run.remarks)) == [
        "1 file left out: JSON without traceEvents (name, version, scripts, a, ...) (package.json)",
        "1 file left out: a merged trace (merged.json.gz)",
        "1 file left out: an empty JSON object (empty.json)",
        "1 file left out: damaged JSON, or another format, without traceEvents (tsconfig.json)",
        "2 files left out: a JSON list without Chrome events (list.json, results.json)",
        "2 files left out: an execution trace (et/rank0_et.json.gz, et/rank1_et.json.gz)",
    ]


def test_what_should_be_a_trace_and_is_not_is_a_problem(tmp_path):
    write(tmp_path / "rank0.json", kineto(0, 9))
    (tmp_path / "rank1.json").touch()
    write(tmp_path / "rank2.json", "<!DOCTYPE html>")
    write(tmp_path / "rank3.json.gz", "version https://git-lfs.github.com/spec/v1\n")
    write(tmp_path / "rank4.json", kineto(4, 9)[:60])
    (tmp_path / "rank5.json.gz").write_bytes(gzip.compress(kineto(5, 9).encode())[:60])
    (tmp_path / "rank6.tar.gz").write_bytes(b"\x1f\x8b" + b"?" * 99)
    run = open_run(tmp_path)
    assert files_of(run).keys() == {0}
    told = "\n".join(sentences(run.problems))
    for words in ("rank1.json, found an empty file", "rank2.json, found an HTML page", "rank3.json.gz, found a Git LFS",
                  "rank4.json, found a trace that is cut before its first event", "rank5.json.gz", "is cut at byte 60",
                  "a tar archive in rank6.tar.gz"):
        assert words in told, told
    assert run.problems[-1] == RanksMissing(ranks=tuple(range(1, 9)), world_size=9) and len(run.problems) == 7


def test_a_cut_trace_is_still_that_of_its_rank(tmp_path):
    whole = gzip.compress(kineto(1, 2).encode() + b" " * 9999, 0)
    write(tmp_path / "a.json", kineto(0, 2))
    (tmp_path / "b.json.gz").write_bytes(whole[:-3000])
    assert files_of(open_run(tmp_path)) == {0: "a.json", 1: "b.json.gz"}


def test_the_key_of_the_events_may_stand_in_other_places(tmp_path):
    text = json.dumps({"note": '"traceEvents": [', "metadata": {"traceEvents": [1]}, "distributedInfo":
                       {"rank": 3, "world_size": 4}, "traceEvents": events(3)})
    run = open_run(write(tmp_path / "x.json", text))
    assert files_of(run) == {3: str(tmp_path / "x.json")}
    late = json.dumps({"traceEvents": [{"ph": "X", "args": {"a": [{"b": 1}], "rank": 7}}] * 3, "logs": [{"a": [1]}],
                       "distributedInfo": {"rank": 2, "world_size": 4}})
    assert files_of(open_run(write(tmp_path / "y.json", late))).keys() == {2}


def test_a_head_of_megabytes_and_bytes_that_are_no_text_are_read(tmp_path):
    groups = [{"pg_name": str(index), "pg_desc": "undefined", "pg_size": 4096, "ranks": list(range(4096))}
              for index in range(200)]
    write(tmp_path / "big.json.gz", kineto(3000, 4096, pg_config=groups))
    assert files_of(open_run(tmp_path / "big.json.gz")).keys() == {3000}
    text = kineto(1, 2).encode().replace(b'"node0"', b'"n\xff\xfe", "ratio": NaN')
    (tmp_path / "bad.json").write_bytes(text)
    assert files_of(open_run(tmp_path / "bad.json")).keys() == {1}


def test_a_list_of_events_is_a_trace(tmp_path):
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", json.dumps(events(rank)))
    assert files_of(open_run(tmp_path)).keys() == {0, 1}


def test_utf_16_is_read(tmp_path):
    (tmp_path / "a.json").write_bytes(kineto(5, 6).encode("utf-16"))
    assert files_of(open_run(tmp_path)).keys() == {5}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_is_a_folder(tmp_path, mode):
    for rank in (10, 9, 2):
        write(tmp_path / f"in/host_{rank}.json{'.gz' if rank == 9 else ''}", kineto(rank, 11, form="on demand"))
    with tarfile.open(tmp_path / "all.tgz", mode) as tar:
        tar.add(tmp_path / "in", "job")
    run = open_run(tmp_path / "all.tgz")
    assert files_of(run) == {2: f"{tmp_path}/all.tgz: job/host_2.json", 9: f"{tmp_path}/all.tgz: job/host_9.json.gz",
                             10: f"{tmp_path}/all.tgz: job/host_10.json"}
    (tmp_path / "all.tgz").rename(tmp_path / "in" / "all.tgz")
    assert "found ranks 2, 9-10 in 2 places" in refused(tmp_path / "in")
    done = distprof("merge", tmp_path / "in" / "all.tgz", "--out", tmp_path / "out")
    assert done.returncode == 0 and "3 of 11 ranks" in done.stdout, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"trace.json.gz", "summary.json"}
    assert not (tmp_path / "out" / "unpacked").exists()
    assert names_in(tmp_path / "out") == {"work of 2", "work of 9", "work of 10"}


def names_in(merged: Path) -> set[str]:
    trace = json.loads(gzip.decompress((merged / "trace.json.gz").read_bytes()))
    return {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}


def test_run_directories_are_not_taken_for_traces(ddp, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(ddp)
    assert "found a folder of runs: mine" in refused(tmp_path / "runs")
    write(tmp_path / "rank4.json", kineto(4, 5))
    assert "found a run directory" in refused(ddp, tmp_path / "rank4.json")
    assert "found nothing at" in refused(tmp_path / "nowhere")


def test_a_trace_of_ours_is_a_trace_like_any_other(ddp):
    run = open_run(ddp / "rank00002" / "trace.json.gz")
    assert files_of(run).keys() == {2} and run.kind == "traces" and run.world_size == 4


def test_one_file_of_one_process_needs_no_rank(tmp_path):
    plain(tmp_path, ["viztracer.json"])
    run = open_run(tmp_path)
    assert files_of(run) == {0: "viztracer.json"} and run.world_size == 1 and run.problems == [] == run.remarks


def groups_of(rank: int, sizes: dict[str, int]) -> list[Group]:
    """Groups of a mesh with dimensions of these names, the last one fastest."""
    found, stride = [], 1
    for name, size in reversed(sizes.items()):
        first = rank - rank // stride % size * stride
        found.append(Group(description=name, ranks=tuple(first + stride * index for index in range(size))))
        stride *= size
    return found


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_mesh_is_found_by_its_groups(replicas, shards, cp, tp, data):
    sizes = {"mesh_dp_replicate": replicas, "mesh_dp_shard": shards, "mesh_cp": cp, "mesh_tp": tp}
    world_size = replicas * shards * cp * tp
    rank = data.draw(st.integers(0, world_size - 1))
    groups = data.draw(st.permutations([*groups_of(rank, sizes), Group(description="default_pg",
                                                                       ranks=tuple(range(world_size)))]))
    mesh = mesh_of(groups, rank=rank, world_size=world_size)
    if world_size == 1:
        assert mesh is None
        return
    wanted = {"dp": (replicas * shards, rank // (cp * tp)), "cp": (cp, rank // tp % cp), "tp": (tp, rank % tp)}
    assert mesh.sizes == {axis: size for axis, (size, _) in wanted.items() if size > 1}
    assert mesh.coordinates == {axis: index for axis, (size, index) in wanted.items() if size > 1}


@pytest.mark.parametrize("names", [("data", "model"), ("hsdp", "mp"), ("batch", "tensor"), ("dp", "tp")])
def test_a_mesh_is_found_by_any_usual_names(names):
    mesh = mesh_of(groups_of(5, {f"mesh_{names[0]}": 2, f"mesh_{names[1]}": 4}), rank=5, world_size=8)
    assert mesh.sizes == {"dp": 2, "tp": 4} and mesh.coordinates == {"dp": 1, "tp": 1}


def test_a_mesh_that_leaves_a_doubt_is_unknown():
    def named(sizes: dict[str, int], rank: int = 1, world_size: int = 4):
        return mesh_of(groups_of(rank, sizes), rank=rank, world_size=world_size)

    assert named({"default_pg": 4}) is None, "nobody says that plain DDP is all there is"
    assert named({"mesh_tp": 2}) is None, "the other factor may be anything"
    assert named({"mesh_dim_0": 2, "mesh_dim_1": 2}) is None, "dimensions without names"
    assert named({"mesh_dp": 2, "mesh_ep": 2}) is None, "experts cut across the others"
    overlapping = [Group(description="mesh_dp", ranks=(0, 1)), Group(description="mesh_tp", ranks=(0, 1))]
    assert mesh_of(overlapping, rank=0, world_size=4) is None
    megatron = named({"PIPELINE_MODEL_PARALLEL_GROUP": 2, "DATA_PARALLEL_GROUP": 2, "TENSOR_MODEL_PARALLEL_GROUP": 2},
                     rank=6, world_size=8)
    assert megatron.sizes == {"pp": 2, "dp": 2, "tp": 2} and megatron.coordinates == {"pp": 1, "dp": 1, "tp": 0}


def test_ranks_that_tell_different_meshes_leave_it_unknown(tmp_path):
    for rank in range(4):
        config = [{"pg_desc": group.description, "ranks": list(group.ranks)}
                  for group in groups_of(rank, {"mesh_dp": 2, "mesh_tp": 2} if rank else {"mesh_tp": 4})]
        write(tmp_path / f"{rank}.json", kineto(rank, 4, pg_config=config))
    run = open_run(tmp_path)
    assert not run.topology_known and run.topology_source.startswith("unknown")


@given(st.sets(st.integers(0, 60)))
def test_spans_hold_exactly_the_numbers(numbers):
    parts = [part.split("-") for part in spans(sorted(numbers)).split(", ") if part]
    assert {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)} == numbers
    assert all(int(second[0]) > int(first[-1]) + 1 for first, second in pairwise(parts))


@pytest.fixture(scope="module")
def profiled(recordings) -> Path:
    """What four real ranks wrote with torch.profiler alone."""
    out = recordings.get("plain", lambda out: torchrun(4, SCRIPTS / "plain_profiler.py", out))
    assert len(list(out.iterdir())) == 4
    return out


def test_a_real_job_is_merged_with_its_mesh(profiled):
    done = distprof("merge", profiled)
    assert done.returncode == 0 and "4 of 4 ranks" in done.stdout and "incomplete" not in done.stdout, done.stdout
    summary = json.loads((profiled / "merged" / "summary.json").read_text())
    assert list(summary) == list(SUMMARY_KEYS)
    assert (summary["topology"], summary["mp_size"], summary["dp_size"]) == ({"dp": 2, "tp": 2}, 2, 2)
    assert summary["problems"] == [] and summary["clock"]["aligned"] and summary["per_gpu"]["params"]["mean"] is None
    answer = ask(profiled / "merged" / "trace.json.gz", ERRORS, SLICES, FLOWS)
    # a trace without a table of events does not say where time begins: at epoch size a double loses nanoseconds
    assert answer.import_errors == [] and {row["name"] for row in answer.results[0]} <= {
        "slice_drop_overlapping_complete_event"}
    assert {rank_of(row["process"]) for row in answer.results[1]} == {0, 1, 2, 3}
    assert any(row["process"].startswith("rank 3 | tp1 dp1 | ") for row in answer.results[1])
    assert all(row["source"] == row["target"] for row in answer.results[2])
    for table in ("modules", "collectives", "steps"):
        assert pl.read_parquet(profiled / "merged" / f"{table}.parquet").is_empty()


def test_stats_of_traces_tells_what_is_known_and_why_the_rest_is_not(profiled, tmp_path):
    told = distprof("stats", profiled)
    assert told.returncode == 0 and "4 ranks = dp 2 x tp 2" in told.stdout, told.stderr
    assert "unknown: these are traces of another program" in told.stdout
    assert distprof("stats", "--strict", profiled).returncode == 0
    refusal = distprof("stats", "--modules", profiled)
    assert refusal.returncode == 1 and len(refusal.stderr.splitlines()) == 1
    assert "found traces of another program" in refusal.stderr and "hint:" in refusal.stderr
    write(tmp_path / "rank1.json", kineto(None))
    told = distprof("stats", "--json", tmp_path)
    summary = json.loads(told.stdout)
    assert summary["kind"] == "traces" and summary["mp_size"] is None and summary["topology"] is None
    assert summary["missing_ranks"] == [0] and summary["step"]["time_ns"] is None
    assert "rank 0 of 2 missing" in distprof("stats", "--strict", tmp_path).stderr


def test_comms_of_traces_says_what_it_infers(profiled):
    told = distprof("comms", profiled)
    assert told.returncode == 0, told.stderr
    assert "\nall_reduce " in told.stdout and "traces of another program: " in told.stdout
    assert "mismatch" not in told.stdout
    inferred = json.loads(distprof("comms", "--json", profiled).stdout)
    assert inferred["remarks"] and not set(inferred["coverage"]["matched_by"]) & {"id", "sequence"}


def test_traces_that_changed_after_the_merge_are_looked_at_again(tmp_path):
    write(tmp_path / "rank0.json", kineto(0, 2))
    assert distprof("merge", tmp_path).returncode == 0
    assert json.loads(distprof("stats", "--json", tmp_path).stdout)["missing_ranks"] == [1]
    os.utime(write(tmp_path / "rank1.json", kineto(1, 2)), (2**31, 2**31))
    assert json.loads(distprof("stats", "--json", tmp_path).stdout)["missing_ranks"] == []


def test_a_damaged_trace_is_said_and_the_others_are_merged(tmp_path):
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json.gz", kineto(rank, 3))
    path = tmp_path / "rank1.json.gz"
    path.write_bytes(gzip.compress(kineto(1, 3).encode() + b" " * 9999, 0)[:-3000])
    done = distprof("merge", tmp_path)
    assert done.returncode == 0 and "incomplete: rank 1: rank1.json.gz is cut at byte" in done.stdout, done.stdout
    assert {"work of 0", "work of 2"} <= names_in(tmp_path / "merged")
    assert distprof("merge", "--force", "--strict", tmp_path).returncode == 3
    for rank in range(3):
        (tmp_path / f"rank{rank}.json.gz").write_bytes(b"")
    done = distprof("merge", "--force", tmp_path)
    assert done.returncode == 1 and "found none" in done.stderr and len(done.stderr.splitlines()) == 1
    assert names_in(tmp_path / "merged"), "the earlier merge is still there"


def test_files_need_a_place_for_their_merge(tmp_path):
    files = [write(tmp_path / f"rank{rank}.json", kineto(rank, 2)) for rank in range(2)]
    done = distprof("merge", *files)
    assert done.returncode == 2 and "--out" in done.stderr and len(done.stderr.splitlines()) == 1
    done = distprof("merge", *files, "--out", tmp_path / "out")
    assert done.returncode == 0 and names_in(tmp_path / "out") == {"work of 0", "work of 1"}, done.stderr
    told = distprof("stats", tmp_path / "out")
    assert told.returncode == 0 and "2 ranks" in told.stdout and "Next" not in told.stdout
    done = distprof("merge", tmp_path / "rank0.json", "--out", tmp_path / "one", "--strict")
    assert done.returncode == 3 and names_in(tmp_path / "one") == {"work of 0"}


def test_the_command_takes_the_ways_to_tell_ranks(tmp_path):
    plain(tmp_path, ["gpu_0.json", "gpu_1.json"])
    assert distprof("merge", tmp_path).returncode == 1
    assert distprof("merge", tmp_path, "--rank-pattern", "gpu").returncode == 2
    assert "2 of 2 ranks" in distprof("merge", tmp_path, "--rank-pattern", r"gpu_(\d+)").stdout
    assert "2 of 2 ranks" in distprof("merge", "--force", tmp_path, "--ranks-in-order").stdout
    # what merging was told is not asked again
    assert distprof("stats", tmp_path).returncode == 0


@needs_shared
def test_a_real_gpu_job_of_eight_ranks(tmp_path):
    done = distprof("merge", DLRM, "--out", tmp_path / "out")
    assert done.returncode == 0 and "8 of 8 ranks" in done.stdout, done.stderr
    assert "left out: 8 files, each an execution trace" in done.stdout
    paths = sorted((DLRM / "kineto").glob("*.json.gz"))
    slices = {rank: sum(event["ph"] == "X" for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
              for rank, path in enumerate(paths)}
    answer = ask(tmp_path / "out" / "trace.json.gz", ERRORS, SLICES, FLOWS)
    assert answer.import_errors == []
    assert {row["name"] for row in answer.results[0]} <= {"flow_end_without_start"}
    shown: dict[int, int] = {}
    for row in answer.results[1]:
        shown[rank_of(row["process"])] = shown.get(rank_of(row["process"]), 0) + row["n"]
    assert shown == slices
    assert all(row["source"].split(" | ")[0] == row["target"].split(" | ")[0] for row in answer.results[2])
    assert distprof("merge", "--strict", DLRM, "--out", tmp_path / "strict").returncode == 3, "hosts are not known"


@needs_shared
def test_a_real_gpu_job_in_an_archive_is_the_same(tmp_path):
    with tarfile.open(tmp_path / "dlrm.tar.gz", "w:gz") as tar:
        tar.add(DLRM, "dlrm")
    for path, out in ((tmp_path / "dlrm.tar.gz", "a"), (DLRM, "b")):
        assert distprof("merge", path, "--out", tmp_path / out).returncode == 0
    whole = [json.loads(gzip.decompress((tmp_path / out / "trace.json.gz").read_bytes())) for out in ("a", "b")]
    assert whole[0]["traceEvents"] == whole[1]["traceEvents"]


@needs_shared
def test_a_real_rank_of_three_hundred(tmp_path):
    done = distprof("merge", GLOO, "--out", tmp_path / "out")
    assert done.returncode == 0 and "1 of 300 ranks" in done.stdout
    assert "incomplete: ranks 0-33, 35-299 of 300 missing" in done.stdout


def test_ranks_beyond_all_jobs_are_none(tmp_path):
    """Numbers of jobs and times are found by patterns too."""
    for rank in range(2):
        (tmp_path / f"job_1700000000000_rank{rank}.json").write_text('{"traceEvents": []}')
    done = distprof("merge", tmp_path, "--rank-pattern", r"job_(\d+)")
    assert done.returncode == 2 and "expected a rank" in done.stderr and "one to six digits" in done.stderr
    assert identity_of({"distributedInfo": {"rank": 10**12, "world_size": 10**13}}).rank is None
    assert ranks_of_places([{"tp": 99999, "pp": 0, "dp": 5}, {"tp": 0, "pp": 99999, "dp": 5}]) is None
