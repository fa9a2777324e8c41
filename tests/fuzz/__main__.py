"""`python -m fuzz --minutes N` looks for what breaks the engine or a merge; `python -m fuzz FILE` runs it again."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from fuzz import scans


def main() -> int:
    """Returns 1 where something was found, 2 where clang is missing."""
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("file", nargs="?", type=Path, help="a crash, or the folder of one")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="where programs, corpora and crashes go")
    given = parser.parse_args()
    if given.file is not None:
        return again(given.file, given.out)
    if scans.compiler() is None:
        sys.stderr.write("expected clang, which has libFuzzer, found none  hint: apt-get install clang, or set CLANG\n")
        return 2
    return search(given.out, given.minutes * 60)


def search(out: Path, seconds: float) -> int:
    """Half of the time for the engine, half for whole merges."""
    is_broken = False
    for target, share in scans.TARGETS.items():
        found = scans.search(target, out, max(1, int(seconds / 2 * share / sum(scans.TARGETS.values()))))
        print(found, flush=True)
        is_broken |= bool(found.crashes)
    is_broken |= merges("--seconds", str(int(seconds / 2)), "--out", str(out)) != 0
    print(f"crashes are in {out / 'crashes'}" if is_broken else "nothing was found")
    return int(is_broken)


def merges(*arguments: str) -> int:
    """The target over merges, in a process of its own, which libFuzzer ends."""
    return subprocess.run([sys.executable, "-m", "fuzz.merges", *arguments], check=False).returncode


def again(file: Path, out: Path) -> int:
    """Runs what was found once more."""
    if file.is_dir():
        return merges(str(file))
    target = next((name for name in scans.TARGETS if file.name.startswith(name)), "events")
    return subprocess.run([scans.build_replay(target, out), file], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
