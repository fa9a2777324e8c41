"""Signals reach a script as they would without us, before, during and after the recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distprof.compiled.library import is_built
from distprof.launch import worker
from support import forked
from support.jobs import clean_environ

pytestmark = [pytest.mark.job, pytest.mark.skipif(not is_built(), reason="signals are watched by the compiled library")]
HEAD = """
import os, signal, sys, time
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stops = []

def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def to_itself(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    time.sleep(0.05)
"""
TAIL = """
AT = int(sys.argv[1])
for number in range(12):
    step()
    if number == AT - 1:
        time.sleep(1.2)  # by then our handler is in front of one that was set meanwhile
    if number == AT:
        to_itself()
        if stops:
            print("checkpoint", stops)
            break
print("finished")
"""
SCRIPTS = {
    "calls the one before": """
before = signal.getsignal(signal.SIGTERM)

def on_term(number, frame):
    stops.append(number)
    if callable(before):
        before(number, frame)

signal.signal(signal.SIGTERM, on_term)
""",
    "calls the one before, set in the first step": """
step()
before = signal.signal(signal.SIGTERM, lambda *_: (stops.append(1), callable(before) and before(*_)))
""",
    "only where there is none": """
step()
if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
""",
    "sets the default again": """
step()
before = signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
signal.signal(signal.SIGTERM, before)
""",
    "ignores it": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    "ignores it later": "step()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    "raises": """
def on_term(*_):
    raise SystemExit("on my way")
signal.signal(signal.SIGTERM, on_term)
""",
    "a wakeup descriptor": """
read, write = os.pipe()
os.set_blocking(write, False)
step()
signal.signal(signal.SIGTERM, lambda *_: stops.append("handled"))
assert signal.set_wakeup_fd(write) == -1
step()
""",
    "waits for it": """
step()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigwait({signal.SIGTERM}))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
""",
    "a child": """
step()
time.sleep(1.2)
child = os.fork()
if not child:
    time.sleep(600)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "a child that handles it": """
step()
time.sleep(1.2)
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "nothing": "",
}
ASYNCIO = """
import asyncio

async def job():
    loop, got, stop = asyncio.get_running_loop(), [], asyncio.Event()
    step()
    loop.add_signal_handler(signal.SIGUSR1, lambda: got.append(1))
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    for number in range(30):
        step()
        if number in (1, 4, 25):
            os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stop.wait(), 60)
    print(got, "stopped")

asyncio.run(job())
"""
PLAN = {"DISTPROF_STEPS": "wait=1,count=1,time=2,trace=6,arrivals=2"}
DURING, AFTER = 4, 11


def both(folder: Path, script: str, *words: object) -> tuple[subprocess.CompletedProcess, subprocess.CompletedProcess]:
    """Without us and under our worker, as the launcher starts it."""
    (folder / "script.py").write_text(script)
    command = [folder / "script.py", *map(str, words)]
    started = [forked.popen([sys.executable, *before, *command], env=clean_environ() | more, cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
               for before, more in (((), {}), ((worker.__file__,), PLAN | {"DISTPROF_OUT": str(folder / "run")}))]
    plain, ours = (subprocess.CompletedProcess(one.args, one.wait(), *said) for one, said in
                   [(one, one.communicate()) for one in started])
    return plain, ours


def status(folder: Path) -> str:
    return json.loads(next((folder / "run").glob("rank00000*/rank.json")).read_text())["status"]


@pytest.mark.parametrize(("how", "at"), [
    *((how, DURING) for how in SCRIPTS), ("calls the one before", AFTER),
    *(pytest.param(how, AFTER, marks=pytest.mark.stress) for how in [*SCRIPTS][1:])])
def test_a_sigterm_has_the_effect_that_it_has_without_us(tmp_path, how, at):
    plain, ours = both(tmp_path, HEAD + SCRIPTS[how] + TAIL, at)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert status(tmp_path) == ("complete" if ("finished" in plain.stdout and "checkpoint" not in plain.stdout)
                                or at == AFTER else "partial")


def test_signals_that_asyncio_handles_arrive(tmp_path):
    plain, ours = both(tmp_path, HEAD + ASYNCIO)
    assert plain.stdout == "[1, 1, 1] stopped\n"
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


VIEW = """
def view():
    return [repr(signal.getsignal(number)) for number in range(1, signal.SIGRTMIN)]

views = [view()]
for number in range(12):
    step()
    time.sleep(0.1)
    views.append(view())
    assert signal.set_wakeup_fd(-1) == -1
print(len({*map(tuple, views)}), len(views))
"""


def test_handlers_are_those_of_the_script_all_the_time(tmp_path):
    plain, ours = both(tmp_path, HEAD + VIEW)
    assert plain.stdout == ours.stdout == "1 13\n"


@pytest.mark.parametrize(("beside", "name"), [("random", "pyarrow"), *(
    pytest.param(*names, marks=pytest.mark.stress) for names in (("distprof", "statistics"), ("msgspec", "msgspec")))])
def test_modules_of_the_job_are_its_own(tmp_path, beside, name):
    """One in the working directory is never imported; one in the folder of the script is what the script imports."""
    job = tmp_path / "job"
    job.mkdir()
    for module in (tmp_path / beside, job / name):
        module.with_suffix(".py").write_text("print('of the job', __name__)\n")
    taken, printed = f"import {name}\nprint({name}.__file__)\n", f"of the job {name}\n{job / name}.py\n"
    (job / "script.py").write_text(f"{HEAD}{taken}for _ in range(12): step()\nprint(sys.path[0])\n")
    (tmp_path / "run").mkdir()
    ours = subprocess.run([sys.executable, worker.__file__, job / "script.py"], cwd=tmp_path, capture_output=True,
                          text=True, env=clean_environ() | PLAN | {"DISTPROF_OUT": os.fspath(tmp_path / "run")},
                          check=False)
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, f"{printed}{job}\n", "")
    assert status(tmp_path) == "complete"
