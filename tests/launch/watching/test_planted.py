"""Trouble that is planted on this machine is named: a processor that others use, short memory, a slow disk."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from distprof.contract.watch_state import WatchFinding
from distprof.launch.watching.machine import MachineReader
from distprof.launch.watching.reasons import ConditionsFile, MachineWatch
from distprof.merge.watch.conditions import explained
from distprof.merge.watch.machines import Conditions

pytestmark = [pytest.mark.stress, pytest.mark.skipif(sys.platform != "linux", reason="jobs are watched on Linux")]
USUAL_S, TROUBLE_S, REST_S = 240, 30, 15
RANK = "import time\nwhile True:\n    for _ in range(200_000): pass\n    time.sleep(0.01)\n"
BUSY = "while True: pass"
THRASH = """
import mmap, os, sys
path = sys.argv[1] + "/pages"
with open(path, "wb") as file:
    for _ in range(192): file.write(os.urandom(1 << 20))
    file.flush()
    os.fsync(file.fileno())
pages = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
print("ready", flush=True)
sys.stdin.readline()
while True:
    for place in range(0, len(pages), 4096): pages[place]
"""
LIMIT_BYTES = 128 << 20
"""Less than that: what is read again was dropped not long ago, which the kernel calls a stall."""
WRITE = """
import os, sys
file, content = os.open(f"{sys.argv[1]}/written{os.getpid()}", os.O_CREAT | os.O_WRONLY), os.urandom(1 << 24)
while True:
    for place in range(8): os.pwrite(file, content, place << 24)
    os.fsync(file)
"""


@contextmanager
def running(*commands: list[str], **options):
    processes = [subprocess.Popen(command, start_new_session=True, **options) for command in commands]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@contextmanager
def short_of_memory(folder: Path):
    """A process that reads more pages than its control group may keep."""
    group = Path("/sys/fs/cgroup/memory") / f"distprof-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError:
        pytest.skip("needs memory control groups, version 1, and root")
    try:
        with running([sys.executable, "-c", THRASH, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     text=True) as (process,):
            process.stdout.readline()
            (group / "cgroup.procs").write_text(str(process.pid))
            Path("/proc/sys/vm/drop_caches").write_text("1")
            process.stdin.write("go\n")
            process.stdin.flush()
            yield
    finally:
        time.sleep(0.5)
        group.rmdir()


@contextmanager
def busy_processor(folder: Path):
    first = str(min(os.sched_getaffinity(0)))
    with running(["taskset", "-c", first, sys.executable, "-c", BUSY]):
        yield


@contextmanager
def slow_disk(folder: Path):
    with running(*[[sys.executable, "-c", WRITE, str(folder)]] * 4):
        yield


PLANTS = {"pinned": (busy_processor, ("is limited to 1 CPU",)),
          "memory": (short_of_memory, ("wait for memory", "swap")),
          "disk": (slow_disk, ("requests to", "wait for I/O"))}
QUIET = {"pinned": "rank_others/0", "memory": "psi_memory", "disk": "psi_io"}
"""What others must not do already."""


def test_real_trouble_is_named(tmp_path):
    """Also says how much the reading costs."""
    conditions, named = Conditions(), {}
    first = str(min(os.sched_getaffinity(0)))
    with running(["taskset", "-c", first, sys.executable, "-c", RANK]) as (rank,):
        watch = MachineWatch(MachineReader(lambda: {0: rank.pid}), ConditionsFile(tmp_path / "hosts" / "a-1", "a"),
                             lambda one: conditions.add("a", os.cpu_count(), one.time_ns, one.values, one.others))
        used_s, began_s = time.process_time(), time.monotonic()
        watch.start()
        time.sleep(USUAL_S)
        tried = [name for name, column in QUIET.items() if _is_quiet(conditions, column)]
        cost = (time.process_time() - used_s) / (time.monotonic() - began_s)
        for name, (plant, _) in PLANTS.items():
            with plant(tmp_path):
                onset_ns = time.time_ns()
                time.sleep(TROUBLE_S)
                named[name] = said(conditions, onset_ns)
            time.sleep(REST_S)
        watch.stop()
    print(f"cost: {100 * cost:.2f} % of a processor; could be seen here: {tried}; named: {named}")
    assert cost < 0.01
    missed = [name for name in tried if not any(word in one for one in named[name] for word in PLANTS[name][1])]
    assert not missed
    if not tried:
        pytest.skip("others use this machine as much as what is planted would")


def _is_quiet(conditions: Conditions, column: str) -> bool:
    return bool(np.nanmedian(conditions.hosts["a"].column(column)) < 0.1)


def said(conditions: Conditions, onset_ns: int) -> list[str]:
    finding = WatchFinding(id="1", kind="slow_rank", ranks=[0], hosts=["a"], onset_step=1, onset_ns=onset_ns)
    return explained(finding, conditions, {0: "a"}, {})
