"""`distprof watch`: shows the steps of a job while it runs."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from distprof.ending import ended_by_signals
from distprof.errors import DataError, Ended, StorageError
from distprof.launch.options import JSON, run_directories
from distprof.terminal import Shown, show

if TYPE_CHECKING:
    from distprof.contract.watch_state import WatchState
    from distprof.launch.watching.watched_job import Source

EVERY_S = 1.0
NOTHING = "no step was watched yet: ranks still load or record their passes, or the job runs with --watch off"


@click.command()
@click.argument("run", metavar="RUN", shell_complete=run_directories)
@click.option("--once", is_flag=True, help="Print one screen as plain text.  [default: if stdout is not a terminal]")
@JSON
def watch(run: str, *, once: bool, as_json: bool) -> None:
    """Watch the ranks of RUN: who is late, since when, and why.

    Shows step times, who waits for others, memory, the last minute, and all findings. RUN is the run directory of a job
    that is running or over, its URL, or HOST:PORT of a launcher that was started with --metrics. Ctrl-C ends the
    display, not the job.
    """
    from distprof.launch.watching.watched_job import source_of

    source = source_of(run)
    if once or as_json or not _is_terminal():
        _once(source, as_json=as_json)
        return
    _live(source)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _once(source: Source, *, as_json: bool) -> None:
    from distprof.files import json_text
    from distprof.launch.watching.screen import plain_screen

    state = source.state()
    if state is None:
        raise DataError(f"{source.title}: {NOTHING}", hint="distprof watch RUN waits for it")
    show(json_text(state).decode().rstrip() if as_json else Shown.drawn(plain_screen(state, source.title)))


def _live(source: Source) -> None:
    """Draws the live screen until the job is over, then prints the last screen as text."""
    state = source.state()
    try:
        with ended_by_signals():
            if state is None or state.running:
                state = _drawn(source, state)
    except Ended as end:
        if end.exit_code != 130:
            raise
    if state is not None:
        _leave(state, source.title)


def _drawn(source: Source, state: WatchState | None) -> WatchState | None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from distprof.launch.watching.screen import rows_left, screen

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        missed = ""
        while True:
            columns, lines = console.size
            shown = Text(NOTHING) if state is None else screen(
                state, f"{source.title}{missed}", columns=columns, rows=rows_left(state, lines))
            live.update(shown, refresh=True)
            if state is not None and not state.running:
                return state
            time.sleep(EVERY_S)
            try:
                state, missed = source.state() or state, ""
            except (DataError, StorageError) as error:
                missed = f" ({error.args[0]})"  # the last known state stays on the screen


def _leave(state: WatchState, title: str) -> None:
    """Prints the last screen on the normal terminal, where it stays in the scrollback."""
    from distprof.launch.watching.screen import plain_screen

    show(Shown.drawn(plain_screen(state, title, columns=max(os.get_terminal_size().columns, 60))))
