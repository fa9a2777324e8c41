"""A pytest plugin: the fixture `distprof_regression` fails a test if a run is slower than another one.

pytest imports this in every environment in which distprof is installed, so it imports only pytest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from distprof.merge.text.difference.answer import Answer

PathLike = str | os.PathLike[str]
Runs = PathLike | Sequence[PathLike]
Regression = Callable[..., "Answer"]


@pytest.fixture
def distprof_regression(request: pytest.FixtureRequest) -> Regression:
    """Compares a run with a baseline: `distprof_regression(run, baseline=..., fail_if=["step_time > 5 %"])`.

    If a change exceeds a limit, the test fails with the line that `distprof diff --fail-if` prints; if the data cannot
    show that, it is skipped. Arguments:

    * `run`: the run directory, or several of them;
    * `baseline`: the run directory or directories to compare with;
    * `fail_if`: limits, as for `distprof diff --fail-if`;
    * `noise`: standard deviation between single runs of the same program, as a fraction;
    * `unsure`: `skip`, `fail` or `pass`, if the data cannot show whether a limit is exceeded.

    Returns an object with the output of `distprof diff` as `text`, with `limits` and `error`; each limit is also added
    to the test's properties, which pytest's reports show.
    """
    def compare(run: Runs, *, baseline: Runs, fail_if: Sequence[str] = ("step_time > 5 %",), noise: float | None = None,
                unsure: str = "skip") -> Answer:
        __tracebackhide__ = True
        from distprof.errors import CannotTell
        from distprof.launch.commands.diff import compared
        from distprof.merge.text.difference.answer import limit_line

        if unsure not in ("skip", "fail", "pass"):
            raise ValueError(f"unsure must be skip, fail or pass, not {unsure!r}")
        answer = compared(_paths(baseline), _paths(run), fail_if=fail_if, noise=noise)
        for one in answer.limits:
            # as record_property, without its warning for pytest's default family of JUnit files
            request.node.user_properties.append(("distprof", limit_line(one)))
        if isinstance(answer.error, CannotTell) and unsure == "skip":
            pytest.skip(str(answer.error))
        if answer.error is not None and not (isinstance(answer.error, CannotTell) and unsure == "pass"):
            pytest.fail(str(answer.error), pytrace=False)
        return answer

    return compare


def _paths(runs: Runs) -> list[Path]:
    return [Path(runs)] if isinstance(runs, (str, os.PathLike)) else [Path(run) for run in runs]
