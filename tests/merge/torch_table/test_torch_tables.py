"""`distprof ops --torch` beside the tables that torch.profiler printed of the same sessions: every character."""

from __future__ import annotations

import json
import re
import sys

import pytest

from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, called, clean_environ, torchrun
from support.made_up_traces import op

FLAGS = {"": (), "shape": ("--by", "shape"), "stack": ("--by", "stack", "--stack", 3),
         "shape_stack": ("--by", "shape", "--by", "stack", "--stack", 8)}
SHOWN = {"plain": "aten::mm", "shapes": "Total FLOPs", "stacks": "Source Location", "stacks_unasked": "<module>",
         "memory": "[memory]", "compiled": "Torch-Compiled Region", "ddp": "gloo:all_reduce"}
"""What makes each way of profiling another one, somewhere in its tables."""
SCRIPT = SCRIPTS / "torch_tables.py"


def tables(folder, way, rank=0):
    """Flags of ours, and what torch printed."""
    for path in sorted((folder / way / f"rank{rank}").glob("*.txt")):
        name, sort = path.stem.split("-")
        yield (*FLAGS[name], *(() if sort == "None" else ("--sort", sort))), path.read_text()


def profiled(out, *ways):
    forked.run([sys.executable, str(SCRIPT), str(out), *ways], check=True, timeout=PATIENCE_S, env=clean_environ())
    return out


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return profiled(tmp_path_factory.mktemp("tables"), "plain", "shapes", "stacks", "stacks_unasked", "memory")


def assert_same(folder, way):
    found = list(tables(folder, way))
    assert len(found) == 11 and any(SHOWN[way] in theirs for _, theirs in found)
    for flags, theirs in found:
        ours = called("ops", "--torch", "--top", 100_000, *flags, folder / way / "rank0" / "trace.json").stdout
        assert ours == theirs, flags


@pytest.mark.job
@pytest.mark.parametrize("way", ["plain", "shapes", "stacks", "stacks_unasked", "memory"])
def test_tables_are_torch_s(one_process, way):
    assert_same(one_process, way)


@pytest.mark.job
@pytest.mark.stress
def test_tables_of_a_compiled_model_are_torch_s(tmp_path):
    assert_same(profiled(tmp_path, "compiled"), "compiled")


@pytest.mark.job
@pytest.mark.stress
def test_tables_of_each_rank_are_torch_s(tmp_path):
    torchrun(2, SCRIPT, tmp_path, "ddp")
    for rank in range(2):
        found = list(tables(tmp_path, "ddp", rank))
        assert len(found) == 11 and all(SHOWN["ddp"] in theirs for _, theirs in found)
        for flags, theirs in found:
            ours = called("ops", "--torch", "--rank", rank, "--top", 100_000, *flags, tmp_path / "ddp").stdout
            assert ours == theirs, (rank, flags)


def test_stacks_that_cannot_be_followed_are_none(tmp_path):
    """Made up: a call of Python without a number, one whose parent is not there, nodes of autograd nobody made."""
    python, node = {"cat": "python_function"}, {"Sequence number": 5, "Fwd thread id": 3}
    events = [op("a.py(1): f", 0, 90, **python, **{"Python id": 1, "Python parent id": 77}),
              op("b.py(2): g", 1, 80, **python),
              op("c.py(3): h", 2, 70, **python, **{"Python id": 2, "Python parent id": 2}),
              op("aten::mm", 3, 2, **{"Call stack": "c.py(3): h;a.py(1): f;"}),
              op("aten::add", 6, 2, **{"Call stack": 7}),
              op("autograd::engine::evaluate_function: MmBackward0", 10, 9, **node),
              op("MmBackward0", 11, 7, **node, **{"Call stack": "a.py(1): f;"}),
              op("aten::sub", 12, 5, **{"Call stack": "a.py(1): f;"})]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events, "profile_memory": 1, "with_flops": 1}))
    done = called("ops", "--torch", "--by", "stack", tmp_path / "rank0.json")
    frames = [line.split("  1  ")[-1].strip() for line in done.stdout.splitlines() if "aten::" in line]
    assert done.returncode == 0 and frames == ["c.py(3): h", "", ""], done.stdout + done.stderr
    twice = called("ops", "--torch", "--by", "stack", "--rank", 0, "--rank", 0, tmp_path / "rank0.json")
    assert twice.stdout == done.stdout, twice.stderr


def shown(call_stack):
    """What is left of a stack as torch wrote it: functions in files, but for those that calls of modules go through."""
    frames = [frame for frame in call_stack.split(";") if re.search(r"\(\d+\): ", frame) and "<built-in" not in frame]
    through = re.compile(r"module\.py\(\d+\): _(wrapped_)?call_impl$")
    return " < ".join(frame for frame in frames if not through.search(frame)) or None


@pytest.mark.job
def test_stacks_of_operators_are_those_that_torch_wrote(one_process):
    """In backward: of the operators that made the nodes of autograd. Ours are found without torch's texts."""
    trace = one_process / "stacks" / "rank0" / "trace.json"
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "cpu_op"]
    nodes = [event for event in events if event["name"].startswith("autograd::engine")]
    forward, makers, backward = set(), {}, set()
    for event in sorted(events, key=lambda event: event["ts"]):
        stack, sequence = shown(event["args"].get("Call stack", "")), event["args"].get("Sequence number")
        if any(node["tid"] == event["tid"] and node["ts"] <= event["ts"] < node["ts"] + node["dur"] for node in nodes):
            if event["name"].startswith("autograd::engine") and "Fwd thread id" in event["args"]:
                backward.add((event["name"], makers[event["tid"], sequence]))
        else:
            forward.add((event["name"], stack))
            makers[event["tid"], sequence] = stack  # the last one: others made no node
    flags = ("--by", "op", "--by", "stack", "--by", "phase", "--stack", 99)
    rows = json.loads(called("ops", "--json", *flags, trace).stdout)
    found = [(row["op"], row["stack"], row["phase"]) for row in rows["ops"] if row["type"] == "operator"]
    again = ("backward", "recompute")
    assert {(op, stack) for op, stack, phase in found if phase not in again} == forward and len(forward) > 100
    assert backward <= {(op, stack) for op, stack, phase in found if phase in again} and len(backward) > 30
