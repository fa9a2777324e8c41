"""`distprof merge`: one trace and reduced tables of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof.contract.mesh import GIVEN_AXES
from distprof.ending import ended_by_signals
from distprof.launch.options import (
    ATTEMPT,
    PLACE,
    RUNS,
    SAME_HOST,
    STRICT,
    TIME_UNIT,
    given_sizes,
    given_workers,
    mesh_sizes,
    worker_options,
)
from distprof.launch.standard_streams import progress_bar
from distprof.merge.chrome.formats import FORMATS
from distprof.sizes import num_bytes
from distprof.terminal import show

if TYPE_CHECKING:
    from distprof.merge.chrome.options import MergeOptions


@click.command()
@RUNS
@click.option("--ranks", metavar="0-7,64", help="Keep only these ranks.")
@click.option("--steps", metavar="3,5-6", help="Keep only events of these steps.")
@click.option("--window", metavar="1.2s:1.5s", help="Keep only events in this time window, measured from the first "
                                                    "event.")
@click.option("--categories", metavar="kernel,cpu_op", help="Keep only events of these categories.")
@click.option("--no-python-functions", "without_python", is_flag=True,
              help="Drop the Python frames that torch.profiler records with with_stack=True.")
@click.option("--min-duration", metavar="5us", help="Drop shorter slices.")
@click.option("--keep", multiple=True, metavar="PATTERN",
              help="Keep only slices whose name matches, like 'nccl*' or '*gemm*'; repeat for several patterns.")
@click.option("--drop", multiple=True, metavar="PATTERN",
              help="Drop slices whose name matches, like 'aten::empty*'; repeat for several patterns.")
@click.option("--max-size", metavar="1GB",
              help="Limit the uncompressed size of the trace. Keeps the slowest, the most often late, the median and "
                   "the fastest ranks and steps, and lists what was dropped.")
@click.option("--format", "format_", type=click.Choice(list(FORMATS)), default="chrome",
              show_default=True,
              help=" ".join(f"{name}: {form.what}." for name, form in FORMATS.items()))
@click.option("--out", type=PLACE, metavar="DIR",
              help="Output directory, new or empty. Required if RUN is a file.  [default: RUN/merged]")
@click.option("--rank-pattern", metavar="REGEX",
              help="Regular expression whose group matches the rank in the path of a foreign trace, such as "
                   "'gpu(\\d+)'. Several groups are coordinates, the last one fastest: 'node(\\d+)/gpu(\\d+)'.")
@click.option("--rank-map", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
              help="File with a rank and the path of a foreign trace per line, such as '3 node1/trace_a.json'.")
@click.option("--ranks-in-order", is_flag=True, help="Number foreign traces 0, 1, ... in file order.")
@click.option("--align", default="auto", type=click.Choice(["auto", "samples", "collectives", "none"]),
              show_default=True,
              help="How to align the clocks of several hosts. samples: by clock samples taken while recording. "
                   "collectives: by the ends of collectives. auto: samples if they connect all ranks, otherwise "
                   "collectives.")
@click.option("--collectives/--no-collectives", "collectives", default=None,
              help="Draw collectives and the ranks that waited, as separate threads. Foreign traces are read a second "
                   "time for this.  [default: drawn for runs recorded by distprof]")
@click.option("--critical-path", is_flag=True,
              help="Draw the critical path of each step across ranks, with arrows where it moves to another rank. "
                   "Where no rank waits for another, it is the path through each GPU.")
@click.option("--tensors", is_flag=False, flag_value="1MB", default=None, metavar="[SIZE]",
              help="Draw the lifetime of each tensor of at least this size, if the profiler recorded memory. Traces "
                   "are read a second time for this. Put it after RUN.  [SIZE: 1MB]")
@click.option("--queues", is_flag=True,
              help="Draw how many commands wait in the queue of each stream of a GPU, as counters. Traces are read a "
                   "second time for this.")
@click.option("--operators", is_flag=True,
              help="Also write a table of each rank's operators, which makes `distprof ops` more than twice as fast.")
@click.option("--name", metavar="TEXT", default="",
              help="Add this to the names of all processes in the trace, such as 'baseline', to tell merges apart in a "
                   "viewer.")
@click.option("--anonymise", is_flag=True,
              help="Take folders and host names out of the merged trace, so that it can be shared. Files keep their "
                   "names.")
@click.option("--answer", is_flag=True,
              help="Print a ten-line summary instead of the files written: step time, MFU, communication, late ranks, "
                   "missing data.")
@click.option("--force", is_flag=True, help="Replace an earlier merge.")
@worker_options
@mesh_sizes
@SAME_HOST
@TIME_UNIT
@ATTEMPT
@STRICT
def merge(runs: tuple[Path, ...], *, out: Path | None, rank_pattern: str | None, rank_map: Path | None,
          ranks_in_order: bool, force: bool, strict: bool, answer: bool, attempt: int | None, **chosen: Any) -> None:
    """Merge the ranks of RUN into one trace and reduced tables.

    RUN is a run directory, a folder of traces from torch.profiler, or such traces and archives of them. Several run
    directories of one job, whose hosts share no folder, are joined; the merge goes into the first.
    """
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.run.rank_folders import of_attempt
    from distprof.merge.run.traces.ranking import Naming, read_rank_map
    from distprof.merge.writing.merge import merge as merge_run

    runs = of_attempt(runs, attempt)
    naming = Naming(pattern=rank_pattern, in_order=ranks_in_order,
                    of_files=None if rank_map is None else read_rank_map(rank_map))
    sizes = given_sizes({axis: chosen.pop(axis) for axis in GIVEN_AXES})
    workers = given_workers(chosen.pop("workers"), chosen.pop("scheduler"))
    options = _merge_options(**chosen)
    with ended_by_signals(), progress_bar("merging") as advance:
        text = merge_run(*runs, options=options, out=out, naming=naming, sizes=sizes, force=force, strict=strict,
                         brief=answer, workers=workers, progress=advance)
    show(text)


def _merge_options(*, ranks: str | None, steps: str | None, window: str | None, categories: str | None,
                   without_python: bool, min_duration: str | None, keep: tuple[str, ...], drop: tuple[str, ...],
                   max_size: str | None,
                   format_: Any, align: Any, collectives: bool | None, tensors: str | None, queues: bool,
                   operators: bool, critical_path: bool, name: str, anonymise: bool) -> MergeOptions:
    from distprof.merge.chrome.options import MergeOptions, NumberRanges, duration_ns, window_ns

    return MergeOptions(
        ranks=NumberRanges.of(ranks, "--ranks") if ranks is not None else None,
        steps=NumberRanges.of(steps, "--steps") if steps is not None else None,
        window_ns=window_ns(window) if window is not None else None,
        categories=frozenset(map(str.strip, categories.split(","))) if categories is not None else None,
        without_python=without_python,
        min_duration_ns=duration_ns(min_duration, "--min-duration") if min_duration is not None else 0,
        keep=keep, drop=drop,
        max_bytes=num_bytes(max_size, "--max-size") if max_size is not None else None, format=format_,
        align=align, collectives=collectives, queues=queues, operators=operators, critical_path=critical_path,
        name=name.strip(), anonymise=anonymise,
        tensor_bytes=num_bytes(tensors, "--tensors") if tensors is not None else None)
