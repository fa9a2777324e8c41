"""What distprof installs in the process, as a script sees it before, during and after: docs/robustness.md."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn
from torch.autograd.profiler import profile
from torch.nn.modules import module as nn_module

import distprof
from distprof.after_import import AfterImport
from distprof.recording.termination import _unused_signal
from support.jobs import PATIENCE_S, ROOT, clean_environ
from support.left_behind import VIEWS, seen_now
from support.recording import Recorded
from support.unharmed import WORKER

PLAN = "wait=1,count=1,time=1,trace=1,sync=1,arrivals=1"
STEPS = 6
TABLE = re.search(r"## What distprof installs in the process\n(.*?)\n## ",
                  (ROOT / "docs" / "robustness.md").read_text(), re.DOTALL)
SEEN = {"real-time signal", "global module hooks", "global optimizer hooks", "dispatch modes", "GradScaler.step",
        "CUDAGraph", "kernels wrapping operators", "torch.profiler", "functions of torch's profiler",
        "functions that wait", "data loaders",
        "warning filters", "sys.meta_path"}
"""What a script sees another of while it is recorded; all else is as it was."""


STAYS = {"sys.meta_path", "global optimizer hooks", "global module hooks", "GradScaler.step", "data loaders",
         "warning filters", "the garbage collector"}
"""What is there until the script ends."""


class Views(NamedTuple):
    before: dict[str, object]
    steps: list[dict[str, object]]
    """Between forward and the optimizer of each step."""
    after: dict[str, object]
    """Of the last pass, within `distprof.record`."""
    end: dict[str, object]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Views]:
    with mock.patch.dict("os.environ"), warnings.catch_warnings():
        torch.optim.SGD([torch.zeros(1)])  # the first one loads torch's compiler, which sets a variable
        compiler = sys.modules.pop("torch._dynamo.utils", None)  # as before a script compiles
        try:
            yield looked_at(tmp_path_factory.mktemp("view") / "run")
        finally:
            if compiler is not None:
                sys.modules["torch._dynamo.utils"] = compiler


def looked_at(run: Path) -> Views:
    model = nn.Linear(4, 4)
    before, steps = seen_now(), []
    with distprof.record(run, steps=PLAN) as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            loss = model(torch.zeros(2, 4)).sum()
            steps.append(seen_now())
            loss.backward()
            optimizer.step()
        assert not recorder.recording
        after = seen_now()
    return Views(before, steps, after, seen_now())


@pytest.mark.parametrize("what", VIEWS)
def test_a_script_sees_what_the_table_says(views, what):
    assert views.after[what] == views.before[what] or what in STAYS, "the last pass is over"
    assert views.end[what] == views.before[what]
    changed = [step for step in views.steps if step[what] != views.before[what]]
    assert bool(changed) == (what in SEEN)


def test_every_row_is_in_the_table_and_says_whether_a_script_sees_it():
    assert TABLE is not None
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE[1].splitlines() if line.startswith("| ")]
    told = {row[0].strip("`"): row[1] for row in rows[1:] if not set(row[0]) <= {"-", " "}}
    assert {name for name in VIEWS if name not in told} == set()
    assert {name for name, seen in told.items() if name in VIEWS and not seen.startswith("nothing")} == SEEN


def train(run: Path, each=lambda step: None) -> Recorded:
    model = nn.Linear(4, 4)
    with distprof.record(run, steps=PLAN):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            model(torch.zeros(2, 4)).sum().backward()
            each(step)
            optimizer.step()
    return Recorded(run)


PATCHED = [(torch.Tensor, "tolist"), (threading.Thread, "join"), (threading.Condition, "wait"), (profile, "__exit__"),
           (torch.amp.GradScaler, "step"), (torch.cuda.CUDAGraph, "replay"), (torch.Tensor, "cpu")]
"""Functions that have one of ours in front of them in some pass."""


@pytest.mark.long
@pytest.mark.parametrize(("owner", "name"), PATCHED)
def test_a_function_that_the_script_wraps_stays_wrapped_and_one_that_it_puts_back_stays_back(tmp_path, owner, name):
    own = getattr(owner, name)
    wrapped = []

    def wrap(step: int) -> None:
        if getattr(owner, name) is not own and not wrapped:  # ours is there
            below = getattr(owner, name)
            wrapped.append(lambda *args, **kwargs: below(*args, **kwargs))
            setattr(owner, name, wrapped[0])

    try:
        assert train(tmp_path / "wrapped", wrap).info["status"] == "complete"
        assert wrapped and getattr(owner, name) is wrapped[0]
        assert torch.ones(2).tolist() == [1, 1], "ours is below and only hands on"
        setattr(owner, name, own)
        assert train(tmp_path / "back", lambda _: setattr(owner, name, own)).info["status"] == "complete"
        assert getattr(owner, name) is own
    finally:
        setattr(owner, name, own)


@pytest.mark.long
def test_hooks_that_the_script_removes_all_are_missed_and_nothing_else(tmp_path):
    before = seen_now()

    def clear(step: int) -> None:
        if step == 2:
            for hooks in (nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks):
                hooks.clear()

    assert train(tmp_path / "run", clear).info["status"] == "complete"
    assert seen_now() == before


@pytest.mark.long
def test_filters_of_warnings_may_be_reset_and_restored_around_ours(tmp_path):
    def reset(step: int) -> None:
        kept.append(list(warnings.filters))
        warnings.resetwarnings()
        warnings.filters[:] = kept[0] if step == 5 else kept[-1]

    with warnings.catch_warnings():
        kept: list = []
        assert train(tmp_path / "run", reset).info["status"] == "complete"


def test_a_real_time_signal_that_the_script_uses_is_left_to_it():
    last = signal.SIGRTMAX - 1
    with mock.patch("signal.getsignal", lambda number: print if number == last else signal.SIG_DFL):
        assert _unused_signal() == last - 1
    with mock.patch("signal.getsignal", lambda number: print):
        assert _unused_signal() is None


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    (tmp_path / "made_up_module.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield "made_up_module"
    sys.modules.pop("made_up_module", None)


def test_a_script_that_only_looks_for_a_module_does_not_use_up_the_import_hook(made_up):
    """As transformers and accelerate do before they import torch."""
    calls: list[int] = []
    finder = AfterImport(made_up, lambda: calls.append(1))
    sys.meta_path.insert(0, finder)
    assert importlib.util.find_spec(made_up) is not None and importlib.util.find_spec(made_up) is not None
    assert not calls
    module = importlib.import_module(made_up)
    assert calls == [1] and module.VALUE == 1 and finder not in sys.meta_path
    importlib.reload(module)
    assert calls == [1]


@pytest.mark.parametrize("what", ["wrapped", "removed"])
def test_an_import_hook_that_the_script_wraps_or_removes_breaks_no_import(made_up, what):
    class Wrapped:
        def __init__(self, inner) -> None:
            self.inner = inner

        def find_spec(self, *arguments):
            return self.inner.find_spec(*arguments)

    calls: list[int] = []
    finder = AfterImport(made_up, lambda: calls.append(1))
    sys.meta_path.insert(0, finder)
    sys.meta_path[:] = [Wrapped(one) for one in sys.meta_path] if what == "wrapped" else sys.meta_path[1:]
    assert importlib.import_module(made_up).VALUE == 1
    assert calls == ([1] if what == "wrapped" else [])
    finder.remove()


@pytest.mark.long
def test_threads_that_begin_while_it_is_recorded_get_no_signal(tmp_path):
    """A script that blocks signals and waits for them is the only one that gets them."""
    def blocked() -> dict[str, int]:
        found = {}
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # a thread that ended just now
                (line,) = re.findall(r"^SigBlk:\s+(\w+)$", (task / "status").read_text(), re.MULTILINE)
                found[task.name] = int(line, 16)
        return found

    before = blocked()
    new: dict[str, int] = {}
    train(tmp_path / "run", lambda _: new.update(blocked()))
    new.update(blocked())
    new = {task: mask for task, mask in new.items() if task not in before}
    bit = 1 << (signal.SIGTERM - 1)
    assert new and all(mask & bit for mask in new.values())


STAYING = """
import os, re, time
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
time.sleep(0.2)
print(*re.findall(r"^(?:RssAnon|Threads):\\s+(\\d+)", open("/proc/self/status").read(), re.MULTILINE))
"""


@pytest.mark.core
@pytest.mark.job
def test_after_the_last_pass_at_most_ten_megabytes_and_a_thread_stay(tmp_path):
    """In Pythons that start: the modules of a forked one would be there before."""
    script = tmp_path / "staying.py"
    script.write_text(STAYING)

    def stays(*command: str | Path, **environ: str) -> list[int]:
        done = subprocess.run([sys.executable, *command, script], env=clean_environ() | environ, check=True,
                              capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
        return [int(number) for number in done.stdout.split()]

    plain_kb, plain_threads = stays()
    kb, threads = stays(WORKER, DISTPROF_OUT=str(tmp_path / "run"), DISTPROF_WATCH="off")
    assert Recorded(tmp_path / "run").info["status"] == "complete"
    assert (kb - plain_kb) * 1024 <= 10e6 and threads - plain_threads <= 1, (kb, plain_kb, threads, plain_threads)
