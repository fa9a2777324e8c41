"""`distprof selftest`: records jobs whose results are known, and checks that distprof finds them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from distprof.launch.options import JSON, PLACE
from distprof.needs import expect_linux, import_torch
from distprof.terminal import show


@click.command()
@click.option("--cpu", "on_cpu", is_flag=True, help="Leave GPUs out.")
@click.option("--keep", default=None, type=PLACE, metavar="DIR",
              help="Keep the recorded runs in this new or empty folder.  [default: they are removed]")
@JSON
def selftest(*, on_cpu: bool, keep: Path | None, as_json: bool) -> None:
    """Test distprof on this machine with known jobs.

    Records jobs with products, copies, sleeps, collectives and, on GPUs, kernels, streams and CUDA graphs of known
    size, and a rank that is late, and compares what distprof finds. It takes less than a minute and uses up to four
    GPUs. Exits with code 1 if a claim does not hold; attach the output of --json to a bug report.
    """
    expect_linux("record")
    import_torch("record")
    from distprof.launch.selftest.selftest import as_json as json_of
    from distprof.launch.selftest.selftest import as_text
    from distprof.launch.selftest.selftest import selftest as run_selftest

    result = run_selftest(on_cpu=on_cpu, keep=keep)
    show(json_of(result) if as_json else as_text(result))
    sys.exit(0 if result.holds else 1)
