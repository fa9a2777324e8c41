"""A plugin of pytest: the fixture `distprof_regression` fails a test where a run is slower than another one.

pytest imports this in every project that has distprof installed, so it imports nothing but pytest.
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

    The test fails with the line that `distprof diff --fail-if` prints where a change is beyond a limit, and is skipped
    where one cannot tell. Arguments of what it gives:

    * `run`: the run directory, or several of them;
    * `baseline`: likewise what it is compared with;
    * `fail_if`: limits;
    * `noise`: standard deviation between single runs of one program, as a part;
    * `unsure`: `skip`, `fail`, or `pass` where one cannot tell.

    It returns what `distprof diff` would have printed, as `text`, with `limits` and `error`; each limit is also noted
    as a property of the test, which reports of pytest show.
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
            # what record_property does, without its warning for the usual family of JUnit files
            request.node.user_properties.append(("distprof", limit_line(one)))
        if isinstance(answer.error, CannotTell) and unsure == "skip":
            pytest.skip(str(answer.error))
        if answer.error is not None and not (isinstance(answer.error, CannotTell) and unsure == "pass"):
            pytest.fail(str(answer.error), pytrace=False)
        return answer

    return compare


def _paths(runs: Runs) -> list[Path]:
    return [Path(runs)] if isinstance(runs, (str, os.PathLike)) else [Path(run) for run in runs]
