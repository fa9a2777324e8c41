"""`distprof ops`: operators of a run."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.errors import UsageError
from distprof.launch.options import ATTEMPT, PLACE, RUNS, STRICT, given_workers, worker_options
from distprof.terminal import show

FRAMES = 5


@click.command()
@RUNS
@click.option("--by", "by", multiple=True, metavar="KEY",
              help="Group calls by op, type, category (matrix product, attention, norm, copy, ...), module, class, "
                   "shape, dtype, phase, rank, stream, step or stack. Can be repeated.  [default: op]")
@click.option("--sort", default=None, metavar="COLUMN",
              help="Sort by self time, a column of --json, or a sort key of torch's key_averages, largest first.  "
                   "[default: self]")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Rows shown.  [default: 20; all with --json and --csv]")
@click.option("--op", default=None, metavar="REGEX", help="Only operators whose name matches.")
@click.option("--type", "types", multiple=True, metavar="TYPE",
              help="Only this type: operator, annotation, runtime, kernel, memcpy or memset.  [default: operator, "
                   "runtime, and device work that belongs to neither]")
@click.option("--module", default=None, metavar="GLOB", help="Only calls in these modules, like 'layers.*.attention'.")
@click.option("--dtype", default=None, metavar="TYPE", help="Only calls with an input of this type, like float.")
@click.option("--rank", "ranks", multiple=True, type=int, metavar="N", help="Only this rank.")
@click.option("--step", "steps", multiple=True, type=int, metavar="N", help="Only this step.")
@click.option("--phase", "phases", multiple=True, metavar="PHASE",
              help="Only forward, backward, recompute, optimizer, evaluation or data.")
@click.option("--stack", default=None, type=click.IntRange(min=1), metavar="N",
              help=f"With --by stack: number of innermost Python functions to group by.  [default: {FRAMES}]")
@click.option("--min-time", default=None, type=float, metavar="US",
              help="Only rows whose calls take at least this long on average, in microseconds.")
@click.option("--max-time", default=None, type=float, metavar="US",
              help="Only rows whose calls take at most this long on average, in microseconds.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--markdown", "form", flag_value="markdown", help="Print a Markdown table.")
@click.option("--parquet", default=None, type=PLACE, metavar="FILE",
              help="Also write the rows to a new Parquet file.")
@click.option("--peak", default=None, type=float, metavar="FLOP/S",
              help="Peak rate of each rank's device, such as 1.2e12, for the roofline.  [default: the published rate]")
@click.option("--bandwidth", default=None, type=float, metavar="BYTES/S",
              help="Memory bandwidth of that device.  [default: the published one]")
@click.option("--torch", "as_torch", is_flag=True,
              help="Print what torch's key_averages().table() prints, for one --rank. --by shape groups like "
                   "group_by_input_shape, --by stack like group_by_stack_n; --sort and --top are its sort_by and "
                   "row_limit.")
@worker_options
@ATTEMPT
@STRICT
def ops(runs: tuple[Path, ...], *, by: tuple[str, ...], sort: str | None, top: int | None, op: str | None,
        types: tuple[str, ...], module: str | None, dtype: str | None, ranks: tuple[int, ...], steps: tuple[int, ...],
        phases: tuple[str, ...], stack: int | None, min_time: float | None, max_time: float | None, form: str | None,
        parquet: Path | None, peak: float | None, bandwidth: float | None, as_torch: bool, attempt: int | None,
        strict: bool, workers: int | None, scheduler: str | None) -> None:
    """Show operators: time on host and device, FLOPs and bytes.

    RUN is a run directory, traces from torch.profiler, or a merge of either. FLOPs come from the count pass; without
    one, they come from the shapes in the traces (record_shapes).
    """
    if min_time is not None and max_time is not None and min_time > max_time:
        raise UsageError(f"--min-time must be below --max-time, found {min_time:g} and {max_time:g}")
    if stack is not None and "stack" not in by:
        raise UsageError("--stack needs --by stack", hint=f"--by stack --stack {stack}")
    num_frames = stack or FRAMES
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.run.rank_folders import of_attempt

    if as_torch:
        others = (op, module, dtype, min_time, max_time, form, parquet, *types, *steps, *phases, *ranks[1:])
        if any(one is not None for one in others) or set(by) - {"shape", "stack"}:
            raise UsageError("--torch can be combined only with --rank, --by shape, --by stack, --stack, --sort and "
                             "--top")
        from distprof.merge.commands.ops import torch_ops

        show(torch_ops(*of_attempt(runs, attempt), rank=ranks[0] if ranks else None, by_shape="shape" in by,
                       num_frames=num_frames if "stack" in by else 0, sort=sort, top=top))
        return
    from distprof.merge.commands.ops import OpsView
    from distprof.merge.commands.ops import ops as ops_of
    from distprof.merge.operators.selection import Selection
    from distprof.merge.run.timelines import reading_in

    selection = Selection(
        types=types, op=op, module=module, dtype=dtype, ranks=ranks, steps=steps, phases=phases,
        min_ns=None if min_time is None else 1000 * min_time, max_ns=None if max_time is None else 1000 * max_time)
    view = OpsView(by=by or ("op",), num_frames=num_frames, sort=sort or "self", top=top, form=form or "text",
                   parquet=parquet, peak=peak, bandwidth=bandwidth)
    with reading_in(given_workers(workers, scheduler)):
        show(ops_of(*of_attempt(runs, attempt), selection=selection, view=view, strict=strict))
