"""`distprof upload`: bring a run directory to a bucket, or finish what `run --out URL` began."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.ending import ended_by_signals
from distprof.errors import OutputError, UsageError
from distprof.launch.completion import run_directories
from distprof.launch.options import PLACE
from distprof.storage.places import remote
from distprof.terminal import show
from distprof.units import counted


@click.command()
@click.argument("run", type=click.Path(path_type=Path), shell_complete=run_directories)
@click.argument("url", type=PLACE, metavar="URL")
def upload(run: Path, url: Path) -> None:
    """Upload a run directory to URL, such as s3://bucket/runs/a.

    What is there already is not moved again. A rank is there whole or not at all, and checked by SHA-256.
    """
    target = remote(url)
    if target is None:
        raise UsageError(f"expected a URL like s3://bucket/runs/a, found {url}", hint="cp -r copies to a folder")
    from distprof.launch.upload.report import lines_of
    from distprof.launch.upload.run_upload import upload_run

    with ended_by_signals():
        done = upload_run(run, target.url)
    if done.failed:
        first = done.failed[0]
        parts = counted(len(done.failed) + len(done.uploaded), "part")
        raise OutputError(f"{len(done.failed)} of {parts} of {run} did not arrive: "
                          f"{first.part.name or run.name}: {first.why}",
                          hint=f"{first.hint or 'mend it'}; the same command goes on")
    for line in lines_of(done, run, target):
        show(line)
