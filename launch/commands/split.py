"""`distprof split`: splits a merged trace into one trace per rank."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.terminal import quoted, show


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR",
              help="Output directory, new or empty.")
@click.option("--first-rank", type=click.IntRange(min=0), metavar="N", default=None,
              help="Add N to the ranks, for one of several traces of a job, such as one per host. DIR may then hold "
                   "the ranks of the others.")
def split(trace: Path, *, out: Path, first_rank: int | None) -> None:
    """Split a merged TRACE into one file per rank.

    TRACE is a Chrome trace in which a tool put the events of several ranks together: with the rank in front of pids
    (SGLang), or in the names of processes (distprof and others). The other commands then read the folder DIR.
    """
    from distprof.merge.chrome.split import split as split_trace
    from distprof.merge.scan.trace_file import TraceFile
    from distprof.merge.text.problems import sentence
    from distprof.units import counted, spans

    found = split_trace(TraceFile(path=trace), out, first_rank=first_rank)
    ranks = sorted(found.num_events)
    show(f"{counted(sum(found.num_events.values()), 'event')} of ranks {spans(ranks)} in {out}")
    if found.num_left_out:
        show(f"{counted(found.num_left_out, 'event')} skipped: the rank of their processes is unknown")
    for problem in found.problems:
        show(f"incomplete: {sentence(problem).removeprefix('rank 0: ')}")
    show(f"Next: distprof comms {quoted(out)}")
