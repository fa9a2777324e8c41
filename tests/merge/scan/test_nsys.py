"""Exports of Nsight Systems are read like a trace of Kineto of the same events."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.run.open_run import open_run
from distprof.merge.scan.nsys import chrome_text
from support.jobs import ROOT, called, distprof
from support.nsys_export import SCHEMA, Export

GPU = ROOT.parent / "shared" / "traces" / "gpu"
needs_gpu_traces = pytest.mark.skipif(not GPU.is_dir(), reason="needs the traces of ../shared/traces/gpu")
SEEN = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation")
EPOCH_NS = 1_790_000_000_123_456_789


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7) -> dict:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
            "args": {"stream": stream, "correlation": correlation, "grid": [4, 1, 1], "block": [128, 1, 1],
                     "registers per thread": 32, "shared memory": 1024}}


def launch(ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel") -> dict:
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 70, "tid": 71, "ts": ts, "dur": dur,
            "args": {"correlation": correlation}}


def job(path: Path, *devices: int, stray: bool = False) -> Path:
    """A process for each device, with two kernels."""
    export = Export(path, EPOCH_NS)
    for device in devices:
        export.process([
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 71, "ts": 9, "dur": 8,
             "args": {"Input Dims": [[4, 8], [8, 2]]}},
            launch(10, 2, 1), launch(13, 2, 2), kernel(f"gemm of {device}", 20.125, 10.5, 1),
            kernel("ncclDevKernel_AllReduce_Sum_f32", 40, 5, 2)],
            pid=90 - device, base_ns=EPOCH_NS, device=device)
        if stray:  # a context on the first device, as scripts have that set theirs late
            export.process([kernel("fill", 5, 0.5, 9)], pid=90 - device, base_ns=EPOCH_NS, device=0)
    return export.close()


@pytest.mark.long
@needs_gpu_traces
@pytest.mark.parametrize("name", ["a100_nccl_data", "a100_negative_queue"])
def test_operators_and_communication_are_those_of_the_trace(tmp_path, name):
    whole = json.loads(gzip.decompress((GPU / f"{name}.json.gz").read_bytes()))
    base_ns = whole.get("baseTimeNanoseconds", 0)
    events = [event for event in whole["traceEvents"] if event["ph"] == "X" and event.get("cat") in SEEN]
    for event in events:
        event["args"] = event.get("args", {})
        event["args"].pop("External id", None)
    (tmp_path / "kineto").mkdir()
    (tmp_path / "kineto" / "rank0.json").write_text(json.dumps({**whole, "traceEvents": events}))
    (tmp_path / "nsys").mkdir()
    export = Export(tmp_path / "nsys" / "rank0.sqlite", base_ns)
    export.process(events, pid=4711, base_ns=base_ns)
    export.close()
    for words in (("ops", "--by", "op", "--type", "kernel"), ("ops", "--by", "category"), ("ops", "--type", "memcpy")):
        known, found = (json.loads(called(*words, "--json", tmp_path / kind).stdout) for kind in ("kineto", "nsys"))
        assert _amounts(found) == _amounts(known) and known["ops"]


def _amounts(found: dict) -> list[dict]:
    keys = ("op", "category", "calls", "self_device_ns", "device_ns", "bytes", "min_ns", "max_ns")
    return [{key: row.get(key) for key in keys} for row in found["ops"]]


def test_a_process_is_a_rank_with_names_times_and_arrows(tmp_path):
    job(tmp_path / "rank3.sqlite", 0)
    run = open_run(tmp_path)
    (rank,) = run.ranks
    assert (rank.number, rank.host, rank.device_name) == (3, "node7", "NVIDIA A100")
    assert distprof("merge", tmp_path).returncode == 0
    merged = json.loads(gzip.decompress((tmp_path / "merged" / "trace.json.gz").read_bytes()))
    events = {event["name"]: event for event in merged["traceEvents"] if event["ph"] == "X"}
    gemm, mm = events["gemm of 0"], events["aten::mm"]
    assert gemm["dur"] == 10.5 and gemm["ts"] - mm["ts"] == pytest.approx(11.125)
    assert merged["metadata"]["distprof"]["origin_ns"] + round(1000 * gemm["ts"]) == EPOCH_NS + 20_125
    assert (gemm["args"]["grid"], gemm["args"]["correlation"]) == ([4, 1, 1], 1)
    assert mm["args"]["Input Dims"] == [[4, 8], [8, 2]]
    arrows = [event for event in merged["traceEvents"] if event.get("cat") == "ac2g"]
    assert [event["ph"] for event in arrows].count("s") == [event["ph"] for event in arrows].count("f") == 2
    names = {event["args"]["name"] for event in merged["traceEvents"] if event["name"] == "process_name"}
    assert names == {"rank 3 | node7 | gpu 0", "rank 3 | node7 | cpu (pid 90)"}


@pytest.mark.parametrize("stray", [False, True])
def test_a_report_of_several_processes_is_split_into_ranks(tmp_path, stray):
    job(tmp_path / "report.sqlite", 1, 0, 2, stray=stray)
    assert "distprof split" in called("comms", tmp_path / "report.sqlite").stdout
    assert called("split", tmp_path / "report.sqlite", "--out", tmp_path / "ranks").returncode == 0
    words = ("ops", "--json", "--type", "kernel", "--by", "op", "--by", "rank")
    found = json.loads(called(*words, tmp_path / "ranks").stdout)
    gemms = {row["rank"]: row["op"] for row in found["ops"] if row["op"].startswith("gemm")}
    assert gemms == {rank: f"gemm of {rank}" for rank in range(3)}


def test_other_databases_and_reports_that_were_not_exported(tmp_path):
    base = sqlite3.connect(tmp_path / "mlflow.sqlite")
    base.executescript("CREATE TABLE runs (id INTEGER)")
    base.close()
    shutil.copy(job(tmp_path / "rank0.sqlite", 0), tmp_path / "rank1.sqlite")
    (tmp_path / "report1.nsys-rep").write_bytes(b"\0binary")
    said = called("merge", tmp_path).stdout
    assert "2 of 2 ranks" in said and "nsys export --type sqlite" in said and "mlflow" not in said
    for name, words in (("mlflow.sqlite", "without Nsight Systems events"), ("report1.nsys-rep", "nsys export")):
        done = distprof("merge", tmp_path / name)
        assert done.returncode == 1 and words in done.stderr


@pytest.mark.parametrize("keeps", [0, 9000, 15_000])
def test_a_damaged_export_costs_its_rank_alone(tmp_path, keeps):
    whole = job(tmp_path / "rank0.sqlite", 0).read_bytes()
    (tmp_path / "rank1.sqlite").write_bytes(whole[:len(whole) // 2 + keeps])
    (tmp_path / "rank2.json").write_text(json.dumps({"traceEvents": [kernel("gemm", 1, 2, 3)], "deviceProperties": []}))
    said = called("merge", tmp_path).stdout
    assert "2 of 3 ranks" in said
    assert "rank1.sqlite is not a Chrome trace but an SQLite database that cannot be read: database" in said


@pytest.mark.parametrize("table", ["StringIds", "PROCESSES", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU",
                                   "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_any_table_may_lack(tmp_path, table):
    """Tables without rows are not exported."""
    path = job(tmp_path / "rank0.sqlite", 0)
    with sqlite3.connect(path) as base:
        base.execute(f"DROP TABLE {table}")
    base.close()
    trace = json.loads(b"".join(chrome_text(path)))
    assert trace["traceEvents"] and distprof("merge", tmp_path).returncode == 0


TABLES = {table: [column.split()[0] for column in columns.split(",")] for table, columns in re.findall(
    r"CREATE TABLE (\w+) \((.*?)\);", SCHEMA, re.DOTALL)}
CELLS = st.sampled_from([(table, column) for table, columns in TABLES.items() for column in columns])


@pytest.mark.long
@given(cell=CELLS, value=st.sampled_from((None, -1, 2**62, -2**63, 3.5, "x", "", b"\0\xff", 2**40)))
def test_any_value_in_any_column_ends_no_command(tmp_path_factory, cell, value):
    """SQLite keeps whatever is put into a column."""
    folder = tmp_path_factory.mktemp("cell")
    table, column = cell
    with sqlite3.connect(job(folder / "rank0.sqlite", 0)) as base, suppress(sqlite3.IntegrityError):
        base.execute(f"UPDATE {table} SET {column} = ?", (value,))
    base.close()
    for words in (("merge", "--force"), ("ops",), ("comms",)):
        done = called(*words, folder)
        assert done.returncode == 0 or "hint" in done.stderr, done.stderr
        assert "unexpected" not in done.stderr, done.stderr


def test_a_process_with_the_number_of_its_device_stays_apart_from_it(tmp_path):
    export = Export(tmp_path / "rank0.sqlite")
    export.process([{**launch(10, 2, 1), "tid": 7}, kernel("gemm", 20, 5, 1)], pid=7, device=7)
    events = json.loads(b"".join(chrome_text(export.close())))["traceEvents"]
    assert len({(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}) == 2


def test_what_was_not_written_into_the_database_yet_is_read(tmp_path):
    path = job(tmp_path / "rank0.sqlite", 0)
    base = sqlite3.connect(path)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("UPDATE StringIds SET value = 'gemm of the log' WHERE value = 'gemm of 0'")
    base.commit()
    assert path.with_name("rank0.sqlite-wal").stat().st_size
    assert "gemm of the log" in called("ops", "--type", "kernel", path).stdout
    base.close()


@pytest.mark.parametrize("name", ["cudaStreamSynchronize_ptsz_v7000", "cudaStreamSynchronize_v3020_ptsz",
                                  "cudaStreamSynchronize_ptds", "cudaStreamSynchronize"])
def test_calls_have_their_names_without_versions(tmp_path, name):
    export = Export(tmp_path / "rank0.sqlite")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=1, end=2, eventClass=0, globalTid=7 << 24 | 7, correlationId=1,
               nameId=export.string(name), returnValue=0)
    (event,) = json.loads(b"".join(chrome_text(export.close())))["traceEvents"]
    assert event["name"] == "cudaStreamSynchronize"


def test_ranges_of_processes_and_marks(tmp_path):
    export = Export(tmp_path / "rank0.sqlite")
    for kind, end, text, text_id in ((60, 900, "epoch", None), (34, None, None, export.string("saved")),
                                     (59, 300, "aten::mul, seq = 5, op_id = 3, sizes = [[2], []]", None),
                                     (59, 400, "loader, v2", None), (75, None, "domain", None)):
        export.add("NVTX_EVENTS", start=100, end=end, eventType=kind, text=text, textId=text_id,
                   globalTid=70 << 24 | 71)
    events = json.loads(b"".join(chrome_text(export.close())))["traceEvents"]
    assert [(event["ph"], event["cat"], event["name"], event.get("args")) for event in events] == [
        ("b", "user_annotation", "epoch", None), ("e", "user_annotation", "epoch", None),
        ("i", "user_annotation", "saved", None),
        ("X", "cpu_op", "aten::mul", {"Sequence number": 5, "Input Dims": [[2], []]}),
        ("X", "user_annotation", "loader, v2", {})]
