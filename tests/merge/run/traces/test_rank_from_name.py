"""Whose rank a trace of another program is: it says so itself, or its name does, or a flag."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.problems import (
    RanksFromNames,
    TraceWithoutRank,
    WorldSizeFromRanks,
)
from distprof.errors import UsageError
from distprof.merge.run.open_run import open_run
from distprof.merge.run.traces.rank_from_name import place_in, rank_in, suggested_pattern
from distprof.merge.run.traces.ranking import Naming, read_rank_map
from distprof.merge.run.traces.trace_identity import identity_of
from support.jobs import distprof
from support.kineto_files import files_of, kineto, plain, refused, write

FORMS = ("new", "pretty", "compact", "old", "on demand", "events first")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_every_version_of_kineto_tells_its_rank(tmp_path, form, suffix):
    for index, rank in enumerate((2, 0, 1)):
        write(tmp_path / f"host_{4711 + index}.169412820154{index}.pt.trace{suffix}", kineto(rank, 3, form=form))
    run = open_run(tmp_path)
    assert [rank.number for rank in run.ranks] == [0, 1, 2] and run.world_size == 3
    assert (run.kind, run.problems, run.missing) == ("traces", (), [])
    assert files_of(run)[2] == f"host_4711.1694128201540.pt.trace{suffix}"
    assert all(rank.device_name == "H100" for rank in run.ranks)
    hosts = {rank.host for rank in run.ranks}
    assert hosts == ({""} if form == "old" else {"node0"})


@pytest.mark.parametrize("about", [
    {"rank": "1", "world_size": "2"}, "{'rank': 1, 'world_size': 2}", '{"rank": 1, "world_size": 2}'])
def test_numbers_may_be_text_and_the_info_too(tmp_path, about):
    write(tmp_path / "a.json", kineto(0, 2))
    write(tmp_path / "b.json", kineto(1, about=about))
    assert files_of(open_run(tmp_path)) == {0: "a.json", 1: "b.json"}


KEYS = st.sampled_from(["rank", "world_size", "pg_config", "pg_size", "ranks", "pg_desc"])


@pytest.mark.long
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
    "accelerate": {"profile_0.json": 0, "profile_12.json": 12, "my_profile_3.json": None, "profile_3_a.json": None},
    "HTA": {"rank-34.json.gz": 34}, "Composer": {"ep0-ba3-rank2.json": 2},
    "ranks of other groups than the world": {f"{word}_rank_2.json": None for word in (
        "local", "node", "group", "tp", "pp", "dp", "cp", "ep", "mp", "moe")},
    "SGLang": {"1760000000-TP-3.trace.json.gz": None, "1760000000-TP-1-DP-0-EP-1.trace.json.gz": None},
    "TensorRT-LLM and scripts": {"trace_rank_3.json": 3, "profile_rank7.json": 7, "trace-rank-0.json.gz": 0},
    "verl": {"prof_start_2_end_3_rank_5.json.gz": 5}, "DeepSpeed's example": {"log/rank_6/host_1.17.pt.trace.json": 6},
    "VizTracer": {"result_4711.json": None, "viztracer_rank2.json": 2},
    "Ascend": {"host_4711_2026_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json": None},
    "JAX": {"plugins/profile/2026_07_25_18_01_04/host0.trace.json.gz": None},
    "a folder for each rank": {"rank3/host7_4711.169412.pt.trace.json": 3, "rank_4/trace.json": 4,
                               "rank5/profile_3.json": 5},
    "nothing": {"host7_4711.1694128201545.pt.trace.json": None, "trace.json": None, "frank3.json": None,
                "local_rank0.json": None, "tp_rank_1.json": None, "1700000000-TP-3-DP-0.trace.json.gz": None},
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_ranks_in_names(names):
    assert {name: rank_in(PurePosixPath(name)) for name in names} == names


def test_there_are_forty_names_of_fifteen_producers():
    assert sum(map(len, NAMES.values())) >= 40 and len(NAMES) >= 15


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
    (["dp0_tp0/trace.json", "dp0_tp1/trace.json", "dp1_tp0/trace.json", "dp1_tp1/trace.json"], [0, 1, 2, 3]),
    (["trace_rank[0].json", "trace_rank[1].json"], [0, 1]),
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
    assert run.world_size == 4 and not run.problems
    assert RanksFromNames(names="mesh", contradicted=True) in run.remarks


def test_a_trace_knows_better_than_its_name(tmp_path):
    write(tmp_path / "rank0.json", kineto(1, 2))
    write(tmp_path / "rank1.json", kineto(0, 2))
    assert files_of(open_run(tmp_path)) == {0: "rank1.json", 1: "rank0.json"}


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


def test_several_groups_of_a_pattern_are_a_place(tmp_path):
    names = [f"node{node}/gpu{gpu}.json" for node in range(2) for gpu in range(3)]
    plain(tmp_path, [*names, "other.json"])
    run = open_run(tmp_path, naming=Naming(pattern=r"node(\d+)/gpu(\d+)"))
    assert files_of(run) == dict(enumerate(names))
    assert list(run.problems) == [TraceWithoutRank(file="other.json")]


def test_a_file_may_list_the_ranks(tmp_path):
    plain(tmp_path / "traces", ["b/x.json", "a.json", "c.json"])
    (tmp_path / "map").write_text("# of the second job\n1 a.json\n\n 0   b/x.json \n")
    done = distprof("merge", tmp_path / "traces", "--rank-map", tmp_path / "map", "--out", tmp_path / "out")
    assert done.returncode == 0 and "c.json was skipped" in done.stdout, done.stderr
    found = open_run(tmp_path / "traces", naming=Naming(of_files=read_rank_map(tmp_path / "map")))
    assert files_of(found) == {0: "b/x.json", 1: "a.json"}
    for line, words in (("3 d.json", "lists d.json, which is no trace here"), ("a.json", "line 1 of"),
                        ("-1 a.json", "line 1 of"), ("0 a.json\n1 a.json", "line 2 of")):
        (tmp_path / "map").write_text(line)
        done = distprof("merge", tmp_path / "traces", "--rank-map", tmp_path / "map", "--out", tmp_path / "new")
        assert done.returncode == 2 and words in done.stderr and "hint: " in done.stderr


@pytest.mark.parametrize(("naming", "words"), [
    (Naming(pattern="("), "not a valid regular expression"), (Naming(pattern="trace"), "must have a group"),
    (Naming(pattern="(t)race"), "must match a number"), (Naming(pattern=r"(\d)(x)?"), "must match a number"),
    (Naming(pattern=r"(\d)", in_order=True), "cannot be combined"),
])
def test_a_naming_that_makes_no_sense_is_refused(tmp_path, naming, words):
    plain(tmp_path, ["trace_0.json", "trace_1.json"])
    with pytest.raises(UsageError, match=words):
        open_run(tmp_path, naming=naming)
    assert "matches none of" in refused(tmp_path, naming=Naming(pattern=r"gpu(\d+)"))


@given(st.lists(st.integers(0, 40), min_size=2, max_size=9, unique=True), st.sampled_from(["t_{}", "a1_{}.7", "{}/t"]))
def test_the_suggested_pattern_works(numbers, form):
    import re

    names = [f"{form.format(number)}.json" for number in numbers]
    pattern = suggested_pattern(names)
    if sorted(numbers) == list(range(len(numbers))):
        assert [int(re.search(pattern, name)[1]) for name in names] == numbers
    else:
        assert pattern is None


def test_a_node_and_a_local_rank_in_names_are_suggested(tmp_path):
    names = [f"node{node}/local_rank{local}.json" for node in range(2) for local in range(3)]
    plain(tmp_path, names)
    said = refused(tmp_path)
    pattern = said.split("--rank-pattern '")[1].split("'")[0]
    assert files_of(open_run(tmp_path, naming=Naming(pattern=pattern))) == dict(enumerate(names))
    assert suggested_pattern(["a0/x0.json", "a0/x1.json", "a1/x0.json"]) is None, "a place is empty"
