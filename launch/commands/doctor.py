"""`distprof doctor`: a check of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from distprof.launch.options import JSON
from distprof.terminal import show


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), metavar="DIR",
              show_default=True, help="Directory in which runs would be written.")
@click.option("--peak", is_flag=True,
              help="Measure FLOP/s of matrix products and bytes/s of a copy; takes a few seconds.")
@JSON
def doctor(out: Path, *, as_json: bool, peak: bool) -> None:
    """Check what this machine can record and whether it can read runs.

    Exits with code 1 if it cannot record.
    """
    from distprof.launch.doctor_checks import examine

    text, healthy = examine(out, as_json=as_json, peak=peak)
    show(text)
    sys.exit(0 if healthy else 1)
