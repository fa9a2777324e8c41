"""Names that scripts give to their slices: whatever is in them, the timeline is JSON and has all other slices."""

from __future__ import annotations

import gzip
import io
import json
import re

import msgspec
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from distprof.recording.tracing.kineto_trace import read_repaired
from distprof.recording.tracing.slice_names import LONGEST, copy_with_real_names, real_names, recorded_name, strict
from support.jobs import SCRIPTS, called, record_run
from support.perfetto import ask
from support.recording import train

ODD = ("caf\u00e9", "\u5c64", "a\tb", 'q"q', "back\\slash", "line\nbreak", "\u202eevil", "\x1b[31m", "~distprof~41~",
       "plain")
"""Names of modules."""


@pytest.mark.parametrize("name", ['load "part 1"', '"', 'a", "pid": 1, "b', "plain", "it's"])
def test_quotation_marks_do_not_cost_the_timeline(tmp_path, name):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for each in (name, "after"):
            with torch.profiler.record_function(each):
                torch.ones(2) + 1
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    text, found = read_repaired((tmp_path / "trace.json").read_bytes())
    json.loads(text)
    names = [row["name"] for row in found.rows]
    assert name in names and "after" in names and names.count("aten::add") == 2


TEXTS = st.text(st.sampled_from('ab ,:"[]{}0-\\'), max_size=12)
GOES_ON = re.compile(r'"\s*[,:}\]]')


def kineto(names: list[str], groups: list[str]) -> bytes:
    """Text as Kineto lays it out, with names and descriptions as they are."""
    config = ", ".join(f'{{"pg_name": "0", "pg_desc": "{group}", "pg_size": 2, "ranks": [0, 1]}}' for group in groups)
    events = ",\n  ".join(f"""{{
    "ph": "X", "cat": "cpu_op",
    "name": "{name}",
    "pid": 7, "tid": 7,
    "ts": 4796835230152.878, "dur": 5.5,
    "args": {{
      "External id": 1,"Process Group Description": "{groups[0]}", "Group size": 2, "Input type": ["x", "{groups[-1]}"]
    }}
  }}""" for name in names)
    return f'''{{
  "schemaVersion": 1,
    "distributedInfo": {{"backend": "gloo", "rank": 0, "pg_config": [{config}]}},
  "traceEvents": [
  {events}
  ],"traceName": "x" }}
'''.encode()


@given(st.lists(TEXTS, min_size=1, max_size=3), st.lists(TEXTS, min_size=1, max_size=3))
def test_quotation_marks_anywhere_are_told_from_ends_of_strings(names, groups):
    # the profiler makes slashes of backslashes
    names, groups = ([one.replace("\\", "/") for one in some] for some in (names, groups))
    text = strict(kineto(names, groups))
    if any(GOES_ON.search(f'{group}"') or group.endswith('"') for group in groups):
        return  # nobody could tell
    found = json.loads(text)
    assert [event["name"] for event in found["traceEvents"]] == names
    assert [group["pg_desc"] for group in found["distributedInfo"]["pg_config"]] == groups
    for event in found["traceEvents"]:
        assert event["args"]["Process Group Description"] == groups[0]
        assert event["args"]["Input type"] == ["x", groups[-1]] and event["args"]["Group size"] == 2


@given(st.lists(st.text(), min_size=1), st.lists(st.text(), min_size=1))
def test_what_is_json_already_stays_as_it_is(names, groups):
    text = kineto([json.dumps(one)[1:-1] for one in names], [json.dumps(one)[1:-1] for one in groups])
    assert strict(text) == text and [event["name"] for event in json.loads(text)["traceEvents"]] == names


def layers() -> nn.Sequential:
    model = nn.Sequential()
    for name in ODD:
        model.add_module(name, nn.Linear(4, 4))
    return model


@pytest.mark.long
def test_modules_of_any_name_are_seen_under_it(tmp_path):
    recorded = train(tmp_path / "run", layers(), lambda: torch.randn(2, 4), steps="wait=1,count=1,trace=2,memory=1",
                     num_steps=8)
    slices = set(recorded.table("events").filter(pl.col("category") == "user_annotation")["name"])
    assert {f"{name} [Linear]" for name in ODD} <= slices and "unknown" not in slices
    for file in ("trace.json.gz", "memory.json.gz"):
        text = gzip.decompress((recorded.folder / file).read_bytes())
        assert {f"{name} [Linear]" for name in ODD} <= {event.get("name") for event in json.loads(text)["traceEvents"]}

    assert called("merge", tmp_path / "run").returncode == 0
    merged = ask(tmp_path / "run" / "merged" / "trace.json.gz", "select name from slice")
    shown = {row["name"] for row in merged.results[0]}
    assert {"caf\u00e9 [Linear]", "\u5c64 [Linear]", "a\\tb [Linear]", "\\u202eevil [Linear]"} <= shown
    rows = json.loads(called("ops", "--by", "module", "--json", tmp_path / "run").stdout)["ops"]
    flops = {row["module"]: row["flops"] for row in rows if row["module"] in ODD}
    # no gradient of the input
    assert set(flops) == set(ODD) and {flops.pop(ODD[0])} == {256} and set(flops.values()) == {384}
    shown = called("ops", "--by", "module", tmp_path / "run").stdout
    assert "caf\u00e9" in shown and "a\\tb" in shown and "line\\nbreak" in shown and "\x1b" not in shown
    memory = json.loads(called("memory", "--by", "module", "--json", tmp_path / "run").stdout)
    assert {row["module"] for row in memory["groups"]} >= {"caf\u00e9", "plain"}


@pytest.mark.job
def test_quotation_marks_in_names_of_groups_modules_and_slices_cost_nothing(tmp_path):
    record_run(tmp_path / "run", 2, SCRIPTS / "quoted_names.py",
               flags=("--steps", "execution=1,trace=3,memory=1,arrivals=0"))
    done = called("merge", "--strict", tmp_path / "run")
    assert done.returncode == 0 and "2 of 2 ranks" in done.stdout, done.stdout
    for rank in range(2):
        folder = tmp_path / "run" / f"rank0000{rank}"
        for file in folder.glob("*.json.gz"):
            json.loads(gzip.decompress(file.read_bytes()))
        names = set(pl.read_parquet(folder / "events.parquet")["name"])
        assert {'in "1" [Linear]', 'load "part 1", quickly'} <= {name.removeprefix("module.") for name in names}
        assert 'data "parallel"' in set(pl.read_parquet(folder / "collectives.parquet")["group_description"])


@pytest.mark.long
def test_a_timeline_that_cannot_be_read_is_said_to_be_that_and_kept(tmp_path, monkeypatch):
    def fails(text: bytes) -> None:
        raise msgspec.DecodeError("JSON is malformed: odd (byte 7)")

    monkeypatch.setattr("distprof.recording.tracing.timeline_files.read_repaired", fails)
    recorded = train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.randn(2, 4), steps="count=1,trace=2", num_steps=8)
    assert recorded.info["status"] == "complete" and (recorded.folder / "trace.json.gz").exists()
    said = called("merge", tmp_path / "run").stdout
    assert "cannot read the timeline that torch.profiler wrote (JSON is malformed: odd (byte 7))" in said
    assert "disk" not in said


@given(st.text())
def test_any_name_comes_back(name):
    taken = recorded_name(name)
    assert taken.isascii() and taken.isprintable() and '"' not in taken and "\\" not in taken
    assert json.loads(real_names(f'{{"name": "{taken}"}}'.encode()))["name"] == name


@pytest.mark.parametrize("before", [0, 1, (1 << 20) - 20, (1 << 20) - LONGEST - 10])
def test_names_on_the_border_of_blocks_come_back(before):
    name = recorded_name("caf\u00e9" * 9).encode()
    text = b" " * before + b'{"name": "' + name + b'",\n"more": "' + b"x" * 3000 + b'"}'
    copied = io.BytesIO()
    copy_with_real_names(io.BytesIO(text), copied)
    assert json.loads(copied.getvalue())["name"] == "caf\u00e9" * 9
