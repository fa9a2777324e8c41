"""Slices of a trace of another program that show what its rank was doing."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from distprof.merge.activity.rank_slices import slices_of
from distprof.merge.clock.model import RankClock
from distprof.merge.run.open_run import open_run

PYTHON = "python_function"


def test_of_calls_of_python_those_of_modules_are_read(tmp_path: Path):
    rows = [("aten::mm", "cpu_op"), ("train.py(3): step", PYTHON), ("nn.Module: Net_0", PYTHON), ("memory", "other"),
            ("<built-in method sum>", PYTHON), ("nn.Module: Linear_1", PYTHON), ("run", "user_annotation")]
    events = [{"ph": "X", "name": name, "cat": category, "pid": 1, "tid": 1, "ts": start, "dur": 1}
              for start, (name, category) in enumerate(rows * 3000)]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    run = open_run(tmp_path)
    found = slices_of(run.ranks[0], RankClock())
    assert isinstance(found, pl.DataFrame)
    assert found["name"].to_list() == ["aten::mm", "nn.Module: Net_0", "nn.Module: Linear_1", "run"] * 3000
