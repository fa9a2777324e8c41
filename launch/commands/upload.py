"""`distprof upload`: bring a run directory to a bucket, or finish what `run --out URL` began."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.ending import ended_by_signals
from distprof.errors import OutputError, UsageError
from distprof.launch.options import PLACE, run_directories
from distprof.storage.places import remote
from distprof.terminal import show
from distprof.units import counted


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
    from distprof.launch.upload.run_upload import lines_of, upload_run

    with ended_by_signals():
        done = upload_run(run, target.url)
    if done.failed:
        first = done.failed[0]
        parts = counted(len(done.failed) + len(done.uploaded), "part")
        raise OutputError(f"{len(done.failed)} of {parts} of {run} were not uploaded: {first.part.name or run.name}: "
                          f"{first.why}",
                          hint=f"{first.hint or 'fix that'}; repeat the command to continue")
    for line in lines_of(done, run, target):
        show(line)
