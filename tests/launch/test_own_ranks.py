"""Scripts that start their own ranks inside a job of torchrun, where those wait for a store that nobody opens."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
import torch.distributed as dist

from distprof.launch import own_ranks
from support import forked
from support.jobs import PATIENCE_S, called, clean_environ
from support.ports import free_port

SCRIPT = """
import multiprocessing, os, sys
import torch
import torch.distributed as dist

def train(rank):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", sys.argv[1]
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.destroy_process_group()

if __name__ == "__main__":
    model = torch.nn.Linear(2, 2)
    context = multiprocessing.get_context(sys.argv[2])
    ranks = [context.Process(target=train, args=(rank,), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
"""


@pytest.mark.job
@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.stress)])
def test_the_command_that_records_them_is_said_and_works(tmp_path, how):
    """The job waits as it does under torchrun; the one of the hint ends well."""
    (tmp_path / "own.py").write_text(SCRIPT)
    port = str(free_port())
    words = [sys.executable, "-m", "distprof", "run", "--no-merge", "--out", "run", "own.py", port, how]
    start = forked.popen if how == "fork" else subprocess.Popen
    job = start(words, cwd=tmp_path, env=clean_environ(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        said = next(line for line in job.stderr if "starts its own ranks" in line)
        assert job.poll() is None
    finally:
        job.send_signal(signal.SIGINT)
        rest = job.communicate(timeout=PATIENCE_S)[1]
    assert "starts its own ranks" not in rest, "only one of them says it"
    assert f"127.0.0.1:{port}" in said
    assert f"hint: stop the job and run `DISTPROF_OUT=runs/own python own.py {port} {how}`" in said
    done = forked.run([sys.executable, "own.py", port, how], cwd=tmp_path, env=clean_environ() | {
        "DISTPROF_OUT": "runs/own"}, timeout=PATIENCE_S)
    assert done.returncode == 0


STORE = dist.HashStore()


@pytest.mark.parametrize(("environ", "given", "waits"), [
    ({}, {"rank": 0, "world_size": 2}, True), ({"RANK": "0"}, {}, True), ({}, {"backend": "gloo", "rank": 0}, True),
    ({}, {"rank": 0, "init_method": "env://"}, True), ({}, {"rank": 1, "world_size": 2}, False),
    ({"RANK": "1"}, {}, False), ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, {"rank": 0}, False),
    ({}, {"rank": 0, "init_method": "tcp://127.0.0.1:1"}, False), ({}, {"rank": 0, "store": STORE}, False),
    ({}, {"no_such_argument": 1}, False)])
def test_which_calls_wait_for_the_store_of_torchrun(monkeypatch, environ, given, waits):
    said, begun = [], threading.Event()
    monkeypatch.setattr(own_ranks, "PATIENCE_S", 0.0)
    monkeypatch.setattr(own_ranks, "say", lambda text: said.append(text) or begun.set())
    for name, value in {"TORCHELASTIC_USE_AGENT_STORE": "True", **environ}.items():
        monkeypatch.setenv(name, value)
    with own_ranks.explained(dist.init_process_group, (), given):
        assert begun.wait(60 if waits else 0.2) is waits
    assert len(said) == waits


def test_a_group_that_meets_in_time_is_no_news(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(own_ranks, "say", lambda _: pytest.fail("nobody waited"))
    with own_ranks.explained(dist.init_process_group, (), {"rank": 0}):
        pass


def test_the_help_of_run_names_the_command():
    assert "`DISTPROF_OUT=runs/mine python script.py` records them" in " ".join(called("run", "--help").stdout.split())
