"""Names that scripts give to their slices: whatever is in them, the timeline is JSON and has all other slices."""

from __future__ import annotations

import json

import pytest
import torch

from distprof.recording.kineto_trace import read_repaired


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
