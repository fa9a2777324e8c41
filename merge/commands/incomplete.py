"""`--strict`: what is missing is an error."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.contract.problems import Problem
from distprof.errors import IncompleteError


def fail_if_incomplete(problems: Sequence[Problem], *, strict: bool) -> None:
    """Raises IncompleteError where something is missing and that matters."""
    if strict and problems:
        from distprof.merge.text.problems import problem_lines

        raise IncompleteError(f"incomplete: {'; '.join(problem_lines(problems))}",
                              hint="without --strict, this exits with 0")
