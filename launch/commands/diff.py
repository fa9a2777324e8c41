"""`distprof diff`: what changed between two runs, by how much, and which changes are noise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof.errors import DataError, UsageError
from distprof.files import write_whole
from distprof.launch.options import JSON, PLACE, STRICT, check_rates, run_directories
from distprof.launch.run_paths import checked
from distprof.terminal import show

if TYPE_CHECKING:
    from distprof.merge.difference.difference import Difference
    from distprof.merge.difference.limits import Judged
    from distprof.merge.difference.observed import Observed
    from distprof.merge.text.difference.answer import Answer
    from distprof.merge.text.difference.document import Document

SEVERAL = ("--base", "--new")


class SeveralValues(click.Command):
    """A command that accepts several values after one `--base` or `--new`: it repeats the option before each value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        repeated, option = list[str](), None
        for place, word in enumerate(args):
            if word.startswith("-"):
                option = word if word in SEVERAL else None
            elif option is not None and args[place - 1] != option:
                repeated.append(option)
            repeated.append(word)
        return super().parse_args(ctx, repeated)


@click.command(cls=SeveralValues)
@click.argument("runs", nargs=-1, metavar="[A B]", type=PLACE, shell_complete=run_directories, callback=checked)
@click.option("--base", multiple=True, metavar="RUN...", type=PLACE, shell_complete=run_directories, callback=checked,
              help="Several runs instead of A. The noise is then measured from how much they differ.")
@click.option("--new", multiple=True, metavar="RUN...", type=PLACE, shell_complete=run_directories, callback=checked,
              help="Several runs instead of B.")
@click.option("--fail-if", multiple=True, metavar="LIMIT",
              help="Exit with 1 if a change exceeds a limit like 'step_time > 5 %', or with 3 if that cannot be "
                   "decided. Can be repeated. Other quantities: cpu_time, a part of the step (data, forward, "
                   "backward, optimizer, exposed, other), memory, params, flops, mfu, samples_per_second, "
                   "modules.PATH, or a path into the output of stats --json or comms --json.")
@click.option("--noise", default=None, metavar="PERCENT",
              help="Standard deviation to assume between single runs of the same program.  [default: 1, or 5 for jobs "
                   "that compute on CPUs]")
@click.option("--peak", default=None, type=float, metavar="FLOP/S",
              help="Peak rate of each rank's device, for MFU.  [default: the published rate]")
@click.option("--top", default=10, type=click.IntRange(min=1), metavar="N", show_default=True,
              help="Rows of each table.")
@click.option("--html", default=None, metavar="FILE", type=PLACE,
              help="Also write a self-contained HTML page.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a pull request.")
@JSON
@STRICT
def diff(runs: tuple[Path, ...], *, base: tuple[Path, ...], new: tuple[Path, ...], fail_if: tuple[str, ...],
         noise: str | None, peak: float | None, top: int, html: Path | None, markdown: bool, as_json: bool,
         strict: bool) -> None:
    """Show what changed between runs, and how much of it is noise.

    Compares step time and its parts, modules, operators, collectives, memory, counts, topology and versions. A and B
    are run directories or traces from torch.profiler.

    \b
    distprof diff runs/a runs/b
    distprof diff --base runs/a1 runs/a2 runs/a3 --new runs/b1 runs/b2
    distprof diff --fail-if 'step_time > 5 %' --fail-if 'memory > 100 MB' runs/a runs/b
    """
    sides = _sides(runs, base, new)
    if markdown and as_json:
        raise UsageError("--markdown and --json cannot be combined")
    ratio = _ratio(noise)
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    try:
        answer = compared(*sides, fail_if=fail_if, noise=ratio, peak=peak, top=top, html=html,
                          form="json" if as_json else "markdown" if markdown else "text", strict=strict)
    except DataError as error:
        error.exit_code = UsageError.exit_code  # exit code 1 means that a change exceeds a limit
        raise
    show(answer.text)
    if answer.error is not None:
        raise answer.error


def compared(base: Sequence[Path], new: Sequence[Path], *, fail_if: Sequence[str] = (), noise: float | None = None,
             peak: float | None = None, top: int = 10, html: Path | None = None, form: str = "text",
             strict: bool = False) -> Answer:
    """Compares the runs of two sides.

    Args:
        base: Runs of the first side.
        new: Runs of the second side.
        fail_if: Limits like `step_time > 5 %`.
        noise: Assumed relative difference between single runs of the same code; None: the default.
        peak: Peak FLOP/s of each rank's device, instead of the published rate.
        top: Rows of each table.
        html: File to which the HTML page is also written.
        form: `text`, `json` or `markdown`.
        strict: Fails if data is missing in a run.

    Raises:
        DataError: A run cannot be read.
        UsageError: A limit is malformed or its quantity is in no run, a rate is not positive, or a run is repeated.
        OutputError: The page cannot be written.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.difference.difference import Difference
    from distprof.merge.difference.limits import judged, limit_of
    from distprof.merge.difference.observed import observe
    from distprof.merge.text.difference.answer import Answer, error_of
    from distprof.merge.text.difference.document import document
    from distprof.merge.text.difference.formats import html as page_of
    from distprof.merge.text.problems import fail_if_incomplete

    check_rates(peak=peak)
    if noise is not None and not (math.isfinite(noise) and noise >= 0):
        raise UsageError(f"--noise must be 0 % or more, not {100 * noise:g} %")
    limits = [limit_of(text) for text in fail_if]
    for option, side in (("--base", base), ("--new", new)):
        _fail_if_repeated(option, side)
    sides = [[observe(path, peak=peak) for path in side] for side in (base, new)]
    found = Difference(base=sides[0], new=sides[1], given_noise=noise)
    fail_if_incomplete([problem for run in found.runs for problem in run.problems], strict=strict)
    answers = judged(limits, found, _communication())
    shown = document(found, answers, top=top)
    if html is not None:
        page = page_of(shown)
        write_whole(html, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return Answer(text=_printed(found, answers, shown, form), limits=answers, error=error_of(answers))


def _sides(runs: tuple[Path, ...], base: tuple[Path, ...],
           new: tuple[Path, ...]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    if base and new and not runs:
        return base, new
    if len(runs) == 2 and not base and not new:
        return runs[:1], runs[1:]
    raise UsageError(f"diff takes two runs, or one or more each for --base and --new; found {len(runs)} runs, "
                     f"{len(base)} for --base and {len(new)} for --new",
                     hint="distprof diff A B, or distprof diff --base A1 A2 --new B1 B2")


def _ratio(noise: str | None) -> float | None:
    try:
        return None if noise is None else float(noise.strip().removesuffix("%")) / 100
    except ValueError:
        raise UsageError(f"--noise must be a percentage, not {noise!r}") from None


def _fail_if_repeated(option: str, side: Sequence[Path]) -> None:
    """Raises a UsageError if a run is given twice on one side, because the noise between runs would seem to be zero."""
    known = [path.resolve() for path in side]
    for path in side:
        if known.count(path.resolve()) > 1:
            raise UsageError(f"{option} has {path} more than once")


def _printed(found: Difference, answers: Sequence[Judged], shown: Document, form: str) -> str:
    from distprof.merge.text.difference.document import render
    from distprof.merge.text.difference.formats import difference_data, markdown
    from distprof.reporters.page import Page

    if form == "json":
        return json.dumps(difference_data(found, answers), indent=1)
    return markdown(shown) if form == "markdown" else render(shown, Page())


def _communication() -> Callable[[Observed], Mapping[str, Any]]:
    """Returns a function of a run that gives what `comms --json` prints about it, plus `communication` of
    `stats --json`. Each run is read once."""
    from distprof.merge.cost.choice import Choice
    from distprof.merge.text.communication.comms_tables import comms_data
    from distprof.merge.totals.findings import findings_of
    from distprof.merge.totals.summary import communication

    known: dict[Path, Mapping[str, Any]] = {}

    def of(run: Observed) -> Mapping[str, Any]:
        if run.path not in known:
            steps = run.tables.steps if run.tables is not None else None
            known[run.path] = {**comms_data(findings_of(run.path, choice=Choice())),
                               "communication": communication(run.measured, steps)[0]}
        return known[run.path]

    return of
