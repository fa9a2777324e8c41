"""Allocations in traces that were made up: what is alive at the peak, and events that contradict each other."""

from __future__ import annotations

import json
import random

import polars as pl
import pytest

import distprof
from support.jobs import called
from support.made_up_traces import op

FORWARD, BACKWARD = "net [Net]", "autograd::engine::evaluate_function: MulBackward0"


class Allocator:
    """Writes events with the count that torch keeps."""

    def __init__(self, kind=0, device=-1, before=0):
        self.events, self.total, self.kind, self.device = [], before, kind, device

    def change(self, ts, num_bytes, address, **other):
        self.total += num_bytes
        self.events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1,
                            "ts": ts, "args": {
            "Bytes": num_bytes, "Addr": address, "Total Allocated": self.total, "Total Reserved": 0,
            "Device Type": self.kind, "Device Id": self.device, "Ev Idx": len(self.events)} | other})


def data(tmp_path, events, *flags):
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    done = called("memory", "--json", *flags, tmp_path / "rank0.json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def step():
    memory = Allocator()
    memory.change(1, 100, 7)  # data
    memory.change(12, 40, 8)  # kept for backward
    memory.change(13, 30, 9)
    memory.change(14, -30, 9)
    memory.change(32, 1000, 9)  # the same address again
    memory.change(34, -40, 8)
    memory.change(36, -1000, 9)
    slices = [op(FORWARD, 10, 10, cat="user_annotation"), op("aten::linear", 11, 8, **{"Input Dims": [[5, 2]]}),
              op("aten::empty", 11.5, 1), op(BACKWARD, 30, 10), op("MulBackward0", 31, 8)]
    return slices + memory.events


def test_what_is_alive_at_the_peak_is_named(tmp_path):
    found = data(tmp_path, step())
    (peak,) = found["peaks"]
    assert (peak["peak_bytes"], peak["before_bytes"], peak["unknown_bytes"], peak["device"]) == (1140, None, 0, "cpu")
    assert [(one["size_bytes"], one["op"], one["module_path"], one["phase"], one["category"])
            for one in peak["tensors"]] == [
        (1000, "MulBackward0", None, "backward", "temporary"), (100, None, None, None, None),
        (40, "aten::linear", "net", "forward", "activation")]
    assert peak["tensors"][2]["shapes"] == "[[5, 2]]"
    assert {one["category"]: (one["peak_bytes"], one["kept_bytes"], one["allocations"]) for one in found["groups"]} == {
        "temporary": (1000, 0, 2), None: (100, 0, 1), "activation": (40, 40, 1)}


@pytest.mark.parametrize("key", ["category", "module", "class", "op", "phase", "rank", "device"])
def test_every_way_to_add_up_gives_the_peak(tmp_path, key):
    assert sum(one["peak_bytes"] for one in data(tmp_path, step(), "--by", key)["groups"]) == 1140


def test_what_a_device_held_before_is_part_of_its_peak(tmp_path):
    memory = Allocator(kind=1, device=0, before=500)
    memory.change(1, 100, 7)
    memory.change(2, -200, 3)  # made before the recording
    memory.change(3, 50, 8)
    (peak,) = data(tmp_path, memory.events)["peaks"]
    assert (peak["device"], peak["peak_bytes"], peak["before_bytes"], peak["unknown_bytes"]) == ("cuda:0", 600, 500, 0)


def test_events_out_of_order_are_put_in_order(tmp_path):
    slices, events = step()[:5], step()[5:]
    assert data(tmp_path, [*reversed(events), *slices]) == data(tmp_path, step())


def test_events_that_lack_something_are_left_out_and_said(tmp_path):
    memory = Allocator()
    memory.change(1, 100, 7)
    memory.change(2, 0, 9, Bytes="many")
    memory.change(3, 0, None)
    found = data(tmp_path, memory.events)
    assert found["left_out"]["events_without_size"] == 2 and found["peaks"][0]["peak_bytes"] == 100


def test_an_address_that_is_made_twice_was_freed_unseen(tmp_path):
    memory = Allocator()
    memory.change(1, 100, 7)
    memory.total -= 100
    memory.change(2, 60, 7)
    memory.change(3, 70, 8)
    (peak,) = data(tmp_path, memory.events)["peaks"]
    assert (peak["peak_bytes"], peak["unknown_bytes"]) == (130, 0)
    assert [one["size_bytes"] for one in peak["tensors"]] == [70, 60]


def test_a_trace_without_allocations_is_one_line(tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": step()[:5]}))
    done = called("memory", tmp_path / "rank0.json")
    assert done.returncode == 1 and "no allocations" in done.stderr and "profile_memory=True" in done.stderr


def test_wrong_words_are_refused(tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": step()}))
    for flags, words in ((("--by", "modul"), "--by module"),
                         (("--rank", 4), "rank 4 has no allocations; --rank can be 0")):
        done = called("memory", *flags, tmp_path / "rank0.json")
        assert done.returncode == 2 and words in done.stderr


def test_all_allocations_can_be_had_as_a_table(tmp_path):
    data(tmp_path, step(), "--parquet", tmp_path / "all.parquet")
    rows = pl.read_parquet(tmp_path / "all.parquet")
    assert rows["size_bytes"].to_list() == [100, 40, 30, 1000] and rows["freed_ns"].null_count() == 1


def test_the_screen_has_peak_groups_and_tensors(tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": step()}))
    text = called("memory", tmp_path / "rank0.json").stdout
    assert "1.14 KB" in text and "kept for backward" in text and "MulBackward0" in text


def test_what_is_freed_before_it_was_made_was_there_before(tmp_path):
    memory = Allocator(before=1000)
    memory.change(1, -300, 7)
    memory.change(2, 100, 7)  # the same address
    memory.change(3, -100, 7)
    memory.change(4, -50, 7)  # twice: the allocation between was not seen
    memory.change(5, 60, 8)
    (peak,) = data(tmp_path, memory.events)["peaks"]
    assert (peak["peak_bytes"], peak["before_bytes"], peak["unknown_bytes"]) == (100, None, 0)
    rows = distprof.read_run(tmp_path / "rank0.json").memory()
    assert rows["size_bytes"].to_list() == [100, 60] and rows["freed_ns"].null_count() == 1


def test_a_free_of_the_same_instant_comes_behind_what_it_frees(tmp_path):
    memory = Allocator()
    memory.change(1, 100, 7)
    memory.change(1, -100, 7)
    memory.change(1, 70, 7)
    found = data(tmp_path, memory.events[::-1])
    assert [one["size_bytes"] for one in found["peaks"][0]["tensors"]] == [100]
    assert distprof.read_run(tmp_path / "rank0.json").memory()["freed_ns"].null_count() == 1


@pytest.mark.parametrize("seed", range(8))
def test_events_that_are_missing_or_out_of_order_never_make_a_sum_that_is_none(tmp_path, seed):
    draw, memory, alive = random.Random(seed), Allocator(kind=seed % 2, device=0 if seed % 2 else -1, before=400), {}
    for ts in range(300):
        address = draw.randrange(1, 12)
        num_bytes = -alive.pop(address) if address in alive else alive.setdefault(address, draw.randrange(1, 999))
        memory.change(ts // 3, num_bytes, address)
    events = draw.sample(memory.events, 200)  # a third is lost, the rest in any order
    found = data(tmp_path, events, "--top", 999)
    (peak,) = found["peaks"]
    rows = distprof.read_run(tmp_path / "rank0.json").memory()
    made = [event["args"]["Bytes"] for event in events if event["args"]["Bytes"] > 0]
    assert sorted(rows["size_bytes"].to_list()) == sorted(made)
    known = sum(one["peak_bytes"] for one in found["groups"])
    assert 0 < known == sum(one["size_bytes"] for one in peak["tensors"])
    assert peak["peak_bytes"] == known + (peak["before_bytes"] or 0) + (peak["unknown_bytes"] if seed % 2 else 0)
    assert rows.filter(pl.col("freed_ns") < pl.col("made_ns")).is_empty()
