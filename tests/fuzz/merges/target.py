"""The fuzz target over whole merges: bytes become a folder, which is merged and judged."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from fuzz.merges.chance import Chance
from fuzz.merges.crashes import judge, keep
from fuzz.merges.files import write_folder
from fuzz.merges.run_folders import write_run

MEMORY = Path("/dev/shm")
"""Where files cost no disk."""


class Target:
    """Counts what it is given, and keeps what breaks."""

    def __init__(self, crashes: Path) -> None:
        self.count = 0
        self.kinds: dict[str, int] = {}
        """What broke -> how often."""
        self._crashes = crashes
        self._work = Path(tempfile.mkdtemp(prefix="distprof-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))

    def __call__(self, given: bytes) -> None:
        """Merges the folder that the bytes stand for."""
        chance, folder = Chance(given), self._work / "traces"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        chance.choice([write_folder, write_folder, write_folder, write_run])(folder, chance)
        self.count += 1
        broken = judge(folder, more=chance.one_in(4), engines=chance.one_in(2))
        if broken is None:
            return
        self.kinds[broken.kind] = self.kinds.get(broken.kind, 0) + 1
        kept = keep(folder, broken, self._crashes)
        if kept is not None:
            sys.stderr.write(f"found: {kept / 'why.txt'}\n")

    def report(self) -> None:
        """A line to stderr, and what broke."""
        sys.stderr.write(f"merges: {self.count} merged\n")
        for kind, count in sorted(self.kinds.items(), key=lambda item: -item[1]):
            sys.stderr.write(f"  {count} times: {kind}\n")

    def close(self) -> None:
        """Removes what it wrote, crashes apart."""
        shutil.rmtree(self._work, ignore_errors=True)


def run_randomly(target: Target, seconds: float, seed: bytes) -> None:
    """Without coverage: bytes at random."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        target(seed + count.to_bytes(8, "little"))
        count += 1


def random_seed() -> bytes:
    """Another one each time."""
    return os.urandom(8)
