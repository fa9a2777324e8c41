"""Names of the files and folders of a run directory, and its format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FORMAT = 2
"""The newest run directory format that this version reads and the one that it writes. In format 1, each row of
communication had the ranks of its group as a list, which took most of the space in jobs of a thousand ranks."""

RUN_JSON = "run.json"
RANK_JSON = "rank.json"
TRACE_JSON = "trace.json.gz"
MEMORY_JSON = "memory.json.gz"
"""Timeline of the memory pass, with every allocation."""
ENDED_EARLY = "ended_early"
"""Key in the metadata of the memory timeline, if it ended before the pass: `step`, `taken_bytes` and `most_bytes`."""
EXECUTION_TIMELINE_JSON = "execution_timeline.json.gz"
"""Timeline of the execution pass."""
EXECUTION_TRACE_JSON = "execution_trace.json.gz"
"""Output of torch's execution trace observer in the execution pass: calls, their tensors and their nesting."""
PLAIN_EXECUTION_TRACE_JSON = "execution_trace.json"
"""The same while it is being written; remains if the rank is killed."""
TRACE_ZSTD, TRACE_PERFETTO, TRACE_TAR = "trace.json.zst", "trace.fxt.gz", "trace.tar"
"""Written instead by `merge --format` chrome-zstd, perfetto and perfetto-tar."""
TRACES = (TRACE_JSON, TRACE_ZSTD, TRACE_PERFETTO, TRACE_TAR)
"""A merge has at most one of these."""
STEP_LINES = "steps.ndjson"
"""Steps of a rank that is still recording, one JSON object per line; becomes `steps.parquet` at the end."""
STUCK_JSON = "stuck.json"
"""State of a rank that hangs; contract/stuck.py has its type. Removed if the rank continues."""
MERGED = "merged"
SUMMARY_JSON = "summary.json"
REPORT_HTML = "report.html"
"""The page of `distprof report`; in `merged/`, or in the run directory if the run was not merged."""
PARTIAL_SUFFIX = ".partial"
"""Suffix of a rank folder that is being written; remains if the rank dies."""


def attempt_folder(attempt: int) -> str:
    """Returns the name of the folder of an earlier attempt, which contains the folders of its ranks."""
    return f"attempt{attempt:04d}"


RANK_FOLDER = re.compile(rf"rank(\d{{5,}})({re.escape(PARTIAL_SUFFIX)})?")
"""Matches the name of a rank's folder; six digits from rank 100,000 on."""


def rank_folder(rank: int) -> str:
    """Returns the name of the folder of what a rank recorded."""
    return f"rank{rank:05d}"


def rank_files(run: Path, file: str, suffix: str = "") -> Iterator[Path]:
    """Yields the file with a name in each rank folder of the last attempt.

    Args:
        run: The run directory.
        file: Name of the file.
        suffix: `PARTIAL_SUFFIX` for folders that are being written, '' for complete ones.
    """
    return (path for path in run.glob(f"rank*{suffix}/{file}")
            if (fits := RANK_FOLDER.fullmatch(path.parent.name)) is not None and (fits[2] or "") == suffix)
