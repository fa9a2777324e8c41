"""`rank.json` and `run.json` as they are read and written, and the command of a job in the latter."""

from __future__ import annotations

import argparse
import json

import pytest
from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.mesh import MESH_AXES
from distprof.contract.paths import FORMAT
from distprof.contract.rank_json import ClockPair, ClockSample, ParamCount, RankJson
from distprof.contract.run_json import RECORDING_FLAGS, TORCHRUN_SWITCHES, RunJson, job_command, script_command
from distprof.errors import DataError, FormatError
from distprof.launch.job_arguments import add_recording_flags, job_parser

RANK = RankJson(
    run_id="x", status="partial", why="signal SIGTERM after 3 of 12 steps", notes=["one"], rank=3, local_rank=1,
    world_size=4, attempt=1, pid=77, host="h", boot_id="b", topology={"dp": 2, "tp": 2}, coordinates={"dp": 1, "tp": 1},
    topology_source="DeviceMesh (dp, tp)", mp_size=2, dp_size=2, plan="wait=1", num_steps=3, passes={"wait": 1},
    params=ParamCount(params=5, unique_params=None, dtypes={"float32": 5}), device_name="cpu", tf32={"matmul": False},
    clock=[ClockPair(realtime_ns=9, monotonic_ns=1)],
    clock_sync=[ClockSample(peer=0, at_ns=9, offset_ns=-5, bound_ns=2, rounds=8), ClockSample(peer=0, at_ns=10)],
    clock_note="late", versions={"torch": "2"}, files={"ops.parquet": 7, "trace.json.gz": None})
RUN = RunJson(run_id="x", argv=["train.py", "--name=é"], world_size=4, hosts=["h"], start_ns=3, exit_code=-9)


@pytest.mark.parametrize("content", [RANK, RUN], ids=["rank", "run"])
def test_what_is_written_is_read_back(tmp_path, content):
    rank_json.write(tmp_path / "x.json", content)
    assert rank_json.read(tmp_path / "x.json", type(content)) == content
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_arguments_need_not_be_utf_8(tmp_path):
    """Python has bytes of arguments and file names that are not as lone surrogates."""
    rank_json.write(tmp_path / "run.json", replace(RUN, argv=[b"--name=\xff".decode(errors="surrogateescape")]))
    assert rank_json.read(tmp_path / "run.json", RunJson).argv == ["--name=\\udcff"]


def test_an_older_file_lacks_what_had_not_been_thought_of(tmp_path):
    path = tmp_path / "rank.json"
    path.write_text(json.dumps({"format": FORMAT, "run_id": "x", "status": "complete", "rank": 0, "world_size": 2,
                                "params": None, "unheard": [1]}))
    assert rank_json.read(path, RankJson) == RankJson(run_id="x", status="complete", rank=0, world_size=2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "1"}', "\x00\x01"])
def test_a_damaged_file_is_refused(tmp_path, text):
    path = tmp_path / "rank.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"rank\.json is not as distprof wrote it"):
        rank_json.read(path, RankJson)


@pytest.mark.parametrize(("problem", "hint"), [
    (FileNotFoundError(2, "No such file or directory"), "removed"), (PermissionError(13, "Permission denied"), "user"),
    (OSError(5, "Input/output error"), None)])
def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch, problem, hint):
    def refuse(path):
        raise problem

    monkeypatch.setattr(rank_json, "read_small", refuse)
    with pytest.raises(DataError, match=f"cannot read .*run.json: {problem.strerror}") as told:
        rank_json.read(tmp_path / "run.json", RunJson)
    assert (hint in told.value.hint) if hint else not told.value.hint


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*rank\.json: No such file"):
        rank_json.read(tmp_path / "rank.json", RankJson)


def test_a_newer_format_is_refused_whatever_else_is_in_it(tmp_path):
    path = tmp_path / "rank.json"
    path.write_text(json.dumps({"format": FORMAT + 1, "rank": ["another", "shape"]}))
    with pytest.raises(FormatError, match=f"has format {FORMAT + 1}"):
        rank_json.read(path, RankJson)


@pytest.mark.parametrize(("argv", "command"), [
    ("/venv/bin/distprof run --out runs/a --nproc-per-node 4 train.py --out mine",
     "--nproc-per-node 4 train.py --out mine"),
    ("distprof run --steps=trace=3 --no-merge --tp 2 -m train --steps 9", "--tp 2 -m train --steps 9"),
    ("distprof run --module pkg.train --steps 1000", "--module pkg.train --steps 1000"),
    ("distprof run -m --out a --tee 3 -r3 pkg.train --out b.py", "--tee 3 -r3 -m pkg.train --out b.py"),
    ("distprof run --out my.py --nproc-per-node 2 train.py", "--nproc-per-node 2 train.py"),
    ("distprof run --tp 2 --no-merge train --force", "--tp 2 train --force"),
    ("distprof run --ste time=3 --nproc 2 --stand --no-pr train.py", "--nproc 2 --stand train.py"),
    ("distprof run --standalone --force -- train.py --force", "--standalone train.py --force"),
    ("distprof run --force --debug", ""),
    ("/venv/bin/distprof demo --out runs/demo --force", "distprof demo"),
    ("train.py --out mine", "train.py --out mine")])
def test_what_is_of_the_job(argv, command):
    assert " ".join(job_command(argv.split())) == command


@pytest.mark.parametrize(("argv", "command"), [
    ("distprof run --log-dir logs.py --standalone train.py --lr 1", "train.py --lr 1"),
    ("distprof run --nproc-per-node 2 --module pkg.train a.py", "--module pkg.train a.py"),
    ("/venv/bin/distprof demo --out runs/demo --force", "distprof demo"),
    ("train.py --out mine", "train.py --out mine")])
def test_the_script_without_what_starts_it(argv, command):
    assert " ".join(script_command(argv.split())) == command


def test_flags_of_torchrun_without_a_value_are_known():
    options = {name: action.nargs == 0 for action in job_parser()._actions for name in action.option_strings
               if name not in RECORDING_FLAGS}
    assert {name for name, is_switch in options.items() if is_switch} <= TORCHRUN_SWITCHES
    assert not TORCHRUN_SWITCHES & {name for name, is_switch in options.items() if not is_switch}
    known = {*RECORDING_FLAGS, *TORCHRUN_SWITCHES}
    assert not [name for name in options.keys() - known if any(one.startswith(name) for one in known)
                if name.startswith("--")], "it would be taken for an abbreviation"


def test_every_flag_of_recording_is_known():
    parser = argparse.ArgumentParser(add_help=False)
    add_recording_flags(parser)
    of_job = {f"--{axis.name}" for axis in MESH_AXES}
    flags = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings
             if name not in of_job}
    assert flags == RECORDING_FLAGS
