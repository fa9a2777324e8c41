"""A large snapshot takes less memory than its file, where pickle.load takes six times as much."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest

from support.caching_allocator import Allocator, Frames, snapshot
from support.jobs import PATIENCE_S, clean_environ

SHOW = """
import sys
from pathlib import Path
import distprof.merge.text.snapshots
from distprof.launch.cli import group


def most_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


before = most_bytes()
group.main(["memory", "--json", sys.argv[1]], standalone_mode=False)
print(most_bytes() - before, file=sys.stderr)
"""
TIMES, DEPTH, LAYERS = 15_000, 24, 12


def write(path):
    """Steps that leave nothing behind, again and again; each entry has a list of frames of its own."""
    one, frames = Allocator(), Frames()
    for layer in range(LAYERS):
        stack = [(f"/home/me/net{number}.py", 100 * layer + number, "forward") for number in range(DEPTH)]
        one.alloc(1_000_000 + layer, frames(*stack))
    for address in list(one.live):
        one.free(address, frames(*((f"/home/me/net{number}.py", number, "backward") for number in range(DEPTH))))
    found, entries = snapshot(one), [entry for entry in one.trace if not entry["action"].startswith("segment")]
    found["device_traces"][0] = [
        {**entry, "time_us": entry["time_us"] + 1000 * time, "frames": list(entry["frames"])}
        for time in range(TIMES) for entry in entries]
    with path.open("wb") as file:
        pickle.dump(found, file)
    return one.peak_requested


@pytest.mark.stress
@pytest.mark.job
def test_a_large_snapshot_takes_less_memory_than_its_file(tmp_path):
    peak = write(tmp_path / "rank0.pickle")
    size = (tmp_path / "rank0.pickle").stat().st_size
    done = subprocess.run([sys.executable, "-c", SHOW, tmp_path / "rank0.pickle"], capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False, env=clean_environ())
    assert done.returncode == 0, done.stderr
    (device,) = json.loads(done.stdout)["devices"]
    assert device["peak_bytes"] == peak and device["entries"] == TIMES * 3 * LAYERS
    grew = int(done.stderr.splitlines()[-1])
    assert 1e7 < grew < size, (grew, size)
