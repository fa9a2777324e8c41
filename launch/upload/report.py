"""What is said of an upload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distprof.launch.upload.run_upload import RunUploaded
from distprof.storage.remote_path import RemotePath
from distprof.terminal import quoted
from distprof.units import counted, size


def lines_of(done: RunUploaded, run: Path, url: RemotePath) -> Iterator[str]:
    """What arrived, and what comes next."""
    ranks = sum(one.part.is_rank for one in done.uploaded)
    moved = f"{size(done.num_bytes)} moved" if done.num_bytes else "everything was already there"
    yield f"{counted(ranks, 'rank')} in {url}: {moved}"
    yield f"Next: distprof {'comms' if (run / 'merged').is_dir() else 'merge'} {quoted(url)}"
