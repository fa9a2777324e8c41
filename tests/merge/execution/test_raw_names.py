"""Execution traces as torch's own observer writes them: what scripts name is in them as it is."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch.profiler import ExecutionTraceObserver, record_function

from distprof.merge.execution import nodes
from distprof.merge.execution.node_table import read_table
from distprof.merge.scan.trace_file import TraceFile

NAMES = ['quote"d', "back\\slash", 'C:\\', '{"a":1}', '"', '", "ctrl_deps": no', "plain", 'both\\"']


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "et.json"
    observer = ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    for name in NAMES:
        with record_function(name):
            torch.ones(2).sum()
    observer.unregister_callback()
    return path


@pytest.mark.parametrize("longest", [nodes.LONGEST_LINE, 1])
def test_names_end_nothing(recorded, monkeypatch, longest):
    monkeypatch.setattr(nodes, "LONGEST_LINE", longest)
    monkeypatch.setattr(nodes, "READ_BYTES", 1000 if longest > 1 else nodes.READ_BYTES)
    text = recorded.read_text()
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(text)
    table = read_table(TraceFile(path=recorded))
    assert len(table.id) == len(re.findall(r'"ctrl_deps": [0-9]', text))
    assert {*NAMES[:-1], 'both"'} <= set(table.names)  # an escape that JSON knows stays one
    assert (table.file.losses.damaged_events, table.file.losses.lost_bytes, table.file.num_bad) == (0, 0, 0)


def test_sound_text_is_as_it_was():
    text = json.dumps({"nodes": [{"id": 1, "name": name, "ctrl_deps": 0} for name in NAMES]}).encode()
    assert b"".join(nodes.with_strict_names([text[:40], text[40:], b"\n"])) == text + b"\n"
