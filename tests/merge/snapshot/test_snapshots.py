"""Memory snapshots: what torch's own tools say of them is what we say; a caching allocator is played on the CPU."""

from __future__ import annotations

import json
import pickle
import random
import re
import struct
from pathlib import Path

import polars as pl
import pytest
import torch
from torch.cuda import _memory_viz

from distprof.errors import DataError
from distprof.merge.snapshot.device_memory import device_memory
from distprof.merge.snapshot.snapshot_file import NUMBERS, read_snapshot
from support.caching_allocator import Allocator, Frames, OutOfMemory, snapshot, trained
from support.hostile_pickles import hostile_pickles
from support.jobs import called


def written(path, found, protocol=pickle.DEFAULT_PROTOCOL):
    path.write_bytes(pickle.dumps(found, protocol=protocol))
    return path


def shown(*arguments):
    done = called("memory", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fails(*arguments, code=1):
    done = called("memory", *arguments)
    assert done.returncode == code and not done.stdout and done.stderr.count("\n") == 1, (done.stdout, done.stderr)
    return done.stderr


class LikeTorchScript(pickle._Pickler):
    """As torch writes a snapshot without Python: protocol 2, lists and dicts in one piece, 8 bytes for a long."""

    _BATCHSIZE = 1 << 60
    dispatch = dict(pickle._Pickler.dispatch)

    def save_long(self, number):
        if -(1 << 31) <= number < 1 << 31:
            super().save_long(number)
        else:
            self.write(b"\x8a\x08" + struct.pack("<q", number))

    dispatch[int] = save_long


def played(seed, max_entries=1 << 62):
    """Tensors of many sizes and streams, made and freed at random, on a device that is too small for all of them."""
    draw, one, frames = random.Random(seed), Allocator(total=200 << 20, max_entries=max_entries), Frames()
    stacks = [frames(("/home/me/net.py", line, "f"), ("/home/me/train.py", 1, "<module>")) for line in range(9)]
    waiting = []
    for _ in range(400):
        kind = draw.random()
        if kind < 0.55:
            try:
                one.alloc(draw.choice((1, 700, 90_000, 1_100_000, 7_000_000, 30_000_000)) + draw.randrange(999),
                          draw.choice(stacks), draw.choice((0, 0, 0, 5)))
            except OutOfMemory:
                pass
        elif kind < 0.95 and one.live:
            block = one.free(draw.choice(sorted(one.live)), draw.choice(stacks), wait=kind > 0.85)
            waiting += [block] if block.state != "inactive" else []
        elif kind < 0.97:
            one.empty_cache()
        elif waiting:
            one.complete(waiting.pop(0))
    return one


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_entry_and_block_is_read_as_pickle_reads_it(tmp_path, protocol):
    one, other = played(1), Allocator(device=1)
    trained(other)
    path = written(tmp_path / "rank0.pickle", snapshot(one, other), protocol)
    assert_same(path, pickle.loads(path.read_bytes()))


def test_what_torch_writes_without_python_is_read_as_well(tmp_path):
    path = tmp_path / "a.pickle"
    with path.open("wb") as file:
        LikeTorchScript(file, 2).dump(snapshot(played(2)))
    assert_same(path, pickle.loads(path.read_bytes()))


def test_frames_that_nothing_shares_are_read_as_well(tmp_path):
    one = Allocator()
    trained(one)
    path = written(tmp_path / "a.pickle", json.loads(json.dumps(snapshot(one))))
    assert_same(path, pickle.loads(path.read_bytes()))


def test_a_file_longer_than_a_chunk_is_read_as_pickle_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr("distprof.merge.snapshot.plain_pickle.CHUNK_BYTES", 1000)
    monkeypatch.setattr("distprof.merge.snapshot.plain_pickle.MARGIN_BYTES", 400)
    one, frames = Allocator(), Frames()
    trained(one)
    one.alloc(1, frames(("/home/" + 5000 * "long/" + "é.py", 1, "f")))
    path = written(tmp_path / "a.pickle", snapshot(one))
    assert_same(path, pickle.loads(path.read_bytes()))


def assert_same(path, truth):
    found = read_snapshot(path)
    for device, trace in enumerate(truth["device_traces"]):
        rows = found.histories[device].tolist() if trace else []
        assert [(*row[:4], found.streams[row[4]], *found.stacks.of(row[5])) for row in rows] == [
            (NUMBERS[one["action"]], one.get("addr", one.get("device_free")), one["size"], one["time_us"],
             one["stream"], *((at["filename"], at["line"], at["name"]) for at in one["frames"])) for one in trace]
    assert [row[:3] for row in found.blocks.tolist()] == [
        [block["address"], block["size"], block["requested_size"]]
        for segment in truth["segments"] for block in segment["blocks"]]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_entries", [1 << 62, 150])
def test_peak_and_division_are_those_of_the_allocator(tmp_path, seed, max_entries):
    one = played(seed, max_entries)
    truth = snapshot(one)
    found, allocations = device_memory(read_snapshot(written(tmp_path / "a.pickle", truth)), 0, 0)
    now, rows, sums = found.division, allocations.frame(), allocations.sums()
    assert (now.allocated_bytes, now.requested_bytes, now.reserved_bytes) == (
        one.allocated, one.requested, one.reserved)
    assert found.unseen == 0
    if max_entries > 400:
        assert (found.peak_bytes, found.before_bytes) == (one.peak_requested, 0)
    assert rows.filter("is_at_peak")["size_bytes"].sum() == found.peak_bytes == sums["peak_bytes"].sum()
    assert rows.filter("is_alive")["size_bytes"].sum() == one.requested == sums["alive_bytes"].sum()
    assert rows["size_bytes"].sum() == sums["allocated_bytes"].sum() and len(rows) == sums["allocations"].sum()
    assert now.reserved_bytes == (now.allocated_bytes + now.waiting_bytes + now.split_bytes + now.releasable_bytes)
    assert rows.filter(pl.col("made_us").is_null())["size_bytes"].sum() == found.before_bytes


@pytest.mark.parametrize("seed", range(3))
def test_torch_s_own_tools_say_the_same(tmp_path, seed, capsys):
    one = played(seed)
    truth = snapshot(one)
    path = written(tmp_path / "a.pickle", truth)
    found, allocations = device_memory(read_snapshot(path), 0, 0)
    text, now = _memory_viz.segsum(truth), found.division
    assert f"total_reserved: {_memory_viz.Bytes(now.reserved_bytes)}\n" in text
    # of torch's sum requested blocks are a part, and what waits for a stream is free
    assert f"total_allocated: {_memory_viz.Bytes(now.requested_bytes)}\n" in text
    assert f"segments: {now.segments}\n" in text
    rounding = now.allocated_bytes - now.requested_bytes
    free = now.split_bytes + now.releasable_bytes + now.waiting_bytes
    assert f"total_free: {_memory_viz._report_free(free, rounding)}\n" in text
    left = _memory_viz.filter_alloc_free_pairs(pickle.loads(path.read_bytes()))["device_traces"][0]
    alive = allocations.frame().filter("is_alive", pl.col("made_us").is_not_null())
    assert sorted(alive["address"].to_list()) == sorted(row["addr"] for row in left if row["action"] == "alloc")
    failed = re.findall(r"raise OutOfMemoryError # (\S+) requested, (\S+) free", _memory_viz.trace(truth))
    assert failed == [(str(_memory_viz.Bytes(one.asked_bytes)), str(_memory_viz.Bytes(one.device_free_bytes)))
                      for one in found.failures]
    assert failed


@pytest.mark.long
def test_a_snapshot_that_torch_makes_of_a_profile_is_read(tmp_path):
    """On the CPU: torch's own code writes segments, blocks and history."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        model(torch.randn(32, 64)).sum().backward()
    truth = _memory_viz._profile_to_snapshot(profile)
    device = len(truth["device_traces"]) - 1
    found, allocations = device_memory(read_snapshot(written(tmp_path / "a.pickle", truth)), 0, device)
    alive, most = {}, 0
    made = {entry["addr"] for entry in truth["device_traces"][device]}
    (segment,) = [one for one in truth["segments"] if one["device"] == device]
    at = segment["address"]
    for block in segment["blocks"]:  # made before the profile
        alive |= {at: block["size"]} if block["state"] == "active_allocated" and at not in made else {}
        at += block["size"]
    for entry in truth["device_traces"][device]:
        if entry["action"] == "alloc":
            alive[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_requested":
            alive.pop(entry["addr"], None)
        most = max(most, sum(alive.values()))
    assert (found.peak_bytes, found.unseen) == (most, 0) and len(allocations.frame()) > 10


def test_the_screen_names_the_lines_of_the_user_at_the_peak(tmp_path):
    one = Allocator(total=130 << 20)
    trained(one, steps=2)
    with pytest.raises(OutOfMemory):
        one.alloc(90 << 20, Frames()(("/home/me/job/net.py", 7, "too_much")))
    path = written(tmp_path / "a.pickle", snapshot(one))
    done = called("memory", path)
    assert done.returncode == 0, done.stderr
    for words in ("net.py:10 __init__", "largest free block", "in split segments", "██",
                  "requested by /home/me/job/net.py:7 too_much"):
        assert words in done.stdout, done.stdout
    found = shown(path)
    (device,) = found["devices"]
    groups = {group["line"]: group for group in found["groups"]}
    assert groups["/home/me/job/net.py:10 __init__"]["peak_bytes"] == sum(3_000_001 + 4 * layer for layer in range(6))
    assert sum(group["peak_bytes"] for group in found["groups"]) == device["peak_bytes"] == one.peak_requested
    assert device["tensors"][0]["stack"].splitlines()[1].endswith("net.py:25 forward")
    assert max(point["allocated_bytes"] for point in device["timeline"]) == one.peak_requested


@pytest.mark.parametrize("flags", [(), ("--by", "stack"), ("--json",)])
def test_a_path_that_is_not_utf8_is_shown_as_python_shows_it(tmp_path, flags):
    one = Allocator()
    one.alloc(9 << 20, Frames()(("/home/me/m\udcff/net.py", 7, "lay\ud800er")))
    done = called("memory", *flags, written(tmp_path / "a.pickle", snapshot(one)))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "lay\\ud800er" in done.stdout.replace("\\\\", "\\")


def test_a_stack_is_shown_whole(tmp_path):
    one = Allocator()
    trained(one)
    text = called("memory", "--by", "stack", "--top", 1, written(tmp_path / "a.pickle", snapshot(one))).stdout
    assert re.search(r"linear.py:125 forward\n.*net.py:10 __init__\n.*module.py:1775 _call_impl\n", text), text


def test_ranks_are_taken_from_names_and_added_up(tmp_path):
    for rank in range(12):
        one = Allocator()
        trained(one, size=1_000_001 + rank)
        written(tmp_path / f"rank{rank}_memory_snapshot.pickle", snapshot(one))
    found = shown("--by", "rank", tmp_path)
    assert found["ranks"] == list(range(12))
    assert {group["rank"]: group["peak_bytes"] for group in found["groups"]} == {
        one["rank"]: one["peak_bytes"] for one in found["devices"]}
    assert len(shown("--rank", 3, tmp_path)["devices"]) == 1
    assert shown("--rank", 3, "--rank", 3, "--by", "rank", "--by", "rank", tmp_path) == shown(
        "--rank", 3, "--by", "rank", tmp_path)
    assert "rank 12 has no snapshot; --rank can be 0-11" in fails("--rank", 12, tmp_path, code=2)
    assert "--by line" in fails("--by", "lines", tmp_path, code=2)
    assert "do not show when tensors were last used" in fails("--lifetimes", tmp_path, code=2)


def test_all_allocations_can_be_had_as_a_table(tmp_path):
    one = Allocator()
    trained(one)
    path = written(tmp_path / "a.pickle", snapshot(one))
    assert called("memory", "--parquet", tmp_path / "all.parquet", path).returncode == 0
    rows = pl.read_parquet(tmp_path / "all.parquet")
    made = [entry for entry in one.trace if entry["action"] == "alloc"]
    assert sorted(rows["size_bytes"].to_list()) == sorted(entry["size"] for entry in made)
    assert "net.py:20 forward\n" in rows.filter(pl.col("line").str.contains(":20 "))["stack"][0]


def test_names_without_ranks_are_numbered_and_said(tmp_path):
    for name in ("a", "b"):
        written(tmp_path / f"{name}.pickle", snapshot(played(3)))
    assert "numbered in the order of the file names" in called("memory", tmp_path).stdout


def test_two_snapshots_of_a_rank_are_refused(tmp_path):
    for step in (1, 2):
        (tmp_path / f"step_{step}").mkdir()
        written(tmp_path / f"step_{step}" / "rank0.pickle", snapshot(played(3)))
    assert "more than one snapshot per rank: 2 of rank 0" in fails(tmp_path)


def test_snapshots_beside_something_else_are_refused(tmp_path):
    path = written(tmp_path / "a.pickle", snapshot(played(3)))
    (tmp_path / "trace.json").write_text("{}")
    assert "memory snapshots cannot be combined" in fails(path, tmp_path / "trace.json")


def test_without_history_what_is_alive_is_shown(tmp_path):
    one = Allocator(max_entries=0)
    trained(one)
    done = called("memory", written(tmp_path / "a.pickle", snapshot(one)))
    assert "no history, so no peak" in done.stdout and "largest now" in done.stdout


def test_frees_that_the_history_lacks_are_said(tmp_path):
    one = Allocator()
    trained(one)
    found = snapshot(one)
    found["device_traces"][0] = [entry for entry in one.trace if not entry["action"].startswith("free")]
    assert "the history lacks the end of" in called("memory", written(tmp_path / "a.pickle", found)).stdout


NAMES = [*hostile_pickles(Path("x"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_pickle_is_an_error_in_one_line_and_runs_nothing(tmp_path, name):
    made = tmp_path / "made"
    path = tmp_path / "a.pickle"
    path.write_bytes(hostile_pickles(made)[name])
    message = fails(path)
    assert "hint:" in message and not made.exists()


def test_the_hostile_pickles_are_so(tmp_path):
    """They run where Python loads them."""
    made = tmp_path / "made"
    for name in ("reduce", "in a frame", "stack global", "inst"):
        pickle.loads(hostile_pickles(made)[name])
        made.unlink()


def test_a_snapshot_cut_anywhere_is_an_error_in_one_line(tmp_path):
    one = Allocator()
    trained(one, steps=1, layers=2)
    whole = pickle.dumps(snapshot(one))
    path = tmp_path / "a.pickle"
    for size in [*range(1, 200), *range(200, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(DataError) as error:
            read_snapshot(path)
        assert error.value.hint, size
    path.write_bytes(whole[:len(whole) // 2])
    assert "is cut off after" in fails(path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80", b"\x80\x04garbage", b"\x80\x04K\x01.", b"\x80\x04].",
                                     b"\x80\x04N.", pickle.dumps({"a": 1}), pickle.dumps({"segments": [1]}),
                                     pickle.dumps({"segments": [], "device_traces": [[1]]}),
                                     b"\x80\x02" + 100_000 * b"]" + b".", b"\x80\x02" + 100_000 * b")\x85" + b".",
                                     b"\x80\x02X\xff\xff\xff\xffab.", b"\x80\x04\x8d" + 8 * b"\x7f" + b"ab.",
                                     b"\x80\x02r\xff\xff\xff\xff.", b"\x80\x02K\x01r\xff\xff\xff\xff.",
                                     b"\x80\x02\x8b\xff\xff\xff\x7f.", b"\x80\x02}(K\x01K\x02u"])
def test_what_is_no_snapshot_is_an_error_in_one_line(tmp_path, content):
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    assert "hint:" in fails(path)


def doubled():
    """A list whose text would be longer than any memory."""
    found = []
    for _ in range(60):
        found = [found, found]
    return found


@pytest.mark.parametrize("place", ["filename", "line", "name", "frames", "action", "addr", "size", "stream", "time_us",
                                   "address", "total_size", "state", "requested_size", "blocks", "segments",
                                   "device_traces", "PYTORCH_CUDA_ALLOC_CONF", "allocator_settings"])
def test_lists_that_hold_each_other_without_end_are_refused_at_once(tmp_path, place):
    one = Allocator()
    trained(one, steps=1, layers=2)
    found, found_one = snapshot(one), False

    def planted(value):
        nonlocal found_one
        if isinstance(value, dict):
            found_one |= place in value
            return {key: doubled() if key == place else planted(inner) for key, inner in value.items()}
        return [planted(inner) for inner in value] if isinstance(value, list) else value

    path = written(tmp_path / "a.pickle", planted(found))
    assert found_one
    if place in ("PYTORCH_CUDA_ALLOC_CONF", "allocator_settings"):
        assert called("memory", path).returncode == 0
    else:
        assert "hint:" in fails(path)


@pytest.mark.long
def test_bytes_changed_at_random_are_read_or_refused(tmp_path):
    one = Allocator()
    trained(one, steps=1, layers=2)
    whole, path, draw = pickle.dumps(snapshot(one)), tmp_path / "a.pickle", random.Random(5)
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            found = read_snapshot(path)
            for device in found.devices:
                _, allocations = device_memory(found, 0, device)
                allocations.sums(), allocations.frame(), allocations.largest(3)
        except DataError as error:
            assert error.hint


@pytest.mark.long
def test_one_damaged_snapshot_of_several_is_named(tmp_path):
    written(tmp_path / "rank0.pickle", snapshot(played(3)))
    (tmp_path / "rank1.pickle").write_bytes(b"\x80\x04garbage")
    done = called("memory", tmp_path)
    assert done.returncode == 0 and "rank 1" in done.stdout and "damaged" in done.stdout
    assert called("memory", "--strict", tmp_path).returncode == 3
