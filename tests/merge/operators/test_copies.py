"""Copies and fills of a GPU: bytes and rates beside those of each slice of the trace."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from distprof.merge.operators.counted_work import with_limits
from support.jobs import called
from support.made_up_traces import folder, op

H100 = Path(__file__).parents[2] / "support" / "data" / "h100_streams.json.gz"


def noted() -> dict[str, list[dict]]:
    events = json.loads(gzip.decompress(H100.read_bytes()))["traceEvents"]
    found = defaultdict(list)
    for event in events:
        if event.get("cat") in ("gpu_memcpy", "gpu_memset"):
            found[event["name"]].append(event)
    return found


def test_bytes_and_rates_are_those_of_the_profiler(tmp_path):
    run = tmp_path / "trace_rank0.json.gz"
    run.write_bytes(H100.read_bytes())
    rows = json.loads(called("ops", "--type", "memcpy", "--type", "memset", "--json", run).stdout)["ops"]
    assert len(rows) >= 3
    for row in rows:
        events = noted()[row["op"]]
        inside = [one for one in events if one["dur"]]
        assert row["calls"] <= len(events) and row["flops"] == 0
        sizes = {one["args"]["bytes"] for one in inside}
        if len(sizes) == 1:
            assert row["bytes"] == row["calls"] * sizes.pop()
        assert row["bytes_per_second"] == pytest.approx(row["bytes"] / row["device_ns"] * 1e9)
        rates = [one["args"]["bytes"] / one["dur"] * 1e6 for one in inside]
        assert min(rates) * 0.99 <= row["bytes_per_second"] <= max(rates) * 1.01
        assert row["roofline_ratio"] is None and row["bound"] is None
    shown = called("ops", "--type", "memcpy", run).stdout
    assert "bytes/s" in shown and "FLOP/s" not in shown.split("\n\n")[1]
    assert "bytes/s" not in called("ops", run).stdout


def test_a_copy_has_no_least_time_at_the_memory_s_rate():
    rows = pl.DataFrame({"rank": [0, 0], "dtypes": [None, None], "type": ["memcpy", "operator"],
                         "causal_flops": [0, 10], "bytes": [1000, 1000]}, schema_overrides={"dtypes": pl.String})
    rank = SimpleNamespace(number=0, device_name=None, recorded=None)
    found = with_limits(rows, [rank], (1e12, 1e9))
    assert found["memory_ns"].to_list() == [None, 1000.0] and found["compute_ns"].to_list() == [None, 0.01]


def streams_of(tmp_path, *kernels):
    events = [op("kernel", 10 * number, 5, cat="kernel", tid=stream) | {"pid": device}
              for number, (device, stream) in enumerate(kernels)]
    rows = json.loads(called("ops", "--type", "kernel", "--by", "stream", "--json", folder(tmp_path, events)).stdout)
    return {row["stream"]: row["calls"] for row in rows["ops"]}


def test_streams_are_called_what_the_profiler_calls_them(tmp_path):
    assert streams_of(tmp_path, (0, 7), (0, 49), (0, 7)) == {"7": 2, "49": 1}
    assert streams_of(tmp_path, (0, "stream 7"), (0, "stream 7 ")) == {"7": 2}


def test_streams_of_several_devices_are_kept_apart(tmp_path):
    assert streams_of(tmp_path, (0, 7), (1, 7), (1, 7)) == {"7 of device 0": 1, "7 of device 1": 2}
