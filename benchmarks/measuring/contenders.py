"""The merge programs that are compared, with their command lines, and the traces that they merge."""

from __future__ import annotations

import importlib.util
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measuring.processes import timed
from measuring.turns import empty

PROGRAMS = Path(__file__).parents[1] / "programs"
NUM_RANKS = 4
HTA = "HolisticTraceAnalysis==0.5.0"
TRACELENS_NEEDS = ("orjson", "pandas", "tqdm", "openpyxl", "tabulate", "PyYAML", "matplotlib")

Command = Callable[[list[Path], Path], list[str]]
"""Returns the command line from the traces by rank, in a folder with no other files, and the path to write, which does
not exist yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A program that merges, or a part of the work that every merge needs, as a limit."""

    name: str
    command: Command
    writes: str = ""
    """Name of its output, as given on its command line."""
    trace: str = ""
    """Path of the merged trace; '' if it writes none."""


def traces_of(data: Path, megabytes: float) -> list[Path]:
    """Returns the uncompressed traces of a real job in their own folder; records them if they do not exist."""
    folder = data / f"{NUM_RANKS}x{megabytes:g}MB"
    if not folder.exists():
        unfinished = folder.with_suffix(".partial")
        empty(unfinished)
        timed([sys.executable, str(PROGRAMS / "traced_job.py"), str(unfinished), f"{megabytes:g}"])
        unfinished.rename(folder)
    return [folder / f"rank{rank}_trace.json" for rank in range(NUM_RANKS)]


def ours(traces: list[Path], target: Path) -> list[str]:
    """Returns the command line of `distprof merge` for a folder."""
    return [sys.executable, "-m", "distprof", "merge", str(traces[0].parent), "--out", str(target)]


def _program(name: str) -> Command:
    return lambda traces, target: [sys.executable, str(PROGRAMS / name), str(target), *map(str, traces)]


def _shell(line: str) -> Command:
    return lambda traces, target: ["sh", "-c", line, "sh", *map(str, traces)]


def _viztracer(traces: list[Path], target: Path) -> list[str]:
    return [sys.executable, "-m", "viztracer", "--combine", *map(str, traces), "-o", str(target)]


OURS = Contender(name="distprof merge", command=ours, writes="merged", trace="merged/trace.json.gz")
SCRIPT = Contender(name="json script", command=_program("json_script.py"), writes="merged.json", trace="merged.json")
VIZTRACER = Contender(name="viztracer --combine", command=_viztracer, writes="merged.json", trace="merged.json")
LIMITS = (
    Contender(name="limit: cat", command=_shell('exec cat "$@" > /dev/null')),
    Contender(name="limit: igzip -1, all cores",
              command=lambda traces, target: [sys.executable, str(PROGRAMS / "igzip_alone.py"), *map(str, traces)]),
    Contender(name="limit: gzip -1", command=_shell('exec gzip -1 -c "$@" > /dev/null')),
)


class Peers:
    """A separate virtual environment for peers: HTA, and TraceLens from a folder with its source."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin" / "python"
        if not self.python.exists():
            venv.create(folder, with_pip=True)

    def hta(self, traces: list[Path]) -> list[str]:
        """Returns a command that prints HTA's seconds and rows; installs HTA."""
        self._install(HTA)
        return [str(self.python), str(PROGRAMS / "hta_load.py"), str(traces[0].parent)]

    def tracelens(self, source: str) -> Contender:
        """Returns TraceLens from a folder with its source, because it is not on PyPI; installs its requirements."""
        self._install(*TRACELENS_NEEDS)
        return Contender(
            name="TraceLens TraceFuse", writes="merged.json", trace="merged.json.gz",
            command=lambda traces, target: ["env", f"PYTHONPATH={source}", str(self.python),
                                            str(PROGRAMS / "tracelens_fuse.py"), str(target), *map(str, traces)])

    def _install(self, *packages: str) -> None:
        timed([str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])


def contenders(peers: Peers | None, tracelens: str) -> tuple[list[Contender], list[str]]:
    """Returns the available contenders, distprof first, and a line for each one that is not available.

    Raises:
        Failed: A peer cannot be installed.
    """
    found, absent = [OURS, SCRIPT], []
    if importlib.util.find_spec("viztracer"):
        found.append(VIZTRACER)
    else:
        absent.append("viztracer --combine: not installed")
    if peers is None:
        absent.append("HTA parse_traces: --peers installs and measures it")
    if peers is None or not tracelens:
        absent.append("TraceLens TraceFuse: not on PyPI; --peers --tracelens FOLDER measures a copy of its source")
    else:
        found.append(peers.tracelens(tracelens))
    return [*found, *LIMITS], absent
