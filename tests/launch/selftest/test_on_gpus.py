"""Claims about GPUs, on a timeline made by hand: all hold, and each fault in it is a row that does not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from distprof.contract.paths import MERGED, TRACE_JSON
from distprof.launch.selftest.device_claims import ALONE, AMONG_SEVERAL, SHARED
from distprof.launch.selftest.evidence import Evidence, Planted, rows
from distprof.launch.selftest.host_claims import SAID
from distprof.launch.selftest.selftest import jobs_here

MAIN, SIDE = 7, 13
TRACED = range(5, 9)
NUM_STEPS = 16
FACTS = {"device": "cuda:0", "script": __file__, "rows": 2, "inner": 3, "columns": 5, "up_bytes": 100,
         "down_bytes": 200, "across_bytes": 300, "graph_kernels": 4, "chain_flops": 7000, "reduced_bytes": 64,
         "reduces": 2, "sent_bytes": 8, "copy_bytes": 100}
SPIN_US, SIDE_US, CHAIN_US = 20_000.0, 15_000.0, 18_000.0
PLANTED = {"spin": SPIN_US * 1e3, "side": SIDE_US * 1e3, "chain": CHAIN_US * 1e3, "step": 70e6}


def device_slices(step: int) -> list[dict[str, Any]]:
    """What the device does in a step, as torch's profiler writes it."""
    def slice_of(name: str, cat: str, at: float, dur: float, stream: int = MAIN, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": cat, "pid": 2, "tid": stream, "ts": step * 1e5 + at, "dur": dur,
                "args": {"stream": stream, **args}}

    spin = "at::cuda::(anonymous namespace)::spin_kernel(long)"
    return [
        slice_of(spin, "kernel", 10, SPIN_US), slice_of("add", "kernel", 20_020, 5),
        slice_of(spin, "kernel", 20_030, SIDE_US, SIDE), slice_of("add", "kernel", 35_040, 5),
        slice_of("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 35_100, 9, bytes=100),
        slice_of("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 35_200, 9, bytes=200),
        slice_of("Memcpy DtoD (Device -> Device)", "gpu_memcpy", 35_300, 9, bytes=300),
        *(slice_of("add", "kernel", 35_400 + 10 * number, 5) for number in range(4)),
        slice_of("gemm", "kernel", 36_000, CHAIN_US)]


def ops_of(step: int) -> list[dict[str, Any]]:
    """What `ops` says of it."""
    def row(op: str, kind: str, calls: int, ns: float, by: str | None = None,
            module: str | None = None) -> dict[str, Any]:
        return {"rank": 0, "op": op, "type": kind, "calls": calls, "self_device_ns": int(ns), "launched_by": by,
                "module_path": module, "step": step}

    return [row("spin", "kernel", 2, (SPIN_US + SIDE_US) * 1e3, "cudaLaunchKernel"),
            row("add", "kernel", 2, 1e4, "aten::add_"),
            row("add", "kernel", 4, 2e4, "cudaGraphLaunch"), row("gemm", "kernel", 1, CHAIN_US * 1e3, "aten::bmm"),
            row("aten::mm", "operator", 2, 5e3, module="product")]


def compressed(path: Path, events: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)


def evidence_of(folder: Path, change: Callable[[list[dict[str, Any]]], Any] = len) -> Evidence:
    """A run in which everything is right, but for a change of the merged timeline."""
    slices = [one for step in TRACED for one in device_slices(step)]
    compressed(folder / "rank00000" / TRACE_JSON, slices)
    merged = json.loads(json.dumps(slices))
    change(merged)
    names = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank 0 | {what}"}}
             for pid, what in ((1, "cpu"), (2, "gpu 0"))]
    compressed(folder / MERGED / TRACE_JSON, [*names, *merged])
    evidence = Evidence(folder, [Planted(rank=0, facts=FACTS, steps=[PLANTED] * NUM_STEPS, failed={})])
    passes = {"count": [0], "time": [1, 2, 3, 4], "trace": list(TRACED)}
    ns = {"spin": SPIN_US * 1e3, "chain": CHAIN_US * 1e3}
    flops = {"product": 60.0, "chain": 7000.0}
    vars(evidence).update(
        ops=pl.DataFrame([row for step in TRACED for row in ops_of(step)]),
        steps=pl.DataFrame([{"rank": 0, "step": step, "pass": name, "duration_ns": 70_000_000}
                            for name, steps in passes.items() for step in steps]),
        collectives=pl.DataFrame([{"rank": 0, "step": step, "op": op, "size_bytes": size, "complete": True}
                                  for step in TRACED for op, size in (("all_reduce", 64), ("all_reduce", 64),
                                                                      ("broadcast", 8))]),
        modules=pl.DataFrame([{
            "module_path": path, "fwd_time_ns_mean": ns.get(path, 1e5),
            **{f"{phase}_flops_{what}": flops.get(path, 0.0)
               for phase in ("fwd", "bwd") for what in ("min", "max", "mean")}}
            for path in ("product", "spin", "chain")]))
    return evidence


def failing(evidence: Evidence) -> list[str]:
    return [row.claim for row in rows("job", ALONE, evidence) if not row.holds]


def test_all_hold_where_all_is_as_planted(tmp_path):
    assert failing(evidence_of(tmp_path)) == []
    assert [row.found for row in rows("job", SHARED[:2], evidence_of(tmp_path / "shared"))] == ["4 of 100 B", "0"]


def named(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda one: name in one["name"]


def on_main(slices: list[dict[str, Any]]) -> None:
    for one in slices:
        one["args"]["stream"] = MAIN


def doubled(name: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(slices: list[dict[str, Any]]) -> None:
        for one in filter(named(name), slices):
            one["dur"] *= 2
            one["args"]["bytes"] = 2 * one["args"].get("bytes", 0)

    return change


def without(name: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(slices: list[dict[str, Any]]) -> None:
        slices[:] = [one for one in slices if name not in one["name"]]

    return change


def early(slices: list[dict[str, Any]]) -> None:
    """The main stream does not wait."""
    for one in filter(named("add"), slices):
        if one["ts"] % 1e5 == 35_040:
            one["ts"] -= 10_000


LENGTHS = ["a long kernel, timed by events", "a long kernel on a side stream, timed by events"]
STREAMS = ["ranks whose side stream is a stream of its own", "time that the main stream waits for it",
           "kernels on the main stream meanwhile"]


@pytest.mark.parametrize(("change", "claims"), [
    (doubled("HtoD"), ["copies to the device"]), (doubled("DtoH"), ["copies from the device"]),
    (without("DtoD"), ["copies within the device"]), (early, STREAMS[1:]),
    (without("spin"), [*LENGTHS, *STREAMS])], ids=["up", "down", "across", "early", "spin"])
def test_a_fault_in_the_timeline_is_found(tmp_path, change, claims):
    assert failing(evidence_of(tmp_path, change)) == claims


def test_one_stream_for_both_and_wrong_lengths_are_found(tmp_path):
    assert STREAMS[0] in failing(evidence_of(tmp_path / "one", on_main))
    assert failing(evidence_of(tmp_path / "long", doubled("spin")))[:2] == LENGTHS


def test_kernels_that_are_lost_or_in_no_step_are_found(tmp_path):
    evidence = evidence_of(tmp_path)
    whole = evidence.ops
    vars(evidence)["ops"] = whole.filter(pl.col("launched_by").is_null() | ~pl.col("launched_by").str.contains("Graph"))
    assert failing(evidence) == ["kernels of CUDA graphs", "all kernels, compared with torch's own traces",
                                 "their time, compared with torch's own traces"]
    vars(evidence)["ops"] = whole.with_columns(step=pl.lit(None, pl.Int64()))
    assert failing(evidence) == ["kernels of CUDA graphs"]
    vars(evidence)["ops"] = whole.with_columns(self_device_ns=2 * pl.col("self_device_ns"))
    assert failing(evidence) == ["kernels of many products, timed by events",
                                 "their time, compared with torch's own traces"]


def test_jobs_fit_the_machine():
    def named_jobs(*given: Any, **options: Any) -> tuple[list[str], list[str]]:
        jobs, not_tested = jobs_here(*given, **options)
        return [job.name for job in jobs], not_tested

    assert named_jobs(0, on_cpu=False, has_nccl=True) == (["2 ranks on CPUs, gloo"], ["no GPU"])
    assert named_jobs(8, on_cpu=True, has_nccl=True) == (["2 ranks on CPUs, gloo"], ["GPUs: left out by --cpu"])
    assert named_jobs(1, on_cpu=False, has_nccl=True) == (
        ["2 ranks on one GPU, gloo", "1 rank on a GPU, NCCL"], ["a late rank among several GPUs: there is only one"])
    assert named_jobs(8, on_cpu=False, has_nccl=True) == (
        ["2 ranks on one GPU, gloo", "4 ranks with a GPU each, NCCL"], [])
    assert len(named_jobs(1, on_cpu=False, has_nccl=False)[0]) == 1
    shared, several = jobs_here(8, on_cpu=False, has_nccl=True)[0]
    assert several.claims[-len(AMONG_SEVERAL):] == AMONG_SEVERAL
    assert set(SAID) <= set(shared.claims)


def test_where_nothing_ran_on_a_device_no_claim_about_one_holds(tmp_path):
    evidence = evidence_of(tmp_path, list.clear)
    compressed(tmp_path / "none" / TRACE_JSON, [])
    (tmp_path / "none" / TRACE_JSON).replace(tmp_path / "rank00000" / TRACE_JSON)
    vars(evidence)["ops"] = evidence.ops.filter(pl.col("type") == "operator").with_columns(self_device_ns=0)
    holding = {row.claim for row in rows("job", ALONE, evidence) if row.holds}
    assert not [claim for claim in holding if "kernel" in claim or "copies" in claim or "stream" in claim]
    assert "products in the timeline" in holding
