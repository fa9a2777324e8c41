"""The process beside a job that sends files to the first host, or receives them there. It never imports torch.

The first line of its standard input is a `HostsOrder` (`protocol.py`). Standard input closes when the launcher ends.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from distprof.contract.rank_json import RankJson
from distprof.errors import DistprofError
from distprof.launch.hosts.first_host import FirstHost, OtherHost
from distprof.launch.hosts.protocol import End, FromHosts, Gathered, HostsOrder, Meet, ToHosts
from distprof.launch.hosts.sender import Sender, directory_id_of, is_common
from distprof.launch.hosts.wire import PROTOCOL, Announcement, server_context
from distprof.process.identity import boot_id
from distprof.summaries.host_file import file_stem

QUIET_S, LONGEST_S = 20.0, 300.0
"""After the end of the job, how many seconds the first host waits for another host that sends no files, and for any
host."""
GONE_S = 3.0
"""Seconds to wait for a host that had been disconnected for more than `QUIET_S`."""
LOOK_S = 0.1
EVERYWHERE = ("", "0.0.0.0", "::")
"""Addresses that stand for all addresses of this host; no other host can connect to them."""
LOW_PRIORITY = 10


def main() -> None:
    """Executes the orders on standard input until it closes or the job has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(LOW_PRIORITY)
    with open(0, "rb", closefd=False) as orders:
        process = CopyProcess(msgspec.json.decode(orders.readline(), type=HostsOrder))
        for line in orders:
            order = msgspec.json.decode(line, type=ToHosts)
            if order.meet is not None:
                process.meet(order.meet)
            elif order.end is not None:
                tell(FromHosts(gathered=process.finish(order.end)))
                break
    os._exit(0)  # threads may still wait for other hosts


def tell(message: FromHosts) -> None:
    """Sends the launcher a line; does nothing if the launcher is gone."""
    content = memoryview(msgspec.json.encode(message) + b"\n")
    with _TELLING, suppress(OSError):
        while content:
            content = content[os.write(1, content):]


_TELLING = threading.Lock()


class CopyProcess:
    """The process of one host; a restart of the job may change whether it is the first host."""

    def __init__(self, order: HostsOrder) -> None:
        """Starts nothing; `meet` does."""
        self._order, self._run = order, Path(order.directory)
        self._host, self._boot_id = socket.gethostname(), boot_id()
        self._first: FirstHost | None = None
        self._announced: Announcement | None = None
        self._sender: Sender | None = None
        self._met: Meet | None = None

    def meet(self, meet: Meet) -> None:
        """Starts to receive the files of other hosts, or to send files to the first host, after a rendezvous."""
        self._met = meet
        if meet.announcement is not None:
            self._send_to(meet.announcement, meet.node)
            return
        if self._first is None:
            self._serve()
        if self._announced is not None:
            addresses = list(dict.fromkeys((*self._announced.addresses, *meet.addresses)))
            tell(FromHosts(serving=msgspec.structs.replace(self._announced, addresses=addresses)))

    def finish(self, end: End) -> Gathered:
        """Waits until all files are copied, or no more are expected."""
        is_first = self._met is not None and self._met.announcement is None
        if is_first and self._first is not None and self._met is not None:
            if not self._first.hosts and is_common(self._run):  # no host connected, and none has to
                return Gathered(role="shared")
            gathered = _gathered(self._first, self._met.num_nodes)  # receives more
            return msgspec.structs.replace(gathered, places=self._first.places if self._order.uploaded else [])
        if self._sender is None:
            return Gathered(role="kept")
        self._sender.finish(end)
        return Gathered(role=self._sender.state, place=self._sender.place)

    def _serve(self) -> None:
        host, port = self._order.listen
        try:
            context, shown = self._certificate()
            first = FirstHost(self._run, directory_id_of(self._run), context)
            port = first.listen(host, port)
        except (OSError, DistprofError) as error:
            why = getattr(error, "strerror", None) or error
            tell(FromHosts(say=f"cannot receive files from other hosts on port {port}: {why}; each host keeps its own"))
            return
        self._first = first
        self._announced = Announcement(protocol=PROTOCOL, addresses=[] if host in EVERYWHERE else [host], port=port,
                                       token=first.token, certificate=shown, host=self._host)

    def _certificate(self) -> tuple[ssl.SSLContext | None, str]:
        if self._order.certificate is None:
            return None, ""
        return server_context(Path(self._order.certificate),
                              Path(self._order.key) if self._order.key is not None else None)

    def _send_to(self, to: Announcement, node: int) -> None:
        if to.protocol != PROTOCOL or (self._order.certificate is not None and not to.certificate):
            has = "another version of distprof" if to.protocol != PROTOCOL else "no certificate (see --hosts-cert)"
            tell(FromHosts(say=f"{to.host} has {has}: the files of this host stay in {self._run}"))
            return
        if self._sender is None:
            stem = file_stem(RankJson(run_id="", status="recording", rank=0, world_size=1, host=self._host,
                                      boot_id=self._boot_id))
            self._sender = Sender(self._run, host=self._host, stem=stem, boot_id=self._boot_id,
                                      say=lambda line: tell(FromHosts(say=line)), uploaded=self._order.uploaded)
        self._sender.meet(to, node)


def _gathered(first: FirstHost, num_nodes: int) -> Gathered:
    """Waits for the other hosts; those that never connected or sent no end are missing."""
    began_s = time.monotonic()
    others = range(1, num_nodes)
    while any(_is_waited_for(first.hosts.get(node), began_s) for node in others):
        time.sleep(LOOK_S)
    known = {node: first.hosts.get(node) for node in others}
    done = [one for one in known.values() if one is not None and one.done is not None]
    missing = [one.host if one is not None else f"node {node}" for node, one in known.items() if one not in done]
    ends = [End(exit_code=one.done.exit_code, failed=one.done.failed) for one in done if one.done is not None]
    is_shared = bool(done) and all(one.is_shared for one in done) and not missing
    return Gathered(role="shared" if is_shared else "first", missing=missing, ends=ends,
                    num_copied=sum(not one.is_shared for one in done))


def _is_waited_for(one: OtherHost | None, began_s: float) -> bool:
    """Returns whether to keep waiting for a host after the end of the job."""
    now_s = time.monotonic()
    if now_s - began_s > LONGEST_S or (one is not None and one.done is not None):
        return False
    if one is not None and not one.connected and now_s - one.seen_s > QUIET_S:
        return now_s - began_s < GONE_S  # it was gone before
    return now_s - max(began_s, one.received_s if one is not None else 0.0) < QUIET_S
