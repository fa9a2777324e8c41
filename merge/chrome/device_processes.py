"""Processes of a trace that run kernels: those of devices, where the trace does not name them itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.scanned_columns import Text
from distprof.merge.scan.thread_ids import thread_of

KERNELS = (b"kernel", b"gpu_memcpy", b"gpu_memset")
"""Categories of what runs on a device."""
DEVICE = re.compile(rb'"device"\s*:\s*"?(\d{1,4})')


class DeviceProcesses:
    """Found while a trace is scanned.

    Args:
        scanner: Of the trace.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._categories: list[int] = []
        self._known = 0
        self._seen: set[int] = set()
        self._devices: dict[str, str] = {}
        """Raw pid -> number of the device."""

    def look(self, text: Text) -> None:
        """Through the rows of the last scan, of this text."""
        names = self._scanner.categories
        self._categories += [number for number, name in enumerate(names.texts(self._known), self._known)
                             if name in KERNELS]
        self._known = len(names)
        if not self._categories:
            return
        rows = np.flatnonzero(np.isin(self._scanner.column("category"), self._categories))
        threads, first = np.unique(self._scanner.column("thread")[rows], return_index=True)
        for thread, row in zip(threads.tolist(), rows[first].tolist(), strict=True):
            if thread not in self._seen:
                self._seen.add(thread)
                start, end = (self._scanner.arrays[name][row] for name in ("start", "end"))
                self._note(thread, bytes(text[start:end]))

    def _note(self, thread: int, event: bytes) -> None:
        pid, _ = thread_of(self._scanner.threads.texts(thread)[0])
        device = DEVICE.search(event)
        if device is not None:
            self._devices.setdefault(pid, device[1].decode())

    def labels(self, labelled: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Pid and label of each that has none, `GPU 3` as Kineto calls it.

        Args:
            labelled: Pids that the trace itself gives a label.
        """
        known = {*labelled}
        yield from ((pid, f"GPU {device}") for pid, device in self._devices.items() if pid not in known)
