"""What `rocprofv3 --output-format json` writes is read like a trace."""

from __future__ import annotations

import gzip
import json

import pytest

from distprof.merge.run.open_run import open_run
from distprof.merge.scan.rocprof import chrome_text
from support.jobs import called, distprof

MS = 1_000_000
PRODUCT = "AMD Instinct MI350X"
BOOT_NS = 63_857_982_592_000


def recorded(device: int, pid: int = 908, *, host: str = "mi350") -> dict:
    """A process that launches a kernel and an all_reduce, with a copy and a range, on one of two devices."""
    def record(start: float, end: float, correlation: int, **more: object) -> dict:
        times = {"start_timestamp": BOOT_NS + int(start * MS), "end_timestamp": BOOT_NS + int(end * MS)}
        return {"size": 64, "kind": 0, "operation": 0, "thread_id": pid + 1, **times,
                "correlation_id": {"internal": correlation, "external": 0}, **more}

    def dispatch(kernel: int) -> dict:
        return {"dispatch_info": {"agent_id": {"handle": 100 + device}, "queue_id": {"handle": 18}, "kernel_id": kernel,
                                  "group_segment_size": 512, "workgroup_size": {"x": 256, "y": 1, "z": 1},
                                  "grid_size": {"x": 1000, "y": 2, "z": 1}}, "stream_id": {"handle": 4}}

    agents = [{"id": {"handle": 99}, "type": 1, "product_name": "EPYC"}, *(
        {"id": {"handle": 100 + number}, "type": 2, "logical_node_type_id": number, "product_name": PRODUCT}
        for number in range(2))]
    kernels = ["", "Cijk_Ailk_Bljk gemm", "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"]
    return {"rocprofiler-sdk-tool": [{
        "metadata": {"pid": pid, "init_time": BOOT_NS, "command": ["/opt/bin/python3", "train.py"],
                     "node": {"hostname": host}},
        "agents": agents, "counters": [],
        "strings": {"buffer_records": [
            {"kind": "NONE", "operations": ["none"]},
            {"kind": "HIP_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync"]},
            {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]}],
            "marker_api": [{"key": 9, "value": "training step"}]},
        "kernel_symbols": [{"kernel_id": number, "demangled_kernel_name": name, "formatted_kernel_name": f"{name} []"}
                           for number, name in enumerate(kernels)],
        "buffer_records": {
            "kernel_dispatch": [record(5, 7.5, 1, **dispatch(1)), record(8, 9, 2, **dispatch(2))],
            "hip_api": [record(1, 2, 1, kind=1), record(2, 3, 2, kind=1), record(3, 3.5, 3, kind=1, operation=1)],
            "memory_copy": [record(4, 4.25, 3, kind=2, operation=1, src_agent_id={"handle": 99},
                                   dst_agent_id={"handle": 100 + device}, bytes=4096)],
            "marker_api": [record(0, 10, 9)], "rccl_api": []}}]}


def text_of(whole: dict) -> str:
    return json.dumps(whole, separators=(",", ":"))


def test_a_process_is_a_rank_with_its_device_and_calls(tmp_path):
    (tmp_path / "rank1_results.json.gz").write_bytes(gzip.compress(text_of(recorded(1)).encode()))
    run = open_run(tmp_path)
    (rank,) = run.ranks
    assert (rank.number, rank.host, rank.device_name) == (1, "mi350", PRODUCT)
    assert "1 of 2 ranks, 7 slices" in called("merge", tmp_path).stdout
    merged = json.loads(gzip.decompress((tmp_path / "merged" / "trace.json.gz").read_bytes()))
    found = {event["name"]: event for event in merged["traceEvents"] if event["ph"] == "X"}
    gemm, copy = found["Cijk_Ailk_Bljk gemm"], found["Memcpy HtoD"]
    assert (gemm["dur"], gemm["args"]["grid"], gemm["args"]["block"]) == (2500, [4, 2, 1], [256, 1, 1])
    assert (gemm["args"]["device"], gemm["args"]["stream"], copy["args"]["bytes"]) == (1, 4, 4096)
    assert gemm["ts"] - found["training step"]["ts"] == 5000 and found["hipMemcpyAsync"]["dur"] == 500
    phases = [event["ph"] for event in merged["traceEvents"] if event.get("cat") == "ac2g"]
    assert phases.count("s") == phases.count("f") == 3
    names = {event["args"]["name"] for event in merged["traceEvents"] if event["name"] == "process_name"}
    assert names == {"rank 1 | mi350 | gpu 1", "rank 1 | mi350 | cpu (pid 908)"}


def test_commands_read_it(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(text_of(recorded(rank, 900 + rank)))
    found = json.loads(called("ops", "--json", "--by", "category", tmp_path).stdout)
    assert {row["category"]: row["self_device_ns"] for row in found["ops"] if row["self_device_ns"]} == {
        "matrix product": 5 * MS, "communication": 2 * MS, "copy": MS // 2}
    assert "2 ranks" in called("comms", tmp_path).stdout


def test_what_else_is_in_the_file_and_how_it_is_laid_out_does_not_matter(tmp_path):
    whole = recorded(0)
    (process,) = whole["rocprofiler-sdk-tool"]
    process["buffer_records"]["pc_sample_stochastic"] = [{"record": {}, "inst_index": 0}]
    process["agents"][0]["product_name"] = None
    process["buffer_records"]["kernel_dispatch"].append({"start_timestamp": 0, "end_timestamp": 5})  # never written
    for number, text in enumerate((json.dumps(whole, indent=2), "\n " + text_of(whole), "\ufeff" + json.dumps(whole),
                                   text_of({"rocprofiler-sdk-tool": process}))):
        (tmp_path / f"rank{number}.json").write_text(text)
    said = called("merge", tmp_path).stdout
    assert "4 of 4 ranks, 28 slices" in said and "1 event of rank0.json skipped" in said and "without a dur" not in said


@pytest.mark.parametrize("untimed", ["kernel_dispatch", "memory_copy", "hip_api"])
def test_what_was_never_timed_has_no_arrow(untimed):
    whole = recorded(0)
    records = whole["rocprofiler-sdk-tool"][0]["buffer_records"][untimed]
    for record in records:
        record["start_timestamp"] = 0
    events = json.loads(b"".join(chrome_text([text_of(whole).encode()], "rank0.json")))["traceEvents"]
    assert sum(event["ph"] == "X" and "ts" not in event for event in events) == len(records)
    arrows = [(event["ph"], event["id"], event["ts"]) for event in events if event.get("cat") == "ac2g"]
    assert all(at_us * 1000 >= BOOT_NS for _, _, at_us in arrows)
    ends = {phase: sorted(number for one, number, _ in arrows if one == phase) for phase in "sf"}
    assert ends["s"] == ends["f"] and len(ends["s"]) == 3 - len(records)


def test_a_call_of_which_one_kernel_was_never_timed_has_the_arrow_to_the_other():
    whole = recorded(0)
    kernels = whole["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"]
    kernels.append(kernels[0] | {"start_timestamp": 0})
    events = json.loads(b"".join(chrome_text([text_of(whole).encode()], "rank0.json")))["traceEvents"]
    assert [event["ts"] > 0 for event in events if event["ph"] == "f"] == [True] * 3


def test_several_processes_in_a_file_are_split_into_ranks(tmp_path):
    processes = [recorded(device, pid)["rocprofiler-sdk-tool"][0] for device, pid in ((1, 100), (0, 101))]
    (tmp_path / "all.json").write_text(text_of({"rocprofiler-sdk-tool": processes}))
    assert "distprof split" in called("comms", tmp_path / "all.json").stdout
    assert called("split", tmp_path / "all.json", "--out", tmp_path / "ranks").returncode == 0
    assert "2 of 2 ranks, 14 slices" in called("merge", tmp_path / "ranks").stdout


def test_what_is_damaged_or_lacks_fields_costs_its_rank_alone(tmp_path):
    text = text_of(recorded(0))
    (tmp_path / "rank0.json").write_text(text)
    (tmp_path / "rank1.json").write_text(text[:len(text) // 2])
    (tmp_path / "rank2.json").write_text('{"rocprofiler-sdk-tool":[{"buffer_records":{"kernel_dispatch":['
                                         '{"start_timestamp":1000,"end_timestamp":3000}]}}]}')
    (tmp_path / "rank3.json").write_bytes(text.encode().replace(b"gemm", b"\xff"))
    (tmp_path / "rank4.json").write_text(text.replace('"buffer_records":[', f'"buffer_records":{"[" * 100_000}', 1))
    done = distprof("merge", tmp_path)
    assert done.returncode == 0 and "2 of 3 ranks, 8 slices" in done.stdout
    for rank in (1, 3, 4):
        assert f"rank{rank}.json is not a Chrome trace but a damaged rocprofv3 file" in done.stdout
