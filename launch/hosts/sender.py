"""Sends the files of one host to the first host: a thread connects, looks for changes, and connects again if the
connection breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from distprof.contract import rank_json
from distprof.contract.paths import RUN_JSON
from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import REQUEST_JSON, WATCH, write_unsynced
from distprof.errors import DataError
from distprof.files import read_small
from distprof.launch.hosts.changes import Change, Changes
from distprof.launch.hosts.connection import Connection, connected
from distprof.launch.hosts.first_host import TOLD
from distprof.launch.hosts.protocol import End
from distprof.launch.hosts.received_files import take_request
from distprof.launch.hosts.wire import Announcement, Ask, Beat, Done, Hello, Put

EVERY_S = 1.0
"""Pause between two looks for changes, in seconds."""
AGAIN_S, LONGEST_S = 0.5, 10.0
"""First and longest pause before the next attempt to connect, in seconds."""
GIVEN_UP_S = 20.0
"""Without a connection for this many seconds after the end of the job, the sender gives up."""
SAID_S = 30.0
"""The user is told if no connection was possible for this many seconds."""
REFUSED_S = 5.0
"""Seconds before a refused file is sent again: a rank may have another number in the next attempt."""
BULK_BYTES_S = 16e6
"""Limit in bytes/s for files that no watch reads, while the job runs, to leave the network to the job."""
HINT = ("hint: can this host connect to that port? `--hosts PORT` sets it, `--hosts off` copies nothing; or use a "
        "shared --out")


class Sender:
    """Sends the files of this host.

    Args:
        run: The run directory.
        host, stem, boot_id: Name, file name stem and boot id of this host.
        say: Called with a line for the user.
        uploaded: Whether rank folders are uploaded elsewhere; then only files that a watch reads are copied.
    """

    def __init__(self, run: Path, *, host: str, stem: str, boot_id: str, say: Callable[[str], object],
                 uploaded: bool) -> None:
        self.state: Literal["copied", "shared", "kept"] = "kept"
        self.place = ""
        self._run, self._host, self._stem, self._say, self._uploaded = run, host, stem, say, uploaded
        self._changes = Changes(run, stem, host, boot_id)
        self._to: Announcement | None = None
        self._node = 0
        self._end: End | None = None
        self._changed = threading.Event()
        self._failed_since_s: float | None = None
        self._why = ""
        self._has_said = False
        self._asked = b""
        self._due_s: dict[str, float] = {}
        """Path of a refused file -> when it is sent again, in seconds of the monotonic clock."""
        self._thread: threading.Thread | None = None

    def meet(self, to: Announcement, node: int) -> None:
        """Sends files to this host from now on."""
        if self._to is not None and self._to.token != to.token:
            self._changes.forget()
        self._to, self._node = to, node
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="distprof sender", daemon=True)
            self._thread.start()

    def finish(self, end: End) -> None:
        """Sends the remaining files; returns when they have arrived or the sender gave up."""
        self._end = end
        self._changed.set()
        if self._thread is not None:
            self._thread.join()
        if self.state == "kept" and self._to is not None:
            self._tell_kept()

    def _work(self) -> None:
        pause_s, ended_s = AGAIN_S, None
        while True:
            assert self._to is not None
            to = self._to
            try:
                with connected(to) as connection:
                    self._talk(connection, to)
                return
            except (OSError, DataError) as error:
                self._why = str(getattr(error, "strerror", None) or error) or type(error).__name__
            now_s = time.monotonic()
            if self._failed_since_s is None:
                self._failed_since_s, pause_s = now_s, AGAIN_S
            if self._end is not None:
                ended_s = ended_s or now_s
                if now_s - ended_s > GIVEN_UP_S:
                    return
            elif now_s - self._failed_since_s > SAID_S:
                self._tell_kept()
            self._changed.wait(pause_s if self._end is None else AGAIN_S)
            self._changed.clear()
            pause_s = min(2 * pause_s, LONGEST_S)

    def _tell_kept(self) -> None:
        if not self._has_said and self._to is not None and not is_common(self._run):
            self._has_said = True
            where = f"{self._to.host} ({', '.join(self._to.addresses)}; port {self._to.port})"
            self._say(f"cannot copy files to {where}: {self._why}; they stay in {self._run}  {HINT}")

    def _talk(self, connection: Connection, to: Announcement) -> None:
        """Sends changes until the end of the job.

        Raises:
            OSError, DataError: The connection broke, or another host is now the first one.
        """
        answer = connection.ask(Hello(host=self._host, stem=self._stem, node=self._node,
                                      directory_id=directory_id_of(self._run)))
        self._failed_since_s, self._has_said = None, False
        self.place, is_shared = f"{to.host}:{answer.place}", answer.is_shared
        while self._to is to:
            end = self._end
            refused = [] if is_shared else self._send(connection, at_end=end is not None)
            if end is not None:
                connection.ask(Done(exit_code=end.exit_code, failed=end.failed))
                self.state = "shared" if is_shared else "kept" if refused else "copied"
                if refused:
                    self._why, self._has_said = refused[0], False
                return
            self._hear(connection, is_shared=is_shared)
            if self._changed.wait(EVERY_S):
                self._changed.clear()
        raise DataError("another host is now the first one")

    def _send(self, connection: Connection, *, at_end: bool) -> list[str]:
        """Sends all changes; returns the reasons for which files of ranks were refused."""
        refused, urgent_s = [], time.monotonic()
        for change in self._changes.look(at_end=at_end):
            refused += self._send_one(connection, change, at_end=at_end)
            # copying a timeline takes long, and a watch that hears nothing meanwhile would report ranks as stopped
            if change.is_bulk and not at_end and time.monotonic() - urgent_s >= EVERY_S:
                for urgent in self._changes.look(at_end=False, with_bulk=False):
                    self._send_one(connection, urgent, at_end=False)
                self._hear(connection, is_shared=False)
                urgent_s = time.monotonic()
        return refused

    def _send_one(self, connection: Connection, change: Change, *, at_end: bool) -> list[str]:
        path, now_s = change.said.path, time.monotonic()
        if (self._uploaded and change.is_bulk) or (not at_end and now_s < self._due_s.get(path, 0.0)):
            return []
        answer = connection.ask(change.said)
        if answer.size is not None:
            self._changes.differs(change, answer.size)
        elif answer.refused:
            self._due_s[path] = now_s + REFUSED_S
            return [answer.refused] if change.is_of_rank else []
        else:
            self._changes.copied(change)
        self._rest(change)
        return []

    def _rest(self, change: Change) -> None:
        """Pauses after a part of a bulk file to limit the rate, unless the job has ended."""
        if change.is_bulk and isinstance(change.said, Put) and self._end is None:
            self._changed.wait(len(change.said.content) / BULK_BYTES_S)

    def _hear(self, connection: Connection, *, is_shared: bool) -> None:
        """Forwards requests to ranks that were made on this host, and writes the watch files of the first host."""
        with suppress(OSError):
            asked = read_small(self._run / WATCH / REQUEST_JSON)
            if asked != self._asked and not is_shared:
                connection.ask(Ask(content=asked))
            self._asked = asked
        answer = connection.ask(Beat())
        if is_shared:
            return
        for name in sorted(answer.files.keys() & TOLD.keys()):
            with suppress(OSError):  # the disk may be full; files of ranks matter more
                if name != REQUEST_JSON:
                    write_unsynced(self._run, name, answer.files[name])
                elif take_request(self._run, answer.files[name]):
                    self._asked = answer.files[name]


def is_common(run: Path) -> bool:
    """Returns whether ranks of several hosts have found that they all record into this directory."""
    try:
        about = rank_json.read(run / RUN_JSON, RunJson)
    except DataError:
        return False
    return len(about.directories) == 1 and len(about.directories[0].hosts) > 1


def directory_id_of(run: Path) -> str:
    """Returns the id of a run directory; raises a DataError if run.json cannot be read."""
    return rank_json.read(run / RUN_JSON, RunJson).directory_id
