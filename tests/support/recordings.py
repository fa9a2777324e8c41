"""Jobs that many tests look at, each recorded once however many workers share the tests."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp


class Recordings:
    """Folders that all workers of one test run share, and a copy for each user, which may merge it anew."""

    def __init__(self, shared: Path, own: Path) -> None:
        self.shared, self.own = shared, own

    def get(self, name: str, record: Callable[[Path], object]) -> Path:
        """Path of a copy; `record(path)` is called by the first worker that asks, the others wait."""
        folder = self.shared / f"recorded-{name}"
        with (self.shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                record(folder / "run")
                (folder / "done").touch()
        own = Path(mkdtemp(dir=self.own)) / name  # a fixture that is made again gets a new one
        return Path(shutil.copytree(folder / "run", own / "run", symlinks=True))
