"""`merge_trace_events` on files as MegEngine 1.4, 1.5 and 1.13 wrote them, and on ours."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
import torch

from distprof.compat.megengine import Profiler, merge_trace_events
from distprof.errors import DataError, OutputError

NAME = "chrome_timeline.json"


def slices(pid: int, *names: str) -> list[dict]:
    found = []
    for number, name in enumerate(names):
        common = {"name": name, "pid": pid, "tid": 1}
        found += [{"ph": "B", "ts": 10.5 * number, **common}, {"ph": "E", "ts": 10.5 * number + 5, **common}]
    arrow = {"name": "OpDispatch", "cat": "OpDispatch", "id": 3, "pid": pid, "tid": 1, "ts": 1}
    return [*found, {"ph": "s", **arrow}, {"ph": "f", "bp": "e", **arrow}]


def with_event(start_us: float, pid: int, *names: str) -> list[dict]:
    """As 1.5 has it."""
    return [{"name": "Metadata", "ph": "I", "pid": pid, "ts": 0, "args": {"localTime": start_us}}, *slices(pid, *names)]


def with_key(start_ns: int, pid: int, *names: str) -> dict:
    """As it is since 1.6: the first event is a counter."""
    return {"traceEvents": [{"name": "gpu_usgae_ratio", "ph": "C", "pid": pid, "ts": 0, "args": {"value": 0.5}},
                            *slices(pid, *names)], "metadata": {"localTime": str(start_ns)}}


def write(folder, **files: object) -> None:
    for name, content in files.items():
        (folder / f"{name.strip('_')}.{NAME}").write_text(json.dumps(content))


def begins(path) -> dict[str, tuple[object, Decimal]]:
    return {event["name"]: (event["pid"], event["ts"])
            for event in json.loads(path.read_text(), parse_float=Decimal)["traceEvents"] if event["ph"] == "B"}


@pytest.mark.parametrize("layouts", ["events", "keys", "both"])
def test_files_are_on_one_clock(tmp_path, layouts):
    first = with_event(1_700_000_000_000_000, 7, "a", "b")
    second = with_key(1_700_000_000_000_250_500, 8, "c")
    if layouts == "events":
        second = with_event(1_700_000_000_000_250.5, 8, "c")
    if layouts == "keys":
        first = with_key(1_700_000_000_000_000_000, 7, "a", "b")
    write(tmp_path, _7=first, _8=second)
    assert merge_trace_events(str(tmp_path)) == str(tmp_path / f"merge.{NAME}")
    found = begins(tmp_path / f"merge.{NAME}")
    # nothing below a microsecond is lost
    assert found == {"a": (7, 0), "b": (7, Decimal("10.5")), "c": (8, Decimal("250.5"))}
    events = json.loads((tmp_path / f"merge.{NAME}").read_text())["traceEvents"]
    assert not [event for event in events if event["name"] == "Metadata"]


def test_processes_with_one_id_and_their_arrows_are_kept_apart(tmp_path):
    write(tmp_path, a=with_key(0, 7, "a"), b=with_key(0, 7, "b"), c=with_event(0, 7, "c"))
    out = merge_trace_events([str(tmp_path / name) for name in "abc"], str(tmp_path / "out"))
    events = json.loads((tmp_path / f"out.{NAME}").read_text())["traceEvents"]
    pids = {event["name"]: event["pid"] for event in events if event["ph"] == "B"}
    assert out == str(tmp_path / f"out.{NAME}") and pids["a"] == 7 and len(set(pids.values())) == 3
    for pid in pids.values():
        (start,), (end,) = ([event["id"] for event in events if event["ph"] == phase and event["pid"] == pid]
                            for phase in "sf")
        assert start == end
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 3
    labels = {event["pid"]: event["args"]["labels"] for event in events if event["name"] == "process_labels"}
    assert labels == {pids["b"]: f"process 7 of b.{NAME}", pids["c"]: f"process 7 of c.{NAME}"}


def test_arrays_without_a_clock_are_joined(tmp_path):
    write(tmp_path, a=slices(7, "a"), b=slices(8, "b"))
    merge_trace_events([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "out"))
    assert begins(tmp_path / f"out.{NAME}") == {"a": (7, 0), "b": (8, 0)}


def test_only_files_of_processes_are_merged(tmp_path):
    write(tmp_path, _7=with_key(0, 7, "a"), merge=with_key(0, 7, "old"), other=with_key(0, 7, "other"))
    (tmp_path / f"8.{NAME}.bak").write_text(json.dumps(with_key(0, 8, "saved")))
    assert begins(Path(merge_trace_events(str(tmp_path)))).keys() == {"a"}


@pytest.mark.parametrize("align_time", [True, False])
def test_our_own_files(tmp_path, align_time):
    for number in range(2):
        with Profiler(str(tmp_path / f"{number}"), align_time=align_time):
            torch.ones(2) + number
    merge_trace_events(str(tmp_path))
    found = [json.loads((tmp_path / f"{name}.{NAME}").read_text(), parse_float=Decimal) for name in (0, 1, "merge")]

    def times(whole: dict) -> list[int]:
        base_ns = int(whole["metadata"]["localTime"])
        return sorted(base_ns + int(event["ts"] * 1000) for event in whole["traceEvents"] if event["ph"] == "X")

    assert times(found[2]) == sorted(times(found[0]) + times(found[1]))
    assert len({event["pid"] for event in found[2]["traceEvents"] if event["ph"] == "X"}) == 2


def test_distprof_reads_what_was_merged(tmp_path):
    from distprof.compat.megengine.profile_analyze import analyze

    with Profiler(str(tmp_path / "1")):
        torch.ones(2) + 1
    assert "aten::add" in analyze([merge_trace_events(str(tmp_path)), "-t", "0"])


@pytest.mark.parametrize("text", ["", "{}", '{"traceEvents": 3}', "[1]", "{" * 10000])
def test_what_is_no_timeline(tmp_path, text):
    (tmp_path / f"7.{NAME}").write_text(text)
    with pytest.raises(DataError, match=r"7\.chrome_timeline\.json"):
        merge_trace_events(str(tmp_path))


def test_nothing_to_merge(tmp_path):
    with pytest.raises(DataError, match=r"no files like 123\.chrome_timeline\.json in"):
        merge_trace_events(str(tmp_path))
    with pytest.raises(OutputError, match="target"):
        merge_trace_events(["a"])
