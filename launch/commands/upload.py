"""`distprof upload`: uploads a run directory to a bucket, or completes the upload that `run --out URL` began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.ending import ended_by_signals
from distprof.errors import OutputError, UsageError
from distprof.launch.options import PLACE, run_directories
from distprof.storage.places import remote
from distprof.terminal import quoted, show
from distprof.units import counted, size

if TYPE_CHECKING:
    from distprof.launch.upload.run_upload import RunUploaded
    from distprof.storage.remote_path import RemotePath


@click.command()
@click.argument("run", type=click.Path(path_type=Path), shell_complete=run_directories)
@click.argument("url", type=PLACE, metavar="URL")
def upload(run: Path, url: Path) -> None:
    """Upload a run directory to URL, such as s3://bucket/runs/a.

    Files already uploaded are skipped. Each rank is either uploaded completely, verified by SHA-256, or not at all.
    """
    target = remote(url)
    if target is None:
        raise UsageError(f"{url} is not a URL like s3://bucket/runs/a", hint="use cp -r to copy to a folder")
    from distprof.launch.upload.run_upload import upload_run

    with ended_by_signals():
        done = upload_run(run, target.url)
    if done.failed:
        first = done.failed[0]
        parts = counted(len(done.failed) + len(done.uploaded), "part")
        raise OutputError(f"{len(done.failed)} of {parts} of {run} were not uploaded: {first.part.name or run.name}: "
                          f"{first.why}",
                          hint=f"{first.hint or 'fix that'}; repeat the command to continue")
    for line in _lines(done, run, target):
        show(line)


def _lines(done: RunUploaded, run: Path, url: RemotePath) -> Iterator[str]:
    """Yields lines about what was uploaded, and the next command."""
    ranks = sum(one.part.is_rank for one in done.uploaded)
    moved = f"{size(done.num_bytes)} moved" if done.num_bytes else "everything was already there"
    yield f"{counted(ranks, 'rank')} in {url}: {moved}"
    yield f"Next: distprof {'comms' if (run / 'merged').is_dir() else 'merge'} {quoted(url)}"
