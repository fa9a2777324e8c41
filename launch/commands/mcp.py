"""`distprof mcp`: a run as tools for coding agents."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from distprof.errors import DataError, UsageError
from distprof.launch.options import PLACE, run_directories
from distprof.launch.run_paths import checked


@click.command()
@click.argument("run", type=PLACE, shell_complete=run_directories, callback=checked)
def mcp(run: Path) -> None:
    """Serve RUN to a coding agent, as tools.

    The tools are findings, steps, comms, ops and watch_state (every step of the whole job). Speaks the Model Context
    Protocol on standard input and output; agents start this command themselves. Answers are at most 8 KB. RUN is a run
    directory, whose job may still run, or its URL. Needs pip install 'distprof[mcp]'.
    """
    if find_spec("mcp") is None:
        raise UsageError("distprof mcp needs the package mcp", hint="pip install 'distprof[mcp]'")
    from distprof.launch.limits import reuse_memory

    reuse_memory()  # before numpy is imported
    if not run.is_dir():
        raise DataError(f"{run} is not a run directory", hint="distprof run prints where it records")
    from distprof.launch.agents.server import server

    server(run).run("stdio")
