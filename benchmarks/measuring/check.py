"""Runs benchmarks one after the other; prints a line per ratio at the end, and exits with 1 if any failed.

    python benchmarks/measuring/check.py overhead merge ... [--record]
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parents[1]
RATIO = "ratio"
"""First word of lines that compare a ratio."""


def main(words: list[str]) -> int:
    """Prints the output of the benchmarks, and their ratios once more at the end; returns the exit code."""
    flags, names = [word for word in words if word.startswith("-")], [word for word in words if word[0] != "-"]
    said, failed = list[str](), list[str]()
    for name in names:
        with subprocess.Popen([sys.executable, str(HERE / f"{name}.py"), *flags], stdout=subprocess.PIPE,
                              text=True) as process:
            said += _echoed(process)
        if process.returncode:
            failed.append(name)
    print("\n" + "\n".join([*said, *(f"{name}: failed, or a ratio is too high" for name in failed)]))
    return bool(failed)


def _echoed(process: subprocess.Popen[str]) -> Iterator[str]:
    """Prints the output of a benchmark; yields its lines that compare a ratio."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith(f"{RATIO} "):
            yield line.removeprefix(f"{RATIO} ").rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
