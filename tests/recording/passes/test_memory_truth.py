"""The memory pass beside a count inside torch's CPU allocator, which knows of every allocation and free."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from support.jobs import EXAMPLES, PATIENCE_S, SCRIPTS, called
from support.jobs import distprof as command

STEPS = "wait=2,count=0,time=0,trace=0,arrivals=0,memory=2"
APART_NS = 5000
"""The profiler and the count read the clock one after the other."""
COMPILER = shutil.which("c++")
pytestmark = [pytest.mark.job, pytest.mark.stress,
              pytest.mark.skipif(COMPILER is None, reason="the count is C++, and no compiler is installed")]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path, home = tmp_path_factory.mktemp("tally") / "tally.so", Path(torch.__file__).parent
    subprocess.run([str(COMPILER), "-O1", "-std=c++20", "-fPIC", "-shared", str(SCRIPTS / "allocator_tally.cpp"), "-o",
                    str(path), f"-I{home / 'include'}", f"-L{home / 'lib'}", "-lc10"], check=True, timeout=PATIENCE_S)
    return path


def seen_by_the_profiler(run, rank):
    """Time, address and bytes of each event, in their order."""
    trace = json.loads(gzip.decompress((run / f"rank{rank:05d}" / "memory.json.gz").read_bytes()))
    base = int(trace.get("baseTimeNanoseconds", 0))
    found = sorted((base + round(1000 * one["ts"]), one["args"]["Ev Idx"], one["args"]["Addr"], one["args"]["Bytes"])
                   for one in trace["traceEvents"] if one.get("name") == "[memory]" and one["args"]["Bytes"])
    return [(time_ns, address, size) for time_ns, _, address, size in found]


def counted(folder, rank, first_ns, last_ns):
    """Time, address, bytes and whether the main thread did it, of what was made in that time and its frees."""
    file = np.load(folder / f"rank{rank}.npz")
    alive = set()
    for time_ns, address, size, thread in file["events"].tolist():
        if first_ns - APART_NS <= time_ns <= last_ns + APART_NS:
            if size > 0:
                alive.add(address)
            if address in alive:
                yield time_ns, address, size, thread == int(file["thread"])
            if size < 0:
                alive.discard(address)


def missed_frees(seen, truth):
    """Bytes and thread of each free that is in the count alone."""
    by_address = defaultdict(list)
    for _, address, size in seen:
        by_address[address].append(size)
    for _, address, size, on_main in truth:
        if size > 0 or (by_address[address] and by_address[address][0] < 0):
            assert by_address[address].pop(0) == size
        else:
            yield -size, on_main


@pytest.mark.parametrize("script", [EXAMPLES / "train_ddp.py", SCRIPTS / "sharded.py"], ids=["ddp", "fsdp2"])
def test_all_is_seen_but_what_gloo_frees_on_its_threads(tmp_path, library, script):
    done = command("run", "--nproc-per-node", 2, "--out", tmp_path / "run", "--steps", STEPS, SCRIPTS / "tallied.py",
                   library, tmp_path, script)
    assert done.returncode == 0, done.stderr
    peaks = json.loads(called("memory", "--json", tmp_path / "run").stdout)["peaks"]
    for rank in (0, 1):
        seen = seen_by_the_profiler(tmp_path / "run", rank)
        truth = list(counted(tmp_path, rank, seen[0][0], seen[-1][0]))
        assert Counter((address, size) for _, address, size in seen if size > 0) == Counter(
            (address, size) for _, address, size, _ in truth if size > 0)
        missed = list(missed_frees(seen, truth))
        assert not any(on_main for _, on_main in missed)
        peak = int(np.cumsum([size for _, _, size, _ in truth]).max())
        assert peak <= peaks[rank]["peak_bytes"] <= peak + sum(size for size, _ in missed)
