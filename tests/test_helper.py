"""The process that writes tables: the script does not see it, and it is never missed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distprof import helper
from distprof.compiled.library import is_built
from distprof.errors import OutputError
from distprof.helper import Helper
from support.jobs import PATIENCE_S, clean_environ

pytestmark = pytest.mark.skipif(not is_built(), reason="the compiled library starts it")


@pytest.fixture
def own(monkeypatch):
    """One that works, whatever this process has imported."""
    monkeypatch.setattr(helper, "HEAVY", "of nobody")
    one = Helper()
    yield one
    one.close()


def is_gone(pid: int) -> bool:
    """Pytest adopts what has lost its parent, and does not look after it at once."""
    until = time.monotonic() + PATIENCE_S
    while (state := state_of(pid)) not in "Z" and time.monotonic() < until:
        time.sleep(0.05)
    return state in "Z"


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


NO_CHILD = """
import os, signal, sys
from pathlib import Path
from distprof.helper import Helper

came = []
signal.signal(signal.SIGCHLD, lambda number, _: came.append(number))
held = os.open("/dev/null", os.O_RDONLY)
os.set_inheritable(held, True)
one = Helper()
pid = one.call("os:getpid")
assert pid != os.getpid() and one.call("os:getpid") == pid
parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
assert parent != os.getpid()
files = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
assert len(files) == 4 and files.count("/dev/null") == 2, files  # of out and errors; a socket to ask and to answer
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    one.close()
    print(pid, came)
"""


def test_it_is_no_child_and_has_nothing_of_ours():
    done = subprocess.run([sys.executable, "-c", NO_CHILD], capture_output=True, text=True, check=True,
                          env=clean_environ())
    pid, came = done.stdout.split()
    assert came == "[]" and is_gone(int(pid))


def test_what_it_raises_is_raised_here(own, tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        own.call("os:listdir", tmp_path / "nothing")
    assert raised.value.errno == 2 and Path(raised.value.filename) == tmp_path / "nothing"
    with pytest.raises(ModuleNotFoundError):
        own.call("of_nobody:x")
    assert own.call("operator:add", 1, 2) == 3


def test_an_error_that_cannot_be_sent_is_sent_in_words():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one}{two}")

    assert repr(helper._portable(Odd(1, 2))) == "RuntimeError('Odd: 12')"
    assert repr(helper._portable(OutputError("no", hint="x"))) == repr(OutputError("no", hint="x"))


def test_where_it_ends_the_work_is_done_here(own):
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as many scripts have it
    try:
        pid = own.call("os:getpid")
        os.kill(pid, signal.SIGKILL)
        assert is_gone(pid) and own.call("os:getpid") == os.getpid()
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_a_script_that_closes_all_files_keeps_those_it_opens(own):
    own.call("os:getpid")
    number = own._connection.fileno()
    os.close(number)
    file = os.open("/dev/null", os.O_RDWR)
    try:
        assert file == number and own.call("os:getpid") == os.getpid()
        own.close()
        assert os.fstat(file)
    finally:
        os.close(file)


@pytest.mark.parametrize("lacking", ["library", "program"])
def test_where_none_can_be_started_the_work_is_done_here(own, monkeypatch, lacking):
    if lacking == "library":
        monkeypatch.setattr(helper, "library", lambda: None)
    else:
        monkeypatch.setattr(sys, "executable", "/no/python")
    assert own.call("os:getpid") == os.getpid()


def test_it_ends_with_its_process_whoever_holds_the_connection(own):
    code = ("import os, time\nfrom distprof.helper import Helper\nhelper = Helper().call('os:getpid')\n"
            "if child := os.fork():\n    print(helper, child, flush=True)\n    os._exit(0)\n"
            "os.closerange(1, 3)\ntime.sleep(600)")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=clean_environ())
    helper_pid, child = map(int, done.stdout.split())
    try:
        assert is_gone(helper_pid)
    finally:
        os.kill(child, signal.SIGKILL)


STAYS = """
import json, os, sys
import torch

torch.set_num_threads(1)

def held():
    about = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(about["VmRSS"].split()[0]) >> 10, int(about["Threads"])

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for step in range(50):
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    seen.append(held())
print(json.dumps({"begin": seen[0], "end": seen[-1], "pyarrow": "pyarrow" in sys.modules}))
"""


@pytest.mark.job
def test_little_stays_of_a_recording(tmp_path):
    """docs/robustness.md says how much."""
    done = subprocess.run([sys.executable, "-c", f"import distprof\nwith distprof.record({str(tmp_path / 'run')!r}):\n"
                           + "".join(f"    {line}\n" for line in STAYS.splitlines())], check=True, capture_output=True,
                          text=True, env=clean_environ())
    found = json.loads(done.stdout)
    assert not found["pyarrow"] and (tmp_path / "run" / "rank00000" / "events.parquet").exists()
    assert found["end"][1] <= found["begin"][1] and found["end"][0] - found["begin"][0] < 25, found
