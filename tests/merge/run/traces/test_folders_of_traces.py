"""Which files of a folder or an archive are traces of one run, and what is said of the others."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import sqlite3
import tarfile
import zipfile

import pytest

from distprof.contract.problems import (
    FilesLeftOut,
    RanksMissing,
    SeveralRanksInFile,
    SeveralTraces,
    TraceWithoutRank,
    WorldSizesDiffer,
)
from distprof.merge.run.open_run import open_run
from distprof.merge.run.traces.ranking import Naming
from distprof.merge.text.problems import sentences
from support.jobs import distprof
from support.kineto_files import CASES, events, files_of, kineto, names_in, needs_shared, plain, refused, write
from support.rank_traces import slice_of


def test_a_trace_without_a_rank_beside_others_is_left_out_and_said(tmp_path):
    write(tmp_path / "rank0.1.pt.trace.json", kineto(0, 1))
    plain(tmp_path, ["host_7.async_llm.2.pt.trace.json"])
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.1.pt.trace.json"}
    assert list(run.problems) == [TraceWithoutRank(file="host_7.async_llm.2.pt.trace.json")]


MESH = [f"1760-TP-{tp}-DP-{dp}.trace.json.gz" for tp in range(2) for dp in range(2)]


@pytest.mark.parametrize("odd", [None, 0])
def test_an_odd_file_does_not_cost_the_others_their_ranks(tmp_path, odd):
    plain(tmp_path, MESH)
    write(tmp_path / "1760-TOKENIZER-0.trace.json", kineto(odd, 4))
    run = open_run(tmp_path)
    assert sorted(files_of(run).values()) == MESH
    assert list(run.problems) == [TraceWithoutRank(file="1760-TOKENIZER-0.trace.json")]


PREFIXED = [{"ph": "X", "pid": f"[TP0{tp}] 2848", "tid": 1, "ts": 10, "dur": 1, "name": "a"} for tp in range(2)]
TWO_CPUS = [{"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": "CPU"}} for pid in (7, 8)]


@pytest.mark.parametrize(("name", "of_several"), [
    ("trace.json", PREFIXED), ("trace.json", TWO_CPUS), ("merged-1760.trace.json", []), ("all_ranks.json", []),
    ("merge_trace.json", []), ("combined.json", [])])
def test_what_another_tool_merged_is_left_out_beside_the_ranks_and_read_alone(tmp_path, name, of_several):
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", kineto(rank, 2))
    write(tmp_path / name, json.dumps(json.loads(kineto(0, 2)) | {"traceEvents": [*of_several, *events(0)]}))
    os.utime(tmp_path / "rank0.json", ns=(1, 1))
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.json", 1: "rank1.json"} and not run.problems
    assert list(sentences(run.remarks)) == [f"1 file skipped: a merged trace ({name})"]
    alone = open_run(tmp_path / name)
    assert files_of(alone).keys() == {0}
    assert (SeveralRanksInFile(file=f"{tmp_path}/{name}") in alone.remarks) == bool(of_several)


def test_of_several_ranks_in_one_file_nobody_is_said_not_to_wait(tmp_path):
    calls = [{"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": pid, "tid": 1, "ts": 10, "dur": 5}
             for pid in (7, 8)]
    write(tmp_path / "all.json", json.dumps({"deviceProperties": [], "traceEvents": [*TWO_CPUS, *calls, *events(7)]}))
    assert json.loads(distprof("comms", "--json", tmp_path / "all.json").stdout)["blind"] == "one file"


@pytest.mark.parametrize("left", ["", "{", "[", '{"a": 1', "no JSON"])
def test_what_a_script_left_of_merging_is_no_loss_where_the_ranks_are_there(tmp_path, left):
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", kineto(rank, 2))
    (tmp_path / "merge_trace.json").write_text(left)
    run = open_run(tmp_path)
    assert len(files_of(run)) == 2 and list(run.problems) == []
    (said,) = sentences(run.remarks)
    assert said.startswith("1 file skipped: ") and said.endswith(" (merge_trace.json)")
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").unlink()
    assert "merge_trace.json" in refused(tmp_path), "alone it is what was asked for"


@pytest.mark.parametrize("folder", ["", "viztracer/"])
def test_beside_traces_of_torch_those_of_other_programs_are_named(tmp_path, folder):
    for rank in range(2):
        write(tmp_path / f"worker_{rank}.pt.trace.json", kineto(rank, 2))
    theirs = json.dumps({"traceEvents": events(0), "viztracer_metadata": {"version": "1.0.4"}})
    write(tmp_path / f"{folder}result_rank0.json", theirs)
    run = open_run(tmp_path)
    assert files_of(run) == {rank: f"worker_{rank}.pt.trace.json" for rank in range(2)} and list(run.problems) == []
    assert [one.name for one in run.ranks[0].beside] == [f"{folder}result_rank0.json"] and not run.ranks[1].beside
    assert list(sentences(run.remarks)) == [
        "1 trace of other programs next to those of torch.profiler: skipped here, and drawn as processes of the rank "
        f"by distprof merge ({folder}result_rank0.json)"]


def test_a_merged_model_in_the_names_of_ranks_makes_no_merged_trace(tmp_path):
    plain(tmp_path, ["rank0.json", "merged_rank1.json", "combined-TP-1.json"])
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.json", 1: "merged_rank1.json"}
    assert list(run.problems) == [TraceWithoutRank(file="combined-TP-1.json")]


def test_compressed_traces_and_names_without_json_are_found_and_other_files_passed_by(tmp_path):
    packers = {"rank0.trace.json.bz2": bz2.compress, "rank1.pt.trace.json.xz": lzma.compress, "rank2.trace": bytes,
               "trace_rank3": bytes, "rank4.gz": gzip.compress, "plugins/profile/2026_07_25/rank5.json": bytes}
    for rank, (name, pack) in enumerate(packers.items()):
        file = write(tmp_path / name, "")
        file.write_bytes(pack(kineto(rank, 6).encode()))
    for name, content in (("notes", b"hello"), ("log.gz", gzip.compress(b"hello")), ("state", b'{"step": 1}'),
                          ("model.xz", b"\xfd7zXZ\0 damaged"), ("trace_rank9", b'{"pg_status": {}, "pg_config": {}}')):
        (tmp_path / name).write_bytes(content)
    run = open_run(tmp_path)
    assert files_of(run) == dict(enumerate(packers)) and not run.problems and not run.remarks


@pytest.mark.parametrize("given", ["", "plugins/profile/2026_07_25_18_01_04"])
def test_hosts_of_jax_are_ranks_in_the_order_of_their_names(tmp_path, given):
    folder = "plugins/profile/2026_07_25_18_01_04"
    for name in ("host10.trace.json.gz", "host9.trace.json.gz", "perfetto_trace.json.gz"):
        file = write(tmp_path / folder / name, "")
        file.write_bytes(gzip.compress(json.dumps({"traceEvents": [slice_of("fusion.1", 10.5, 5)]}).encode()))
    run = open_run(tmp_path / given)
    inside = "" if given else f"{folder}/"
    assert files_of(run) == {0: f"{inside}host9.trace.json.gz", 1: f"{inside}host10.trace.json.gz"}
    assert list(sentences(run.remarks))[:2] == [
        f"1 file skipped: a merged trace ({inside}perfetto_trace.json.gz)",
        "ranks are taken from the order of the hosts in the file names"]
    assert not run.problems


@needs_shared
def test_traces_that_zstd_itself_compressed_are_read():
    run = open_run(CASES / "zst")
    assert files_of(run) == {0: "rank0.json.zst", 1: "rank1.json.zst"}


def test_ascend_s_rank_stands_in_the_name_of_a_file_beside_its_folder(tmp_path):
    for rank, folder in ((1, "host_7_ascend_pt"), (0, "host_9_ascend_pt")):
        write(tmp_path / folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", kineto(None))
        write(tmp_path / folder / f"profiler_info_{rank}.json", "{}")
    assert files_of(open_run(tmp_path)) == {
        0: "host_9_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json",
        1: "host_7_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json"}


def test_the_way_out_is_that_of_most_files(tmp_path):
    plain(tmp_path, ["run/host0.trace.json.gz", "run/host1.trace.json.gz", "run/perfetto_trace.json.gz"])
    assert r"distprof merge --rank-pattern 'host(\d+)'" in refused(tmp_path)


def test_iterations_are_refused_and_one_of_them_is_not(tmp_path):
    for step in (10, 20, 100):
        for rank in range(2):
            write(tmp_path / f"traces/iteration_{step}/rank{rank}_trace.json", kineto(rank, 2))
    told = refused(tmp_path)
    assert "several traces per rank: ranks 0-1 in 3 iterations" in told
    assert f"like {tmp_path}/traces/iteration_100" in told
    assert open_run(tmp_path / "traces" / "iteration_20").problems == ()


def test_folders_of_one_rank_each_are_refused_with_the_way_out(tmp_path):
    plain(tmp_path, [f"node{gpu // 2}/gpu{gpu}_rank{gpu % 2}.json" for gpu in range(4)])
    told = refused(tmp_path)
    assert f"in 2 places: {tmp_path}/node0, {tmp_path}/node1" in told and "--rank-pattern" in told
    assert len(open_run(tmp_path, naming=Naming(pattern=r"gpu(\d)")).ranks) == 4


def test_ranks_of_several_folders_are_one_run(tmp_path):
    for rank in range(4):
        write(tmp_path / f"node{rank // 2}/host_{rank}.json", kineto(rank, 4, host=f"node{rank // 2}"))
    run = open_run(tmp_path)
    assert len(run.ranks) == 4 and not run.problems
    assert {rank.host for rank in run.ranks} == {"node0", "node1"}
    assert files_of(open_run(tmp_path / "node0", tmp_path / "node1")).keys() == {0, 1, 2, 3}


def test_of_two_traces_of_a_rank_the_newer_is_taken_and_both_are_said(tmp_path):
    for name in ("rank0.900.json", "rank0.1000.json", "rank1.950.json"):
        write(tmp_path / name, kineto(int(name[4]), 2))
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.1000.json", 1: "rank1.950.json"}
    assert list(run.problems) == [SeveralTraces(rank=0, used="rank0.1000.json", left_out=("rank0.900.json",))]
    # the time in a name counts, not the number of the process before it
    for name in ("h_9000.1700000000000.pt.trace.json", "h_1000.1700000009000.pt.trace.json"):
        write(tmp_path / "again" / name, kineto(0, 1))
    assert files_of(open_run(tmp_path / "again")) == {0: "h_1000.1700000009000.pt.trace.json"}
    shutil.rmtree(tmp_path / "again")
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
    assert files_of(run) == {0: str(file)} and not run.problems


def _written(folder, rank, world_size, at_s):
    file = write(folder / f"rank{rank}.json", kineto(rank, world_size))
    os.utime(file, (at_s, at_s))


def test_what_an_earlier_job_of_more_ranks_left_is_not_mixed_in(tmp_path):
    for rank in range(4):
        _written(tmp_path, rank, 4, 1_700_000_000 + rank)
    for rank in range(2):
        _written(tmp_path, rank, 2, 1_700_000_100 + rank)
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.json", 1: "rank1.json"} and run.world_size == 2 and not run.problems
    assert run.remarks == (FilesLeftOut(num_files=2, files=("rank2.json", "rank3.json"),
                                        instead="traces of an earlier job"),)


@pytest.mark.parametrize(("sizes", "times"), [
    ((2, 2, 4, 4), (100, 101, 100, 99)),  # of one time
    ((2, 4, 4, 4), (100, 1, 1, 1)),  # the later one lacks a rank
    ((2, 2, 4, None), (100, 101, 1, 1)),  # one that may be of either
    ((None, None, 4, 4), (100, 101, 1, 1)),
])
def test_traces_that_may_be_of_one_job_are_all_merged(tmp_path, sizes, times):
    for rank, (size, at_s) in enumerate(zip(sizes, times, strict=True)):
        _written(tmp_path, rank, size, at_s)
    assert len(files_of(open_run(tmp_path))) == 4


def test_missing_ranks_and_world_sizes_that_differ_are_said(tmp_path):
    write(tmp_path / "a.json", kineto(0, 4))
    write(tmp_path / "b.json", kineto(5, 8))
    write(tmp_path / "c.json", kineto(6, 8))
    run = open_run(tmp_path)
    assert run.world_size == 8 and run.missing == [1, 2, 3, 4, 7]
    assert list(run.problems) == [WorldSizesDiffer(ranks_by_size={4: (0,), 8: (5, 6)}, highest_rank=6),
                            RanksMissing(ranks=(1, 2, 3, 4, 7), world_size=8)]
    write(tmp_path / "d.json", kineto(9, 8))
    assert WorldSizesDiffer(ranks_by_size={4: (0,), 8: (5, 6, 9)}, highest_rank=9) in open_run(tmp_path).problems


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
    write(tmp_path / "1" / "2" / "3" / "4" / "5" / "rank0.json", kineto(0, 1))
    write(tmp_path / "notes.txt", "mine")
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.json"} and not run.problems
    assert sorted(sentences(run.remarks)) == [
        "1 file skipped: JSON without traceEvents (name, version, scripts, a, ...) (package.json)",
        "1 file skipped: a merged trace (merged.json.gz)",
        "1 file skipped: an empty JSON object (empty.json)",
        "1 file skipped: damaged JSON, or a format without traceEvents (tsconfig.json)",
        "2 files skipped: a JSON list without Chrome events (list.json, results.json)",
        "2 files skipped: an execution trace (et/rank0_et.json.gz, et/rank1_et.json.gz)",
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
    for words in ("rank1.json is not a Chrome trace but an empty file",
                  "rank2.json is not a Chrome trace but an HTML page",
                  "rank3.json.gz is not a Chrome trace but a Git LFS",
                  "rank4.json is not a Chrome trace but a trace that is cut off before its first event",
                  "rank5.json.gz", "is cut at byte 60", "rank6.tar.gz is not a tar archive"):
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


@pytest.mark.long
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
    assert "several traces per rank: ranks 2, 9-10 in 2 places" in refused(tmp_path / "in")
    done = distprof("merge", tmp_path / "in" / "all.tgz", "--out", tmp_path / "out")
    assert done.returncode == 0 and "3 of 11 ranks" in done.stdout, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"trace.json.gz", "summary.json"}
    assert not (tmp_path / "out" / "unpacked").exists()
    assert names_in(tmp_path / "out") == {"work of 2", "work of 9", "work of 10"}


def test_an_archive_may_hold_traces_of_every_compression(tmp_path):
    compressed = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    for rank, (suffix, pack) in enumerate(compressed.items()):
        (tmp_path / f"rank{rank}.json{suffix}").write_bytes(pack(kineto(rank, 4).encode()))
    with tarfile.open(tmp_path / "all.tgz", "w:gz") as tar:
        for file in sorted(tmp_path.glob("rank*")):
            tar.add(file, file.name)
    done = distprof("merge", tmp_path / "all.tgz", "--out", tmp_path / "out")
    assert done.returncode == 0 and "4 of 4 ranks" in done.stdout, done.stderr
    assert names_in(tmp_path / "out") == {f"work of {rank}" for rank in range(4)}


def test_a_zip_archive_is_a_folder_and_its_damage_costs_what_lies_behind_it(tmp_path):
    for rank in range(2):
        write(tmp_path / f"in/host_{rank}.json", kineto(rank, 2) + " " * 100_000)
    file = tmp_path / "all.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for rank in range(2):
            archive.write(tmp_path / f"in/host_{rank}.json", f"job/host_{rank}.json")
        archive.writestr("job/notes.txt", "hello")
    assert files_of(open_run(file)) == {rank: f"{file}: job/host_{rank}.json" for rank in range(2)}
    done = distprof("merge", file, "--out", tmp_path / "out")
    assert done.returncode == 0 and names_in(tmp_path / "out") == {"work of 0", "work of 1"}
    content = bytearray(file.read_bytes())
    content[90_000] ^= 1
    file.write_bytes(content)
    done = distprof("merge", "--force", file, "--out", tmp_path / "out")
    assert "host_0.json is damaged (Bad CRC-32" in done.stdout
    assert names_in(tmp_path / "out") == {"work of 0", "work of 1"}
    file.write_bytes(content[:150_000])
    done = distprof("merge", "--force", file, "--out", tmp_path / "out")
    assert done.returncode == 1 and "cannot read" in done.stderr and "zip" in done.stderr


def test_run_directories_are_not_taken_for_traces(ddp, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(ddp)
    assert "is a folder of several runs: mine" in refused(tmp_path / "runs")
    write(tmp_path / "rank4.json", kineto(4, 5))
    assert "is not a run directory" in refused(ddp, tmp_path / "rank4.json")
    assert "does not exist" in refused(tmp_path / "nowhere")


def test_a_trace_of_ours_is_a_trace_like_any_other(ddp):
    run = open_run(ddp / "rank00002" / "trace.json.gz")
    assert files_of(run).keys() == {2} and run.kind == "traces" and run.world_size == 4


def test_one_file_of_one_process_needs_no_rank(tmp_path):
    plain(tmp_path, ["viztracer.json"])
    run = open_run(tmp_path)
    assert files_of(run) == {0: "viztracer.json"} and run.world_size == 1 and run.problems == () == run.remarks


@pytest.mark.parametrize(("name", "content", "words"), [
    ("trace.pftrace", b"\n\5hello", "a Perfetto trace, not a Chrome trace"),
    ("rank2.perfetto-trace", b"\n\5hello", "a Perfetto trace, not a Chrome trace"),
    ("merged.fxt.gz", b"\x1f\x8b", "a Fuchsia trace, not a Chrome trace"),
    ("report1.qdrep", b"binary", "an Nsight Systems report: make it readable with nsys export --type sqlite"),
    ("all.tar.zst", b"binary", "an archive that has to be unpacked first"),
    ("all.7z", b"7z\xbc\xaf", "an archive that has to be unpacked first"),
    ("report1.sqlite.gz", b"\x1f\x8b", "a compressed database, which has to be decompressed first"),
    ("4711_results.db", None, "a rocprofv3 database: write JSON with rocprofv3 --output-format json")])
def test_what_may_hold_a_trace_and_is_not_read_is_named(tmp_path, name, content, words):
    if content is None:
        with sqlite3.connect(tmp_path / name) as base:
            base.execute("CREATE TABLE rocpd_kernel_dispatch_0001 (id INTEGER)")
        base.close()
    else:
        (tmp_path / name).write_bytes(content)
    assert f"{words} ({name})" in refused(tmp_path).replace(f"{name}: {words}", f"{words} ({name})")
    write(tmp_path / "rank0.json", kineto(0, 1))
    run = open_run(tmp_path)
    assert list(sentences(run.remarks)) == [f"1 file skipped: {words} ({name})"] and not run.problems


def test_a_browser_s_suffix_hides_no_trace(tmp_path):
    write(tmp_path / "rank0.json.txt", kineto(0, 1))
    (tmp_path / "notes.json.txt").write_text("no trace")
    assert files_of(open_run(tmp_path)) == {0: "rank0.json.txt"}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_of_two_traces_in_a_file_the_first_is_read_and_the_other_is_said(tmp_path, pack):
    file = tmp_path / "both.json"
    file.write_bytes(b"\n".join(pack(kineto(rank, 2).encode()) for rank in range(2)) if pack is bytes else b"".join(
        pack(kineto(rank, 2).encode()) for rank in range(2)))
    done = distprof("merge", file, "--out", tmp_path / "out")
    assert "incomplete: rank 0: both.json holds another trace behind this one, which is not read" in " ".join(
        done.stdout.replace(str(file), "both.json").split())
    found = json.loads(gzip.decompress((tmp_path / "out" / "trace.json.gz").read_bytes()))["traceEvents"]
    assert [one["name"] for one in found if one["ph"] == "X"] == ["work of 0"]


def test_beside_files_that_tell_their_rank_one_that_does_not_is_not_the_newest(tmp_path):
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", kineto(rank, 2))
    both = write(tmp_path / "both.json", kineto(0, 2) + kineto(1, 2))
    os.utime(both, ns=(2**62, 2**62))
    run = open_run(tmp_path)
    assert files_of(run) == {0: "rank0.json", 1: "rank1.json"}
    assert list(run.problems) == [SeveralTraces(rank=0, used="rank0.json", left_out=("both.json",))]
