"""The events of a rank as a table: what each row says is what its event said, wherever scans and row groups begin."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.chrome import events_table as events
from distprof.merge.chrome.events_table import EventTable
from distprof.merge.scan.engine import ENGINE

ARGS = {"External id": "external_id", "Group size": "group_size", "Input Dims": "shapes", "dtype": "dtype"}
NUMBERS = st.integers(0, 2**40)
WORDS = st.sampled_from(["Float", "Int", "", "é", 'a"b'])
EVENTS = st.fixed_dictionaries({
    "ph": st.sampled_from("XXXiCM"), "name": WORDS, "ts": st.integers(0, 10**6),
}, optional={"dur": st.integers(0, 999), "cat": WORDS, "args": st.fixed_dictionaries(
    {}, optional={"External id": NUMBERS, "Group size": NUMBERS, "Input Dims": WORDS, "dtype": WORDS})})


def row(event: dict[str, Any]) -> dict[str, Any]:
    """What the table has to say of an event."""
    found = {"name": event["name"], "category": event.get("cat"), "phase": event["ph"], "start_ns": event["ts"] * 1000,
             "duration_ns": event["dur"] * 1000 if "dur" in event else None, "rank": 7, "process": "1",
             "thread": "2", "thread_name": None, "step": None, "sequence": None, "comms_id": None}
    return found | {column: event.get("args", {}).get(key) for key, column in ARGS.items()}


@pytest.mark.long
@given(scans=st.lists(st.lists(EVENTS, min_size=1, max_size=12), max_size=6), rows_per_group=st.integers(1, 30),
       ascii_only=st.booleans())
def test_rows_are_what_events_say(scans, rows_per_group, ascii_only, tmp_path_factory):
    path = tmp_path_factory.mktemp("events") / "rank.parquet"
    scanner = ENGINE.new_scanner(integers=EventTable.integers, texts=EventTable.texts)
    plan = SimpleNamespace(tags={"rank": 7, "mp_size": 1, "dp_size": 8}, table_metadata={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "ROWS_PER_GROUP", rows_per_group)
        table = EventTable(path, path.parent)
        table.begin(SimpleNamespace(scanner=scanner, plan=plan, counts=None, threads=[("1", "2", "")],
                                    steps=((), (), ())))
        for scan in scans:
            text = b",".join(json.dumps({**event, "pid": 1, "tid": 2}, ensure_ascii=ascii_only).encode()
                             for event in scan) + b"]"
            scanner.scan(text, 0, len(text))
            table.add(SimpleNamespace(scanner=scanner, keep=scanner.column("phase") > 0,
                                      start_ns=scanner.column("ts_ns"), duration_ns=scanner.column("dur_ns")))
        table.end()
        table.close()
    expected = [row(event) for scan in scans for event in scan if event["ph"] != "M"]
    found = pq.read_table(path)
    found.validate(full=True)
    names = list(row({"name": "", "ph": "X", "ts": 0}))
    assert found.select(names).to_pylist() == expected
    assert pl.read_parquet(path).select(names).to_dicts() == expected
