"""Makes the text of `distprof diff`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.errors import BeyondLimit, CannotTell, DistprofError, UsageError
from distprof.files import write_whole
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.cost.choice import Choice
from distprof.merge.difference.difference import Difference
from distprof.merge.difference.limits import Judged, judged, limit_of
from distprof.merge.difference.observed import Observed, observe
from distprof.merge.text.communication.comms_tables import comms_data
from distprof.merge.text.difference.document import TOP, Document, document, limit_line, render
from distprof.merge.text.difference.formats import difference_data, html, markdown
from distprof.merge.totals.findings import findings_of
from distprof.merge.totals.summary import communication
from distprof.reporters.page import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffView:
    """What is shown, and what is asked."""

    fail_if: Sequence[str] = ()
    """Limits like `step_time > 5 %`."""
    noise: float | None = None
    """What single runs are taken to differ by, as a part; None: the default."""
    peak: float | None = None
    """FLOP/s of each rank's device, in place of the published rate."""
    top: int = TOP
    """Rows of each table."""
    form: str = "text"
    """text, json or markdown."""
    html: Path | None = None
    """Gets the page as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is printed, and how the command ends."""

    text: str
    limits: Sequence[Judged]
    error: DistprofError | None
    """None where all is within the limits."""


def diff(base: Sequence[Path], new: Sequence[Path], view: DiffView, *, strict: bool = False) -> Answer:
    """Compares runs.

    Args:
        base: Runs of the one side.
        new: Those of the other.
        view: What is shown and asked.
        strict: Fail where something is missing in a run.

    Raises:
        DataError: A run cannot be read.
        UsageError: A limit is none, or no run has the quantity.
        OutputError: The page cannot be written.
        IncompleteError: Something is missing and `strict` is set.
    """
    for option, rate in (("--peak", view.peak), ("--noise", view.noise)):
        if rate is not None and not (math.isfinite(rate) and rate >= 0):
            raise UsageError(f"{option} must be positive, not {rate}")
    limits = [limit_of(text) for text in view.fail_if]
    for option, side in (("--base", base), ("--new", new)):
        _fail_if_repeated(option, side)
    sides = [[observe(path, peak=view.peak) for path in side] for side in (base, new)]
    found = Difference(base=sides[0], new=sides[1], given_noise=view.noise)
    fail_if_incomplete([problem for run in found.runs for problem in run.problems], strict=strict)
    answers = judged(limits, found, _communication())
    shown = document(found, answers, top=view.top)
    if view.html is not None:
        page = html(shown)
        write_whole(view.html, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return Answer(text=_printed(found, answers, shown, view), limits=answers, error=_error(answers))


def _fail_if_repeated(option: str, side: Sequence[Path]) -> None:
    """A run that is given twice would seem to show that runs do not differ by themselves."""
    known = [path.resolve() for path in side]
    for path in side:
        if known.count(path.resolve()) > 1:
            raise UsageError(f"{option} has {path} more than once")


def _printed(found: Difference, answers: Sequence[Judged], shown: Document, view: DiffView) -> str:
    if view.form == "json":
        return json.dumps(difference_data(found, answers), indent=1)
    return markdown(shown) if view.form == "markdown" else render(shown, Page())


def _error(answers: Sequence[Judged]) -> DistprofError | None:
    """What is beyond its limit comes before what one cannot tell."""
    for kind, outcomes in ((BeyondLimit, ("beyond",)), (CannotTell, ("unsure", "missing"))):
        lines = [limit_line(one) for one in answers if one.outcome in outcomes]
        if lines:
            return kind("; ".join(lines))
    return None


def _communication() -> Callable[[Observed], Mapping[str, Any]]:
    """Gives what `comms --json` prints of a run, with `communication` of `stats --json`; each is read once."""
    known: dict[Path, Mapping[str, Any]] = {}

    def of(run: Observed) -> Mapping[str, Any]:
        if run.path not in known:
            steps = run.tables.steps if run.tables is not None else None
            known[run.path] = {**comms_data(findings_of(run.path, choice=Choice())),
                               "communication": communication(run.measured, steps)[0]}
        return known[run.path]

    return of
