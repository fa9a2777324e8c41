"""Names that scripts give to their slices: whatever is in them, the timeline is JSON and has all other slices."""

from __future__ import annotations

import gzip
import io
import json

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from distprof.recording.tracing.kineto_trace import read_repaired
from distprof.recording.tracing.slice_names import LONGEST, copy_with_real_names, real_names, recorded_name
from support.jobs import called
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


def layers() -> nn.Sequential:
    model = nn.Sequential()
    for name in ODD:
        model.add_module(name, nn.Linear(4, 4))
    return model


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
