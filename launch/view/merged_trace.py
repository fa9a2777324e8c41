"""Finds the merged trace of a run, reads its metadata, and estimates its uncompressed size."""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from distprof.contract.paths import MERGED, RANK_JSON, SUMMARY_JSON, TRACE_JSON, TRACE_TAR, TRACE_ZSTD, TRACES
from distprof.errors import DataError
from distprof.terminal import quoted, say

MOST_BYTES = 2_000_000_000
"""Uncompressed size in bytes above which browsers may run out of memory."""
SAMPLE_BYTES = 2_000_000
"""Number of compressed bytes from which the uncompressed size of a large trace is estimated."""
MEMBER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
"""First bytes of a gzip member that distprof writes: without name and time."""
METADATA = b'\n],"metadata":'


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTrace:
    """A merge with a trace."""

    run: Path
    """Path that the user gave."""
    folder: Path
    """Folder of the merge."""
    file: Path
    """trace.json.gz, or the file of another format."""

    @property
    def is_archive(self) -> bool:
        """Whether it is an archive of the ranks' own traces, which Perfetto reads since version 58."""
        return self.file.name == TRACE_TAR

    @property
    def is_chrome(self) -> bool:
        """Whether it is a Chrome trace, whose end has metadata about the run."""
        return self.file.name == TRACE_JSON


def merged_trace(run: Path, merge: Callable[[Path], None]) -> MergedTrace:
    """Returns the trace of a run or of a merge.

    Args:
        run: A run directory, a folder of traces, or the output of `distprof merge --out`.
        merge: Merges a run that is not merged yet into its `merged/`.

    Raises:
        DataError: `run` is not a folder, or its merge has no trace.
    """
    if not run.exists():
        raise DataError(f"no run directory or merge at {run}",
                        hint="distprof run prints the directory it writes")
    if not run.is_dir():
        raise DataError(f"{run} is a file, not a run directory or a merge", hint=_folder_of(run))
    is_merge = _is_merge(run)
    folder = run if is_merge else run / MERGED
    if not folder.exists():
        say(f"{run} is not merged yet: writing {folder}, like `distprof merge {quoted(run)}`")
        merge(run)
    elif not is_merge and _is_older(folder, run):
        say(f"{folder} is older than the recording  hint: distprof merge --force {quoted(run)}")
    for name in TRACES:
        if (folder / name).is_file():
            return MergedTrace(run=run, folder=folder, file=folder / name)
    raise DataError(f"no {TRACE_JSON} in {folder}: no rank has a timeline, or the merge is damaged",
                    hint=f"distprof merge --force {quoted(run)} tells you which of the two")


@contextmanager
def readable(trace: MergedTrace) -> Iterator[MergedTrace]:
    """Yields the trace in a form that Perfetto reads: decompresses a zstd file to a temporary one."""
    if trace.file.name != TRACE_ZSTD:
        yield trace
        return
    from distprof.merge.scan.chunk_reader import ChunkReader
    from distprof.merge.scan.trace_file import TraceFile

    with tempfile.TemporaryDirectory(prefix="distprof-view-") as folder:
        file = Path(folder) / TRACE_ZSTD.removesuffix(".zst")
        with file.open("wb") as plain:
            plain.writelines(ChunkReader(TraceFile(path=trace.file)))
        yield replace(trace, file=file)


def _is_merge(folder: Path) -> bool:
    if not (folder / SUMMARY_JSON).is_file():
        return False
    from distprof.merge.run.traces.discovery import is_recorded  # takes a while

    return not is_recorded(folder)


def _folder_of(file: Path) -> str:
    """Returns a hint on what to view instead of a file."""
    if (file.parent / SUMMARY_JSON).is_file():
        return f"distprof view {quoted(file.parent)}"
    return f"distprof merge {quoted(file)} --out merged, then distprof view merged"


def _is_older(folder: Path, run: Path) -> bool:
    """Returns whether a rank was recorded after the merge."""
    try:
        merged_ns = (folder / SUMMARY_JSON).stat().st_mtime_ns
        return any(path.stat().st_mtime_ns > merged_ns for path in run.glob(f"rank*/{RANK_JSON}"))
    except OSError:
        return False


def text_bytes(trace: Path) -> int:
    """Returns the uncompressed size of a trace in bytes; for a large one, an estimate from its beginning."""
    compressed = trace.stat().st_size
    if trace.suffix != ".gz":
        return compressed
    found = 0
    try:
        with trace.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
            while raw.tell() < SAMPLE_BYTES and (read := file.read(1 << 20)):
                found += len(read)
            share = raw.tell() / compressed if raw.tell() < compressed else 1.0
    except (OSError, EOFError, zlib.error):  # Perfetto will report what is wrong with it
        return found
    return round(found / share)


def trace_metadata(trace: Path) -> dict[str, Any]:
    """Returns the metadata that a merge wrote into its trace: `origin_ns`, `ranks` and more.

    They are the last gzip member of the file, so that nothing else has to be read.

    Raises:
        DataError: There are none.
    """
    import msgspec

    size = trace.stat().st_size
    with trace.open("rb") as file:
        for wanted in chain((1 << power for power in range(16, size.bit_length(), 3)), (size,)):
            file.seek(max(size - wanted, 0))
            if (text := _last_member(file.read())) is not None:
                found = msgspec.json.decode(text[len(METADATA):-2])
                about: dict[str, Any] = found["distprof"]
                return about
    raise DataError(f"{trace} does not end like a trace from distprof merge",
                    hint="merge again: --rank, --step and --finding need its end")


def _last_member(tail: bytes) -> bytes | None:
    """Returns the text of the last gzip member if `tail` contains all of it and it holds the metadata, else None."""
    at = tail.rfind(MEMBER)
    while at >= 0:
        try:
            text = gzip.decompress(tail[at:])
        except (OSError, EOFError, zlib.error):  # bytes that only look like a member
            at = tail.rfind(MEMBER, 0, at)
            continue
        return text if text.startswith(METADATA) else None
    return None
