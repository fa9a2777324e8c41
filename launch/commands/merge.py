"""The `merge` command: options come in, the merge is written, what it holds is printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from distprof.merge.chrome.options import MergeOptions

STRICT = click.option("--strict", is_flag=True, help="Exit with 3 if anything is missing.")


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--ranks", metavar="0-7,64", help="Only these ranks.")
@click.option("--steps", metavar="3,5-6", help="Only what runs in these steps.")
@click.option("--window", metavar="1.2s:1.5s", help="Only what runs in this time, counted from the first event on.")
@click.option("--categories", metavar="kernel,cpu_op", help="Only events of these categories.")
@click.option("--no-python-functions", "without_python", is_flag=True,
              help="Without the Python frames that torch.profiler records with_stack.")
@click.option("--min-duration", metavar="5us", help="Without shorter slices.")
@click.option("--max-size", metavar="1GB",
              help="No more than this as text, which is what a viewer has to read: keeps the ranks and steps that tell "
                   "most (slowest, most often late, median, fastest) and says what it left out.")
@click.option("--format", "format_", type=click.Choice(["chrome", "perfetto-tar"]), default="chrome",
              show_default=True,
              help="One Chrome trace; or the ranks' files as they are, in an archive for Perfetto 58.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="Where to write: a new or empty folder. RUN/merged if not given; needed for files.")
@click.option("--rank-pattern", metavar="REGEX",
              help="Where traces of other programs do not tell their rank: the group of this expression in their path, "
                   "like 'gpu(\\d+)'.")
@click.option("--ranks-in-order", is_flag=True, help="Likewise: ranks 0, 1, ... in the order of the files.")
@click.option("--align", default="auto", type=click.Choice(["auto", "samples", "collectives", "none"]),
              help="How ranks of several hosts are brought to one clock: by samples that they took while recording, or "
                   "estimated from when collectives ended; auto: by samples where they join all ranks.")
@click.option("--collectives/--no-collectives", "collectives", default=None,
              help="Draw collectives: who waited for whom, in threads of their own. Done where distprof recorded; "
                   "traces of other programs are read once more for it.")
@click.option("--force", is_flag=True, help="Replace an earlier merge.")
@STRICT
def merge(runs: tuple[Path, ...], *, out: Path | None, rank_pattern: str | None, ranks_in_order: bool, force: bool,
          strict: bool, **chosen: Any) -> None:
    """Merge all ranks of RUN into RUN/merged.

    RUN is a run directory, or a folder of traces that torch.profiler wrote, or traces and tar archives of them.
    """
    from distprof.launch.memory import reuse_memory
    from distprof.launch.progress import progress

    reuse_memory()
    from distprof.merge.commands.merge import merge as merge_run
    from distprof.merge.run.ranking import Naming

    naming = Naming(pattern=rank_pattern, in_order=ranks_in_order)
    options = _merge_options(**chosen)
    with progress("merging") as told:
        text = merge_run(*runs, options=options, out=out, naming=naming, force=force, strict=strict, progress=told)
    click.echo(text)


def _merge_options(*, ranks: str | None, steps: str | None, window: str | None, categories: str | None,
                   without_python: bool, min_duration: str | None, max_size: str | None,
                   format_: Any, align: Any, collectives: bool | None) -> MergeOptions:
    from distprof.merge.chrome.options import MergeOptions, Spans, duration_ns, num_bytes, window_ns

    return MergeOptions(
        ranks=Spans.of(ranks, "--ranks") if ranks is not None else None,
        steps=Spans.of(steps, "--steps") if steps is not None else None,
        window_ns=window_ns(window) if window is not None else None,
        categories=frozenset(map(str.strip, categories.split(","))) if categories is not None else None,
        without_python=without_python,
        min_duration_ns=duration_ns(min_duration, "--min-duration") if min_duration is not None else 0,
        max_bytes=num_bytes(max_size, "--max-size") if max_size is not None else None, format=format_,
        align=align, collectives=collectives)
