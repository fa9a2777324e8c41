"""Jobs that many tests use, each recorded only once for all test workers."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp


class Recordings:
    """Folders shared by all workers of a test run; each user gets a copy, which it may merge again."""

    def __init__(self, shared: Path, own: Path) -> None:
        self.shared, self.own = shared, own

    def get(self, name: str, record: Callable[[Path], object]) -> Path:
        """Returns the path of a copy; the first worker that needs it calls `record(path)`, the others wait."""
        folder = self.shared / f"recorded-{name}"
        with (self.shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                record(folder / "run")
                (folder / "done").touch()
        own = Path(mkdtemp(dir=self.own)) / name  # a new copy for each instance of a fixture
        return Path(shutil.copytree(folder / "run", own / "run", symlinks=True))
