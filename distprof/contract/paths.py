"""Names of the files and folders of a run directory, and the format they have."""

from __future__ import annotations

FORMAT = 2
"""The newest run directory format this version reads and the one it writes. In format 1 the ranks of a group were a
list in each row of communication, and took most of the room in jobs of a thousand ranks."""

RUN_JSON = "run.json"
RANK_JSON = "rank.json"
TRACE_JSON = "trace.json.gz"
MEMORY_JSON = "memory.json.gz"
"""Timeline of the memory pass, with every allocation."""
ENDED_EARLY = "ended_early"
"""Key in the metadata of that timeline, where it ended before the pass: `step`, `taken_bytes` and `most_bytes`."""
EXECUTION_TIMELINE_JSON = "execution_timeline.json.gz"
"""Timeline of the execution pass."""
EXECUTION_TRACE_JSON = "execution_trace.json.gz"
"""What torch's observer wrote of the execution pass: calls, their tensors and what lies in what."""
PLAIN_EXECUTION_TRACE_JSON = "execution_trace.json"
"""The same while it is written, which stays where the rank is killed."""
TRACE_ZSTD, TRACE_PERFETTO, TRACE_TAR = "trace.json.zst", "trace.fxt.gz", "trace.tar"
"""What `merge --format` writes instead: chrome-zstd, perfetto and perfetto-tar."""
TRACES = (TRACE_JSON, TRACE_ZSTD, TRACE_PERFETTO, TRACE_TAR)
"""A merge has one of these at most."""
STEP_LINES = "steps.ndjson"
"""Steps of a rank that is still recording, a JSON object a line; becomes `steps.parquet` at the end."""
STUCK_JSON = "stuck.json"
"""State of a rank that hangs; contract/stuck.py has its type. Removed when the rank goes on."""
MERGED = "merged"
SUMMARY_JSON = "summary.json"
REPORT_HTML = "report.html"
"""The page of `distprof report`, in `merged/`, or in a run that was not merged."""
PARTIAL_SUFFIX = ".partial"
"""Ends the name of a rank folder that is being written; a rank that died leaves it so."""


def attempt_folder(attempt: int) -> str:
    """Name of the folder of an earlier attempt, which holds the folders of its ranks."""
    return f"attempt{attempt:04d}"


def rank_folder(rank: int) -> str:
    """Name of the folder that holds what a rank recorded."""
    return f"rank{rank:05d}"
