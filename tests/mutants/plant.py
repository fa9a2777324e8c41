"""Plants the faults of `faults.toml` one by one in a copy of the tree, and runs the tests that have to find them.

    python tests/mutants/plant.py [--only ID] [--with near|rooms] [--tests TEST ...] [--tree DIR]

It takes the tests that the list says find a fault; `--with near` those of the files that may find it, `--with rooms`
those of their folders. Before that the same tests have to pass without a fault, unless `--at-once` skips that.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("faults.toml")
ENGINE = "distprof/compiled/_compiled.so"
"""Compiled, and not in git."""
BUILD = "distprof/compiled/build.py"
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)
RAN = re.compile(r"^(tests/\S*::.*?) *(?:[A-Z]+ +\[ *\d+%\])?$", re.MULTILINE)
"""What pytest says of a test when it begins, and adds when it is over."""
SHOWN_LINES = 30
HANGS_S = 600
"""A test that takes longer has found a fault that makes it hang."""
ALL_PASSED, SOME_FAILED = 0, 1
"""Exit codes of pytest."""


class NotApplicable(Exception):
    """A fault does not fit the tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a person may get wrong in one place."""

    id: str
    room: str
    file: str
    before: str
    """Text that the file has exactly once."""
    after: str
    shows: str
    """What a user would see."""
    near: tuple[str, ...]
    """Test files that may find it."""
    found_by: tuple[str, ...] = ()
    """Tests that do."""
    found_before: bool = True
    """False where no test found it when it was planted first."""

    @property
    def rooms(self) -> list[str]:
        """Folders of the tests in `near`."""
        return sorted({os.path.dirname(file) for file in self.near})  # noqa: PTH120 (a path in pytest's spelling)

    def planted_in(self, text: str) -> str:
        """The text with the fault.

        Raises:
            NotApplicable: What it replaces is not there, or several times.
        """
        count = text.count(self.before)
        if count != 1:
            raise NotApplicable(f"{self.id}: {self.before!r} must be once in {self.file}, but is there {count} times")
        return text.replace(self.before, self.after)


def read_faults(path: Path = LIST) -> list[Fault]:
    """The list, in its order."""
    return [Fault(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})
            for row in tomllib.loads(path.read_text())["fault"]]


@contextmanager
def copy_of(tree: Path) -> Iterator[Path]:
    """The files of a work tree in a temporary folder, with the compiled engine and links as they are."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=tree,
                            check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for name in (*filter(None, listed.split("\0")), ENGINE):
            source, target = tree / name, Path(folder, name)
            if source.exists() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        yield Path(folder)


@contextmanager
def planted(fault: Fault, tree: Path) -> Iterator[None]:
    """The tree with the fault."""
    path = tree / fault.file
    text = path.read_text()
    try:
        _write(path, fault.planted_in(text), tree)
        yield
    finally:
        _write(path, text, tree)


def _write(path: Path, text: str, tree: Path) -> None:
    path.write_text(text)
    # Python tells a new text from an old one by its size and the second in which it was written
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    if path.suffix in (".c", ".h"):
        subprocess.run([sys.executable, tree / BUILD], check=True, env=_environ(tree))


def _environ(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree)}


def failing(tests: Iterable[str], tree: Path, *, first_only: bool = True) -> list[str]:
    """Tests that fail in a tree; or the one that ran when a signal ended pytest, as a signal meant for a job does.

    Raises:
        RuntimeError: pytest could not run them.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "0", "-p", "no:cacheprovider", "-o", f"timeout={HANGS_S}",
         *(["-x"] if first_only else []), *tests], cwd=tree, env=_environ(tree), capture_output=True, text=True,
        check=False)
    if done.returncode == ALL_PASSED:
        return []
    found = FAILED.findall(done.stdout) if done.returncode > 0 else RAN.findall(done.stdout)[-1:]
    if done.returncode > SOME_FAILED or not found:
        told = "\n".join(f"{done.stdout}\n{done.stderr}".splitlines()[-SHOWN_LINES:])
        raise RuntimeError(f"pytest ended with exit code {done.returncode}:\n{told}")
    return found


def chosen(faults: Sequence[Fault], only: Sequence[str] | None) -> list[Fault]:
    """Those that are asked for, or all."""
    unknown = set(only or ()) - {fault.id for fault in faults}
    if unknown:
        raise SystemExit(f"unknown ids {', '.join(sorted(unknown))}; choose from {LIST.name}")
    return [fault for fault in faults if not only or fault.id in only]


def main() -> int:
    """Returns 1 where a fault was not found, or a test fails without one."""
    parser = argparse.ArgumentParser(description="Plants faults, and runs the tests that have to find them.")
    parser.add_argument("--only", action="append", metavar="ID", help="this fault; once or several times")
    parser.add_argument("--with", dest="which", choices=("found_by", "near", "rooms"), default="found_by",
                        help="which tests of the list")
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="these tests instead")
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="DIR", help="whose files are copied")
    parser.add_argument("--at-once", action="store_true", help="do not look whether the tests pass without a fault")
    given = parser.parse_args()
    faults = chosen(read_faults(), given.only)
    tests = {fault.id: list(given.tests or getattr(fault, given.which) or fault.near) for fault in faults}
    with copy_of(given.tree) as tree:
        if not given.at_once:
            every = sorted({test for some in tests.values() for test in some})  # those of a file share what they need
            broken = failing(every, tree, first_only=False)
            if broken:
                print("fails without a fault:", *broken, sep="\n  ")
                return 1
        missed = [fault for fault in faults if not _is_found(fault, tests[fault.id], tree)]
    print(f"{len(faults) - len(missed)} of {len(faults)} faults found")
    return int(bool(missed))


def _is_found(fault: Fault, tests: Sequence[str], tree: Path) -> bool:
    began = time.monotonic()
    with planted(fault, tree):
        found = failing(tests, tree)
    print(f"{'found    ' if found else 'NOT FOUND'} {fault.id:<34} {time.monotonic() - began:5.0f} s  "
          f"{found[0] if found else ' '.join(tests)}", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
