"""Fills the table of compat.md: installs versions of torch under several Pythons and runs the core tests there.

    make compat                         all environments, one after the other; downloads tens of gigabytes
    python docs/compat.py 2.8           those with a torch 2.8, or any field equal to the word
    python docs/compat.py lowest

Rows of other environments are kept. An environment takes 8 GB while it is tested, because torch from PyPI includes all
CUDA libraries. Python versions that uv cannot find are listed as not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compat.md"
FOLDER = ROOT / "runs" / "compat"
CORE = (
    # in one process: formulas, counts, models, recordings
    "tests/formulas", "tests/counting", "tests/model", "tests/contract", "tests/process", "tests/timing",
    "tests/profiling", "tests/recording/passes", "tests/recording/test_compile_log.py",
    "tests/recording/test_harmless.py", "tests/recording/steps/test_loops.py", "tests/recording/steps/test_steps.py",
    "tests/recording/communication/test_backend_times.py",
    # jobs: DDP, FSDP2, tensor parallelism, pipelines, every kind of communication; merged
    "tests/merge/totals/test_totals.py", "tests/merge/chrome/test_merged_trace.py", "tests/merge/cost",
    "tests/recording/test_jobs.py", "tests/recording/communication/test_collectives.py", "tests/launch/test_doctor.py",
)
OLD_PYTHON = "Guards may run slower on Python 3.13.0"
"""A warning of torch's compiler that is ignored, because the tests treat warnings as errors."""
LINTERS = ("ruff", "mypy", "import-linter")
HEAD = ("torch", "Python", "other packages", "passed", "failed", "skipped", "missing features, by `distprof doctor`")


class Environment(NamedTuple):
    """Versions with which the tests run."""

    torch: str
    python: str
    packages: str = "pinned"
    """`pinned` (constraints.txt) or `lowest` (the lowest versions that pyproject.toml allows)."""


ENVIRONMENTS = (
    Environment("2.8.0", "3.11", "lowest"),
    *(Environment(torch, "3.11") for torch in (
        "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")),
    Environment("2.8.0", "3.12"), Environment("2.8.0", "3.13"),
    Environment("2.15.0", "3.12"), Environment("2.15.0", "3.13"), Environment("2.15.0", "3.14"),
)


def run(environment: Environment) -> tuple[str, ...]:
    """Installs an environment, tests there and removes it; returns the cells of its row."""
    name = "-".join(environment)
    place, report = FOLDER / name, FOLDER / f"{name}.xml"
    shutil.rmtree(place, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if uv("venv", "--no-python-downloads", "--python", environment.python, place, check=False) != 0:
        return (*environment, "not run", "", "", f"there was no Python {environment.python}")
    try:
        install(environment, place)
        report.unlink(missing_ok=True)
        python = place / "bin" / "python"
        command = (python, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-q", f"--junit-xml={report}",
                   "-W", f"ignore:{OLD_PYTHON}:RuntimeWarning", "-m", "not stress", *CORE)
        subprocess.run(command, cwd=ROOT, check=False, env=environ())
        return (*environment, *map(str, results(report)), "; ".join(lacking(python)) or "nothing")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def install(environment: Environment, place: Path) -> None:
    """Installs torch and the requirements of distprof and its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"]
    tools = [name for name in project["optional-dependencies"]["test"] if not name.startswith(LINTERS)]
    if environment.packages == "lowest":
        needed = [name.replace(">=", "==") for name in needed]
    pins = FOLDER / f"{place.name}.constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines() if environment.packages == "pinned" else ()
    # some versions of torch need an older setuptools
    pins.write_text("\n".join(line for line in lines if not line.startswith(("torch==", "setuptools=="))))
    uv("pip", "install", "--python", place, "--constraint", pins, f"torch=={environment.torch}", *needed, *tools)


def uv(*arguments: object, check: bool = True) -> int:
    """Runs uv and returns its exit code."""
    command = [sys.executable, "-m", "uv", "--quiet", *map(str, arguments)]
    # the shims of pyenv show one version only
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob("*/bin")
    path = os.pathsep.join([*map(str, versions), os.environ["PATH"]])
    return subprocess.run(command, cwd=ROOT, check=check, env=os.environ | {"PATH": path}).returncode


def environ() -> dict[str, str]:
    """Returns the environment variables of the tests."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def results(report: Path) -> tuple[int, int, int]:
    """Returns the numbers of tests that passed, failed and were skipped."""
    suite = ElementTree.parse(report).getroot()[0]
    total, failures, errors, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
    return total - failures - errors - skipped, failures + errors, skipped


def lacking(python: Path) -> list[str]:
    """Returns what this torch lacks according to `distprof doctor`."""
    done = subprocess.run([python, "-m", "distprof", "doctor", "--json"], cwd=ROOT, capture_output=True, text=True,
                          check=False, env=environ())
    return [one["text"] for one in json.loads(done.stdout)["findings"] if one["topic"] == "lacks"]


def with_rows(page: str, found: Sequence[tuple[str, ...]]) -> str:
    """Returns the page with these rows in its sorted table; rows of other environments are kept."""
    begin, end = "<!-- environments -->\n", "<!-- /environments -->"
    before, rest = page.split(begin)
    table, after = rest.split(end)
    rows = {cells[:3]: cells for cells in map(cells_of, table.splitlines()[2:])} | {row[:3]: row for row in found}
    lines = [HEAD, ("---",) * len(HEAD), *(rows[key] for key in sorted(rows, key=numbers))]
    return before + begin + "".join(f"| {' | '.join(line)} |\n" for line in lines) + end + after


def cells_of(line: str) -> tuple[str, ...]:
    """Returns the cells of a line of the table."""
    return tuple(cell.strip() for cell in line.strip("|").split("|"))


def numbers(key: tuple[str, ...]) -> tuple[list[list[int]], str]:
    """Returns the sort key of rows: versions, with the lowest packages first."""
    return [[int(part) for part in re.findall(r"\d+", version)] for version in key[:2]], key[2]


def main(words: Sequence[str]) -> int:
    """Runs the selected environments; writes the page after each of them."""
    asked = [one for one in ENVIRONMENTS
             if not words or any(word in one or one.torch.startswith(f"{word}.") for word in words)]
    failed = 0
    for environment in asked:
        row = run(environment)
        failed += row[4] not in ("0", "")
        PAGE.write_text(with_rows(PAGE.read_text(), [row]))
    return 1 if failed or not asked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
