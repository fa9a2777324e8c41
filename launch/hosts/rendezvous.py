"""The first host announces its address to the others through the store of torchrun's rendezvous.

torchrun's agent calls a handler for each rendezvous, of any kind; the result has a store, the number of this node and
the address of node 0. Ranks and their collectives are not involved.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import msgspec

from distprof.launch.hosts.protocol import Meet
from distprof.launch.hosts.wire import Announcement

KEY = "distprof/hosts"
SOON_S, LATER_S = 0.1, 2.0
"""First and longest pause between two looks into the store, in seconds."""
LOOKED_FOR_S = 120.0
"""Without an announcement after this many seconds, the first host is assumed not to run distprof."""
AFTERWARDS_S, STOPPED_S = 3.0, 5.0
"""Seconds for which the announcement is awaited after the end of a short job, and for which threads are joined."""
SOMEWHERE = "192.0.2.1"
"""An address reserved for documentation (RFC 5737), used to find the outgoing address; nothing is sent there."""


class Meetings:
    """Observes every rendezvous of the job that this process launches.

    Args:
        met: Called, on any thread, with the message for the copy process. On node 0 it returns the announcement for the
            other nodes, or None.
    """

    def __init__(self, met: Callable[[Meet], Announcement | None]) -> None:
        self._met = met
        self._over, self._over_s = threading.Event(), 0.0
        self._threads: list[threading.Thread] = []

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Observes while torchrun runs."""
        try:
            from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
        except ImportError:  # another version of torch: hosts keep their files
            yield
            return
        original = registry.create_handler

        @wraps(original)
        def create_handler(*args: Any, **kwargs: Any) -> Any:
            return self._joined(original(*args, **kwargs))

        registry.create_handler = create_handler  # type: ignore[method-assign]
        try:
            yield
        finally:
            with suppress(AttributeError):
                del registry.create_handler
            self._over_s = time.monotonic()
            self._over.set()
            for thread in self._threads:  # none may still wait in torch when Python finalises
                thread.join(STOPPED_S)

    def _joined(self, handler: Any) -> Any:
        original = handler.next_rendezvous

        @wraps(original)
        def next_rendezvous() -> Any:
            found = original()
            with suppress(Exception):  # must never break the job
                thread = threading.Thread(target=self._meet, args=(found,), name="distprof meets", daemon=True)
                self._threads.append(thread)
                thread.start()
            return found

        handler.next_rendezvous = next_rendezvous
        return handler

    def _meet(self, found: Any) -> None:
        with suppress(Exception):  # the store may be gone
            store, node, num_nodes = found.store, int(found.rank), int(found.world_size)
            if num_nodes < 2:
                return
            if node == 0:
                announced = self._met(Meet(node=0, num_nodes=num_nodes, addresses=_addresses(found)))
                store.set(KEY, msgspec.json.encode(announced).decode() if announced is not None else "")
                return
            content = self._told(store)
            if content:
                to = msgspec.json.decode(content, type=Announcement)
                self._met(Meet(node=node, num_nodes=num_nodes, announcement=to))

    def _told(self, store: Any) -> bytes:
        """Returns the announcement of the first host; empty if there is none."""
        until_s, pause_s = time.monotonic() + LOOKED_FOR_S, SOON_S
        while time.monotonic() < until_s:
            if store.check([KEY]):  # getting a missing key would also block the agent
                return bytes(store.get(KEY))
            if self._over.is_set():
                until_s = min(until_s, self._over_s + AFTERWARDS_S)
                time.sleep(SOON_S)
            self._over.wait(pause_s)
            pause_s = min(1.5 * pause_s, LATER_S)
        return b""


def _addresses(found: object) -> list[str]:
    """Returns addresses at which other hosts may reach this one: first that of rank 0, then the outgoing address and
    the host name."""
    about = getattr(found, "bootstrap_store_info", None)
    names = [str(about.master_addr)] if about is not None else []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((SOMEWHERE, 9))
        names.append(str(probe.getsockname()[0]))
    names.append(socket.gethostname())  # not the full name, because looking it up in DNS may be slow
    return [name for name in dict.fromkeys(names) if name and not name.startswith("127.") and name != "localhost"] or [
        "127.0.0.1"]
