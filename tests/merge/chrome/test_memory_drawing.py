"""Memory in the merged trace, before the real Perfetto engine: counters of each rank and device, and tensors."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter, defaultdict

import pytest
from torch import nn, optim, randn

import distprof
from support.jobs import called
from support.made_up_traces import folder, op
from support.perfetto import ERRORS, ask, rank_of
from support.rank_traces import write_run

COUNTERS = """select process.name as process, process_counter_track.name as name, ts, value
              from counter join process_counter_track on track_id = process_counter_track.id join process using (upid)
              order by ts, counter.id"""
TENSORS = """select process.name as process, slice.name as name, ts, dur, depth, slice.track_id as lane,
             process_track.name as track, extract_arg(slice.arg_set_id, 'args.bytes') as bytes,
             extract_arg(slice.arg_set_id, 'args.module') as module,
             extract_arg(slice.arg_set_id, 'args.freed') as freed
             from slice join process_track on slice.track_id = process_track.id join process using (upid)
             where category = 'distprof' and slice.name not glob 'tensors *' order by ts"""


def events_of(seed, *, kind=0, device=-1, before=0, start=1000):
    """Allocations as torch.profiler writes them, and what is alive after each."""
    draw, alive, total, events, lives = random.Random(seed), {}, before, [], {}
    for number in range(200):
        ts, address = start + 10 * number + draw.randrange(9), draw.randrange(1, 30) << 9
        num_bytes = -alive.pop(address) if address in alive else draw.choice((100, 5000, 2_000_000))
        if num_bytes > 0:
            alive[address] = num_bytes
            lives[address, ts] = None
        else:
            lives[max(key for key in lives if key[0] == address)] = ts
        total += num_bytes
        events.append({"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
                       "ts": ts, "args": {"Bytes": num_bytes, "Addr": address, "Total Allocated": total,
                                          "Total Reserved": 10_000_000 if kind else 0, "Device Type": kind,
                                          "Device Id": device, "Ev Idx": number}})
    return events, lives


def sizes(events):
    return {(event["args"]["Addr"], event["ts"]): event["args"]["Bytes"] for event in events}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    slices = [op("net [Net]", 990, 3000, cat="user_annotation"), op("aten::linear", 995, 2900)]
    ranks = []
    for rank in range(2):
        cpu, _ = events_of(rank, before=777)
        cuda, _ = events_of(rank + 10, kind=1, device=rank, before=5_000_000)
        ranks.append(slices + random.Random(rank).sample(cpu + cuda, 400))
    return folder(tmp_path_factory.mktemp("traces"), *ranks)


def merged(traces, out, *flags):
    done = called("merge", "--out", out, *flags, traces)
    assert done.returncode == 0, done.stderr
    return out / "trace.json.gz"


def test_a_counter_of_each_rank_and_device_has_what_was_allocated(traces, tmp_path):
    answer = ask(merged(traces, tmp_path / "out"), ERRORS, COUNTERS, TENSORS)
    assert answer.import_errors == [] and answer.results[0] == [] and answer.results[2] == []
    found = defaultdict(list)
    for row in answer.results[1]:
        found[rank_of(row["process"]), row["name"]].append(row["value"])
    for rank in range(2):
        cpu, cuda = events_of(rank, before=777)[0], events_of(rank + 10, kind=1, device=rank, before=5_000_000)[0]
        # on a CPU what was there before is not known
        assert found.pop((rank, "memory cpu allocated")) == [one["args"]["Total Allocated"] - 777 for one in cpu]
        assert found.pop((rank, f"memory cuda:{rank} allocated")) == [one["args"]["Total Allocated"] for one in cuda]
        assert set(found.pop((rank, f"memory cuda:{rank} reserved"))) == {10_000_000}
    assert not found


def test_every_tensor_above_a_size_is_a_slice_as_long_as_it_lived(traces, tmp_path):
    answer = ask(merged(traces, tmp_path / "out", "--tensors", "5KB"), ERRORS, TENSORS)
    assert answer.import_errors == [] and answer.results[0] == []
    for rank in range(2):
        mine = [row for row in answer.results[1] if rank_of(row["process"]) == rank]
        found = Counter((row["bytes"], row["ts"], row["dur"] if row["freed"] is None else None) for row in mine)
        wanted = Counter()
        for events, lives in (events_of(rank), events_of(rank + 10, kind=1, device=rank)):
            for (address, start), end in lives.items():
                num_bytes = sizes(events)[address, start]
                if num_bytes >= 5000:
                    wanted[num_bytes, (start - 990) * 1000, None if end is None else (end - start) * 1000] += 1
        origin = found.keys() and min(ts for _, ts, _ in found) - min(ts for _, ts, _ in wanted)
        assert Counter({(size, ts - origin, dur): count for (size, ts, dur), count in found.items()}) == wanted
        assert {row["track"] for row in mine} == {"tensors cpu", f"tensors cuda:{rank}"}
        assert {row["depth"] for row in mine} == {0} and {row["module"] for row in mine} == {"net"}


@pytest.mark.long
def test_options_choose_memory_as_well(traces, tmp_path):
    answer = ask(merged(traces, tmp_path / "a", "--categories", "cpu_op", "--tensors", "1"), COUNTERS, TENSORS)
    assert answer.results == [[], []]
    answer = ask(merged(traces, tmp_path / "b", "--window", "500us:600us", "--tensors", "1"), COUNTERS, TENSORS)
    whole = ask(merged(traces, tmp_path / "c", "--tensors", "1"), COUNTERS, TENSORS)
    for some, every, rows in zip(answer.results, whole.results, ("counters", "tensors"), strict=True):
        assert 0 < len(some) < len(every), rows
    values = Counter((row["name"], row["ts"], row["value"]) for row in whole.results[0])
    assert Counter((row["name"], row["ts"], row["value"]) for row in answer.results[0]) <= values


@pytest.mark.long
def test_the_memory_pass_is_a_timeline_too(tmp_path):
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4))
    optimizer = optim.Adam(model.parameters())
    with distprof.record(tmp_path / "run", steps="wait=2,count=0,time=0,trace=0,arrivals=0,memory=2"):
        for _ in range(6):
            loss = model(randn(640, 256)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    done = called("merge", tmp_path / "run", "--tensors", "1MB")
    assert done.returncode == 0, done.stderr
    answer = ask(tmp_path / "run" / "merged" / "trace.json.gz", ERRORS, COUNTERS, TENSORS)
    assert answer.import_errors == [] and answer.results[0] == []
    kept = [row for row in answer.results[2] if row["name"] == "1.31 MB activation 1"]
    assert len(kept) == 2 and {row["bytes"] for row in kept} == {640 * 512 * 4}
    rows = distprof.read_run(tmp_path / "run").memory()
    assert len(answer.results[2]) == len(rows.filter(rows["size_bytes"] >= 10**6))
    assert {row["name"] for row in answer.results[1]} == {"memory cpu allocated"}
    (peak,) = json.loads(called("memory", "--json", tmp_path / "run").stdout)["peaks"]
    assert max(row["value"] for row in answer.results[1]) == peak["peak_bytes"]


def test_a_run_with_a_trace_pass_is_merged_without_memory(traces, tmp_path):
    events = json.loads((traces / "rank0.json").read_text())["traceEvents"]
    run = write_run(tmp_path / "run", events[:2])
    (run / "rank00000" / "memory.json.gz").write_bytes(gzip.compress((traces / "rank0.json").read_bytes()))
    done = called("merge", run, "--tensors")
    assert done.returncode == 1 and "trace=0,memory=2" in done.stderr and not (run / "merged").exists()
    assert called("merge", run).returncode == 0
    assert ask(run / "merged" / "trace.json.gz", COUNTERS, TENSORS).results == [[], []]


@pytest.mark.long
def test_tensors_are_refused_where_there_are_none_or_no_size(traces, tmp_path):
    (tmp_path / "rank0.json").write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}')
    for flags, words in (((tmp_path / "rank0.json", "--tensors"), "no allocations"),
                         ((traces, "--tensors", "many"), "--tensors must be a size"),
                         ((traces, "--tensors", "1MB", "--format", "perfetto-tar"), "perfetto-tar")):
        done = called("merge", "--out", tmp_path / "out", *flags)
        assert done.returncode and words in done.stderr and not (tmp_path / "out").exists(), done
