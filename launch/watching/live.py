"""The body of `distprof watch`: one screen, or a live one until the job is over or the user has seen enough."""

from __future__ import annotations

import os
import sys
import time

from distprof.contract.watch_state import WatchState
from distprof.ending import ended_by_signals
from distprof.errors import DataError, Ended, StorageError
from distprof.files import json_text
from distprof.launch.watching.screen import plain_screen, rows_left, screen
from distprof.launch.watching.watched_place import Source, source_of
from distprof.terminal import Shown, show

EVERY_S = 1.0
NOTHING = "no step was watched yet: ranks still load or record their passes, or the job runs with --watch off"


def watch(text: str, *, once: bool, as_json: bool) -> None:
    """Shows the state of a job.

    Args:
        text: A run directory, its URL, or HOST:PORT of a launcher's metrics.
        once: One screen; also where standard output is no terminal.
        as_json: The state in place of a screen.

    Raises:
        DataError: There is no such run, it cannot be read, or nothing in it was watched.
        StorageError: Nobody answers there.
    """
    source = source_of(text)
    if once or as_json or not _is_terminal():
        _once(source, as_json=as_json)
        return
    _live(source)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _once(source: Source, *, as_json: bool) -> None:
    state = source.state()
    if state is None:
        raise DataError(f"{source.title}: {NOTHING}", hint="distprof watch RUN waits for it")
    show(json_text(state).decode().rstrip() if as_json else Shown.drawn(plain_screen(state, source.title)))


def _live(source: Source) -> None:
    """Draws until the job is over; then the last screen stays, as text."""
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
                missed = f" ({error.args[0]})"  # the last that was known stays


def _leave(state: WatchState, title: str) -> None:
    """The last screen, where it can be scrolled to."""
    show(Shown.drawn(plain_screen(state, title, columns=max(os.get_terminal_size().columns, 60))))
