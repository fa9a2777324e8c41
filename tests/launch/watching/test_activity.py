"""Whether processes do anything, and where they are below Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest

from distprof.launch.watching.readings.activity import Activity, activities, native_calls

pytestmark = [pytest.mark.job, pytest.mark.skipif(sys.platform != "linux", reason="jobs are watched on Linux")]
COMPUTES = "while True: pass"
WAITS = "import threading; lock = threading.Lock(); lock.acquire(); print(1, flush=True); lock.acquire()"
WRITES = ("import time\nfile = open('/dev/null', 'wb', 0)\n"
          "while True:\n    file.write(bytes(1 << 20))\n    time.sleep(0.05)")
SENDS = """import socket, threading, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
other, _ = server.accept()
while True:
    client.sendall(bytes(1 << 15))
    other.recv(1 << 15, socket.MSG_WAITALL)
    time.sleep(0.1)
"""
"""Uploads 0.3 MB per second, for which it needs hardly any processor time."""
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}])"


def activity(pid):
    return activities({0: pid})[0]


@contextmanager
def process(code):
    started = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


@pytest.mark.parametrize(("code", "busy"), [
    (COMPUTES, True), (WAITS, False), (WRITES, True), (CHILD, True), (SENDS, True)])
def test_who_computes_writes_or_sends_is_busy(code, busy):
    with process(code) as one:
        time.sleep(1)
        before = activity(one.pid)
        time.sleep(1)
        now = activity(one.pid)
    assert now.alive
    assert now.is_busy_since(before) is busy


def test_who_was_stopped_or_ended():
    with process(WAITS) as one:
        one.stdout.readline()
        one.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        assert activity(one.pid).stopped
    gone = activity(one.pid)
    assert not gone.alive
    assert not gone.is_busy_since(gone)


def test_who_waits_for_a_disk_is_busy():
    still = Activity(at_s=0, alive=True, stopped=False, waits_for_disk=False, used_s=0, num_bytes=0)
    waits = Activity(at_s=5, alive=True, stopped=False, waits_for_disk=True, used_s=0, num_bytes=0)
    assert waits.is_busy_since(still)


def test_who_gets_little_of_a_processor_is_busy_and_who_asks_for_little_is_not():
    def of(at_s: float, ran_s: dict[int, float]) -> Activity:
        return Activity(at_s=at_s, alive=True, stopped=False, waits_for_disk=False, used_s=at_s / 20, num_bytes=0,
                        runnable_s=ran_s)

    before = of(0, {1: 10.0, 2: 0.0})
    assert of(2, {1: 11.9, 2: 0.0}).is_busy_since(before)
    assert not of(2, {1: 10.1, 2: 0.2, 3: 50.0}).is_busy_since(before)  # the third is new


def test_a_process_among_many_on_a_processor_is_busy():
    alone = f"import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n{COMPUTES}"
    with ExitStack() as stack:
        first, *_ = [stack.enter_context(process(alone)) for _ in range(12)]
        time.sleep(0.5)
        before = activity(first.pid)
        time.sleep(1)
        now = activity(first.pid)
    assert now.is_busy_since(before)
    assert now.used_s - before.used_s < 0.5  # it had to share


def test_calls_below_python():
    if shutil.which("py-spy") is None:
        pytest.skip("needs py-spy")
    with process(WAITS) as one:
        one.stdout.readline()
        time.sleep(0.3)
        calls = native_calls(one.pid)
    if not calls:
        pytest.skip("py-spy may not look at other processes here")
    assert any("acquire_lock" in call for call in calls)


def test_without_py_spy_there_are_none(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert native_calls(1) == []
