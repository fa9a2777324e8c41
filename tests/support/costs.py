"""What tests cost in processor time, and which of them `make test` leaves to CI.

`make costs` runs all tests with the plugin of this file, which measures each with the jobs that it starts, and writes
`tests/thorough.txt`: functions that cost more than `BUDGET_S`, and how many of the forms of each stay in `make test`.
Those that the planted faults need, and those that are marked `core`, stay whole.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
LEFT_TO_CI = TESTS / "thorough.txt"
BUDGET_S = 0.6
"""Processor time of all forms of a function that `make test` has for it."""
FORM_S = 1.8
"""A form that costs more does not stay, even if it is the only one that would."""
FOLDER = "TEST_COSTS"
"""A variable with the folder to which costs are written."""
TEST = "TEST_THAT_COSTS"
"""A variable with the test that runs; jobs inherit it."""


def leave_to_ci(items: Iterable[pytest.Item]) -> None:
    """Marks what `make test` leaves to CI: of each function in the list the forms behind those that stay."""
    stay = dict(left_to_ci())
    seen = Counter[str]()
    for item in items:
        name = function_of(item.nodeid)
        if name in stay and not item.get_closest_marker("stress"):
            seen[name] += 1
            if seen[name] > stay[name]:
                item.add_marker("thorough")


def left_to_ci() -> Iterator[tuple[str, int]]:
    """Functions in the list, and how many forms of each stay."""
    for line in LEFT_TO_CI.read_text().splitlines():
        number, name = line.split(" ", 1)
        yield name, int(number)


def function_of(test: str) -> str:
    return test.partition("[")[0]


class Costs:
    """A plugin that writes what each test costs. What several tests share, such as a recorded job, is nobody's."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._shared_s = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        os.environ[TEST], self._shared_s, begin = item.nodeid, 0.0, used_s()
        result = yield
        if nextitem is not None:  # otherwise the session ends too, and with it the server that forks jobs
            write(self._folder, item.nodeid, used_s() - begin - self._shared_s)
        core = item.get_closest_marker("core")
        if core is not None:
            write(self._folder, item.nodeid, None)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        test = os.environ.get(TEST)
        if fixturedef.scope == "function" or not test:
            return (yield)
        os.environ[TEST], begin = "", used_s()
        try:
            return (yield)
        finally:
            os.environ[TEST] = test
            self._shared_s += used_s() - begin


def used_s() -> float:
    """Processor time of this process and of those that it waited for."""
    return sum(one.ru_utime + one.ru_stime for one in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


def write(folder: str, test: str, seconds: float | None) -> None:
    """Adds to what a test costs; None for one that is to stay."""
    with Path(folder, f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([test, seconds]) + "\n")


def write_job(environ: Mapping[str, str], seconds: float) -> None:
    """Adds what a process cost that was forked for the test that its environment names, if any is measured."""
    if environ.get(FOLDER) and environ.get(TEST):
        write(environ[FOLDER], environ[TEST], seconds)


def needed() -> set[str]:
    """Functions that find planted faults."""
    faults = tomllib.loads((TESTS / "mutants" / "faults.toml").read_text())["fault"]
    return {function_of(test) for fault in faults for test in fault["found_by"]}


def chosen(folder: Path) -> Iterator[str]:
    """Lines of the list, by name."""
    stay = needed()
    forms: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for file in folder.glob("*.jsonl"):
        for test, seconds in map(json.loads, file.read_text().splitlines()):
            if seconds is None:
                stay.add(function_of(test))
            else:
                forms[function_of(test)][test] += seconds
    for name, costs in sorted(forms.items()):
        each, number = sum(costs.values()) / len(costs), len(costs)
        few = int(BUDGET_S / each) or int(number > 1 and each <= FORM_S) if each else number
        if few < number and name not in stay:
            yield f"{few} {name}"


if __name__ == "__main__":
    LEFT_TO_CI.write_text("".join(f"{line}\n" for line in chosen(Path(sys.argv[1]))))
