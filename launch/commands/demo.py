"""`distprof demo`: record a small job with a late rank, and find it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from distprof.launch.options import PLACE
from distprof.needs import expect_linux, import_torch


@click.command()
@click.option("--ranks", default=4, type=int, metavar="N", show_default=True, help="Number of ranks, 2 or more.")
@click.option("--out", default=None, type=PLACE, metavar="DIR",
              help="Run directory, new or empty.  [default: runs/demo-<time>]")
@click.option("--force", is_flag=True, help="Replace the run in --out.")
def demo(*, ranks: int, out: Path | None, force: bool) -> None:
    """Record a small job with a late rank, and find it.

    The job trains a small transformer on the CPUs of this machine, with one process per rank. One layer of rank 2 (rank
    1 if there are only two) sleeps in every step. The last lines show the rank and the layer, what fixing it would
    gain, and the report.
    """
    expect_linux("record")
    import_torch("record")
    from distprof.launch.demo.late_rank import run_demo

    sys.exit(run_demo(ranks, out, force=force))
