"""Commands whose every name would take over a terminal: they print what can be seen, to a terminal and to a pipe."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from distprof.contract import rank_json
from distprof.contract.parquet import write_table
from distprof.contract.paths import RANK_JSON
from distprof.contract.rank_json import RankJson
from distprof.contract.tables import MODULES, STEPS
from support.hostile import FILE_NAME, NAME, judge, judge_characters, on_terminal, piped
from support.jobs import called
from support.rank_traces import slice_of, write_run

pytestmark = pytest.mark.job
PROGRESS = (b"\x1b[?25l", b"\x1b[?25h", b"\x1b[2K", b"\x1b[1A", b"\r")
"""What rich draws a progress bar with."""
MODEL = f'''
import torch
from torch import nn

NAME = {NAME!r}


class Inner(nn.Module):
    def forward(self, x):
        return x * 2


Inner.__name__ = Inner.__qualname__ = NAME


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(NAME, Inner())

    def forward(self, x):
        return getattr(self, NAME)(x)


class Raises(nn.Module):
    def forward(self, x):
        raise type(NAME, (Exception,), {{}})(NAME)


def build():
    return Outer(), torch.ones(2, 3)


def raises():
    return Raises(), torch.ones(2, 3)


def fails():
    raise RuntimeError(NAME)
'''
SCRIPT = f'''
import torch

raise ValueError({NAME.replace(chr(10), " ")!r})
'''


def foreign(folder: Path) -> Path:
    """Traces of another program, with hostile names in every place."""
    folder.mkdir()
    for rank in range(2):
        events = [{"ph": "M", "name": f"{what}_name", "pid": NAME, "tid": NAME, "args": {"name": NAME}}
                  for what in ("process", "thread")]
        group = {"Collective name": "allreduce", "Process Group Name": NAME, "Process Group Description": NAME,
                 "Process Group Ranks": "[0, 1]", "In msg nelems": 4, "dtype": NAME}
        for number in range(12):
            place = {"pid": NAME, "tid": NAME}
            events.append(slice_of(f"{NAME}{number}", number * 100, 50, cat=NAME, args={NAME: NAME}, **place))
            events.append(slice_of("gloo:all_reduce", number * 100 + 10, 20 + rank, cat="user_annotation", args=group,
                                   **place))
        groups = [{"pg_name": NAME, "pg_desc": NAME, "ranks": [0, 1], "pg_size": 2}]
        whole = {NAME: {NAME: NAME}, "deviceProperties": [{"name": NAME}], "traceEvents": events,
                 "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": groups}}
        (folder / f"{FILE_NAME}rank{rank}.json").write_text(json.dumps(whole))
    (folder / f"{FILE_NAME}.json").write_text("no JSON")
    return folder


def recorded(path: Path) -> Path:
    """A run directory with hostile names in every place."""
    events = [slice_of(f"{NAME}{number}", number * 100, 50, pid=NAME, tid=NAME) for number in range(3)]
    write_run(path, events, events)
    for rank in range(2):
        folder = path / f"rank{rank:05d}"
        tags = {"rank": rank, "mp_size": 1, "dp_size": 2}
        modules = [{"module_path": where, "class_name": NAME, "depth": depth, "params": 4 + rank, "own_params": 4,
                    "stored_params": 4, "trainable_params": 4, "param_bytes": 16, "buffers": 0, "buffer_bytes": 0,
                    "dtype": NAME, "fwd_macs": 2, "fwd_flops": 4, "fwd_calls": 1}
                   for depth, where in enumerate(("", NAME.replace(".", " ")))]
        steps = [{"step": number, "pass": name, "start_ns": number * 10**9, "end_ns": (number + 1) * 10**9,
                  "duration_ns": 10**9} for number, name in enumerate(("count", "time", "time"))]
        for table, rows in ((MODULES, modules), (STEPS, steps)):
            known = {column.name for column in table.columns}
            write_table(folder, table, [{key: row[key] for key in row if key in known} for row in rows],
                        tags={key: value for key, value in tags.items() if key in known}, metadata={})
        rank_json.write(folder / RANK_JSON, RankJson(
            run_id=NAME, status="partial" if rank else "complete", why=NAME, rank=rank, world_size=2, host=NAME,
            boot_id=NAME, mp_size=1, dp_size=2, notes=[NAME], device_name=NAME, clock_note=NAME,
            files={"modules.parquet": None, "steps.parquet": None, "trace.json.gz": None, NAME: None}))
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign(tmp_path_factory.mktemp("foreign") / NAME)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("recorded") / NAME)


def told(*arguments: object, code: int = 0) -> str:
    """What a command prints to pipes; an error is one line."""
    done = called(*arguments)
    assert done.returncode == code, done
    assert len(done.stderr.splitlines()) == (1 if code else 0), done.stderr
    return judge(done.stdout.encode()) + judge(done.stderr.encode())


@pytest.mark.parametrize("arguments", [
    ("comms",), ("comms", "--slowest", 3), ("comms", "--timeline", "--matrix"), ("comms", "--group", NAME), ("stats",),
    ("merge", "--force"), ("merge", "--force", "--collectives")], ids=lambda words: " ".join(map(str, words[:2])))
def test_traces_of_others(traces, arguments):
    assert "\\x1b[31m\\x1b]2;t" in told(*arguments, traces) or "--timeline" in arguments


@pytest.mark.parametrize("arguments", [
    ("stats",), ("stats", "--modules"), ("comms",), ("merge", "--force"), ("merge", "--force", "--answer")],
    ids=lambda words: " ".join(words[:3]))
def test_runs_of_ours(run, arguments):
    assert "\\x1b[2J" in told(*arguments, run)


@pytest.mark.parametrize("command", [("comms",), ("stats",), ("stats", "--modules")], ids=lambda words: words[-1])
def test_json_stays_json(traces, run, command):
    assert json.loads(told(*command, "--json", run))["run_id"] == NAME
    if "--modules" not in command:
        assert NAME.startswith(json.loads(told(*command, "--json", traces))["run_id"])


def test_reports(traces, run):
    assert json.loads(told("report", "--json", run))["run"]["run_id"] == NAME
    assert NAME.startswith(json.loads(told("report", "--json", traces))["run"]["run_id"])
    for path in (traces, run):
        lines = told("report", "--markdown", path).splitlines()
        assert lines[0].startswith("### ") and not any(line.startswith("#") for line in lines[1:])


@pytest.mark.parametrize(("arguments", "code"), [
    ((NAME,), 2), (("stats", f"--{NAME}"), 2), (("stats", FILE_NAME), 1), (("merge", NAME), 1),
    (("merge", FILE_NAME, "--rank-pattern", f"({NAME}"), 1), (("merge", FILE_NAME, "--steps", NAME), 2),
    (("run", FILE_NAME), 2), (("run", f"--{NAME}", "x.py"), 2), (("run", "--steps", NAME, __file__), 2),
    (("count", f"{FILE_NAME}.py:x"), 2), (("count", f"json:{NAME}"), 2),
    (("reconcile", "json:loads", "--peer", NAME), 2)],
    ids=lambda words: ascii(" ".join(words))[:30] if isinstance(words, tuple) else "")
def test_mistakes_are_one_line(arguments, code):
    assert told(*arguments, code=code).startswith("distprof: ")


@pytest.mark.parametrize(("command", "factory", "code"), [
    ("count", "build", 0), ("count", "raises", 1), ("count", "fails", 1), ("profile", "build", 0),
    ("reconcile", "build", 0)])
def test_models(tmp_path, command, factory, code):
    file = tmp_path / f"{FILE_NAME}{command}{factory}.py"
    file.write_text(MODEL)
    assert "\\x1b[2J" in told(command, f"{file}:{factory}", code=code) or command == "reconcile"


def test_the_machine(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    assert "\\x1b[31m" in told("doctor", "--out", tmp_path / FILE_NAME)


@pytest.mark.parametrize("arguments", [
    ("comms",), ("comms", "--timeline"), ("stats", "--modules"), ("merge", "--force"), ("comms", "--group", "none")],
    ids=lambda words: " ".join(words))
def test_on_a_terminal(run, traces, arguments):
    code, shown = on_terminal(*arguments, run if "stats" in arguments else traces)
    for part in PROGRESS if "merge" in arguments else ():
        shown = shown.replace(part, b"")
    judge(shown, terminal=True)
    assert code == (2 if "none" in arguments else 0)
    assert b"\x1b[" in shown or code, "our own colours are there"


def test_a_terminal_that_takes_ascii_only(traces):
    done = piped("comms", traces, PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0 and done.stdout.isascii() and b"----" in done.stdout, done
    judge(done.stdout)


def test_our_lines_about_a_script_that_fails(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(SCRIPT)
    done = piped("run", "--out", tmp_path / NAME, script)
    ours = [line for line in done.stderr.split(b"\n") if line.startswith(b"distprof: ")]
    assert done.returncode == 1 and len(ours) > 2, done.stderr
    assert "\\x1b[2J" in judge(b"\n".join(ours))
    # the command that is printed can be pasted
    following = done.stderr.decode(errors="replace").split("    distprof merge ")[1].splitlines()[0]
    given = subprocess.run(["bash", "-c", f"printf %s {following}"], capture_output=True, check=True).stdout
    assert judge_characters(following.encode()) and Path(os.fsdecode(given)) == tmp_path / NAME
    assert "\\x1b[2J" in told("comms", tmp_path / NAME)
