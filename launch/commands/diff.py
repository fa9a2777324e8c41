"""`distprof diff`: what changed between two runs, by how much, and what of it is noise."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.errors import DataError, UsageError
from distprof.launch.options import JSON, PLACE, STRICT, run_directories
from distprof.launch.run_paths import checked
from distprof.terminal import show

SEVERAL = ("--base", "--new")


class SeveralValues(click.Command):
    """Takes several values after one `--base` or `--new`: each further one gets the option in front of it."""

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
    from distprof.merge.commands.diff import DiffView
    from distprof.merge.commands.diff import diff as diff_of

    view = DiffView(fail_if=fail_if, noise=ratio, peak=peak, top=top, html=html,
                    form="json" if as_json else "markdown" if markdown else "text")
    try:
        answer = diff_of(*sides, view, strict=strict)
    except DataError as error:
        error.exit_code = UsageError.exit_code  # 1 is what a change beyond a limit ends with
        raise
    show(answer.text)
    if answer.error is not None:
        raise answer.error


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
