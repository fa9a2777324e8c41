"""Creates run directories from traces of a test, and merges them."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, TRACE_JSON
from distprof.contract.rank_json import RankJson
from distprof.merge.chrome.merged_trace import MergedTrace, merge_traces
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_surveys import RankSurveys
from distprof.merge.clock.choose import recorded_clock
from distprof.merge.run.open_run import open_run
from distprof.merge.writing.merge import EVERYTHING

Trace = list[dict] | dict | str | bytes
"""Events, a whole trace, or its text."""


def text_of(trace: Trace) -> bytes:
    """Returns the decompressed content of a rank's file."""
    if isinstance(trace, list):
        trace = {"traceEvents": trace}
    if isinstance(trace, dict):
        trace = json.dumps(trace, ensure_ascii=False)
    return trace.encode() if isinstance(trace, str) else trace


def slice_of(name: str, ts: Any, dur: Any, *, pid: Any = 7, tid: Any = 7, **more: Any) -> dict:
    """Returns a complete event."""
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}


def write_run(path: Path, *traces: Trace) -> Path:
    """Writes a run directory with nothing but the timeline of each rank."""
    for rank, trace in enumerate(traces):
        folder = path / f"rank{rank:05d}"
        folder.mkdir(parents=True)
        rank_json.write(folder / RANK_JSON, RankJson(
            run_id="made", status="complete", rank=rank, world_size=len(traces), host="host7", boot_id="b",
            mp_size=1, dp_size=len(traces), files={TRACE_JSON: None}))
        (folder / TRACE_JSON).write_bytes(gzip.compress(text_of(trace), 1))
    return path


@dataclass(frozen=True)
class Merged:
    """A merged trace as a strict reader sees it."""

    path: Path
    found: MergedTrace
    whole: dict

    @property
    def events(self) -> list[dict]:
        return self.whole["traceEvents"]

    def of(self, rank: int, phases: str = "") -> list[dict]:
        """Returns the events of a rank without metadata, in file order; only those of `phases`, if given."""
        pids = {event["pid"] for event in self.events if event.get("name") == "process_name"
                and event["args"]["name"].startswith(f"rank {rank} |")}
        return [event for event in self.events
                if event["pid"] in pids and event["ph"] != "M" and (not phases or event["ph"] in phases)]


def merge(folder: Path, *traces: Trace, options: MergeOptions = EVERYTHING) -> Merged:
    """Merges traces of a test in a folder."""
    run, out = folder / "run", folder / "merged"
    for path in (run, out):
        shutil.rmtree(path, ignore_errors=True)
    write_run(run, *traces)
    out.mkdir()
    opened = open_run(run)
    with RankSurveys(opened, options) as reading:
        found = merge_traces(opened, recorded_clock(opened), reading.read().ranks, reading, out, options)
    return Merged(path=found.path, found=found, whole=strict(gzip.decompress(found.path.read_bytes())))


def files(run: Path) -> Sequence[Path]:
    """Returns the paths of the traces of ranks."""
    return sorted(run.glob(f"rank?????/{TRACE_JSON}"))


def strict(text: bytes) -> Any:
    """Parses strict JSON: UTF-8, no NaN."""
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text.decode("utf-8", "strict"), parse_constant=refuse)
