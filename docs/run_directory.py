"""Writes docs/run-directory.md: its tables are those of distprof/contract/.

python docs/run_directory.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distprof.contract.merged_tables import (
    MERGED_COLLECTIVES,
    MERGED_EVENTS,
    MERGED_MODULES,
    MERGED_OPERATORS,
    MERGED_STEPS,
)
from distprof.contract.paths import FORMAT
from distprof.contract.problems import Problem, Remark
from distprof.contract.tables import ASKED_TABLES, RANK_TABLES, TAGS, Column, Table

PAGE = Path(__file__).parent / "run-directory.md"

HEAD = f"""# The run directory, format {FORMAT}

Written by `distprof run` and `distprof.record`, read by `distprof merge`, `stats` and `comms`. `docs/run_directory.py`
makes this page from `distprof/contract/`, where `rank_json.py` has all fields of `run.json` and `rank.json`,
`stuck.py` those of `stuck.json`, and `tables.py` and `merged_tables.py` all columns.

    runs/<name>/
      run.json                    what was launched: arguments (without secrets), plan, versions, start, end, exit code
      rank00003/
        rank.json                 who the rank is, its device, topology, params, clocks, passes, files with rows, status
        trace.json.gz             Chrome trace of this rank, as Kineto wrote it, tagged under the key "distprof"
        modules.parquet, parameters.parquet, ops.parquet, collectives.parquet, steps.parquet, events.parquet
        waits.parquet             only where the sync pass was asked for; merged/ has it then as well
        memory.json.gz            only where the memory pass was asked for: its Chrome trace, with every allocation
        tensors.parquet           likewise: tensors that the rank held
        uses.parquet              likewise: when each allocation was last used
        compilations.parquet      only where torch.compile compiled something; merged/ has it then as well
        stuck.json                only of a rank that hangs: its collectives and stacks, see below
      summaries/host-4f00.bin     each rank of a host in some KB: see [thousands of ranks](levels.md)
      attempt0000/rank00003/      ranks of an earlier attempt of a job that torchrun restarted
      merged/
        trace.json.gz             one Chrome trace of all ranks
        modules.parquet, collectives.parquet, steps.parquet
        events.parquet/           the events of all ranks, a table a rank
        operators.parquet/        their operators, added up, likewise: `distprof ops` reads them
        summary.json              what `distprof stats --json` prints
        report.html               the page of `distprof report`, where it was written

A rank writes into `rank00003.partial/` and renames it when it is done. What a killed rank leaves there is read as well
and called unfinished. `status` in rank.json is `complete`, `partial` (with the reason in `why`), `recording` or
`failed`. Times end in `_ns`: int64 nanoseconds, since the Unix epoch where they are points in time.

Between the data and the footer of each table that a rank writes lies a checksum of the whole file. distprof looks at it
before it reads the table; to other readers the file is Parquet like any other (`distprof/contract/table_checksum.py`).
Values are looked at too: a table with rows of another rank, with nulls where the list below has none, or with numbers that
no job reaches (2^50 elements or bytes, 2^60 FLOPs, a step that takes 104 days) is named and left out
(`merge/run/table_check.py`; the limits stand in `distprof/contract/tables.py`).

## stuck.json

Written when no step has ended for 20 times the longest one, 30 s at least, or (after the last pass, in a job that
`distprof run` started) no collective was called for 300 s; DISTPROF_HANG_SECONDS sets both. Also when the process gets
SIGTERM, when SIGINT does not get through to the script, and when a collective raises. A rank that goes on removes it.
It lists the process groups of the rank with their last collectives as torch's flight recorder has them, called and
completed, calls of the trace pass that have not ended, and the Python stack of every thread. `distprof/contract/stuck.py`
has all fields, with types, and explains how to read several ranks together.

## summary.json

| key | is |
|---|---|
| `format`, `kind`, `run_id`, `world_size`, `mp_size`, `dp_size`, `topology`, `topology_source`, `topology_certain` | what was run, how the topology was found, and whether it can be no other; `kind` is `distprof`, or `traces` for those of other programs, whose sizes and topology are null where unknown |
| `ranks`, `missing_ranks`, `problems` | ranks that were read, ranks that are not there, everything that is incomplete: objects with a `code` and its fields, see below; commands print eight of many ranks with the same problem |
| `joined_with` | run directories of other hosts that were read besides this one, absolute paths |
| `remarks` | what to keep in mind when reading the numbers: likewise |
| `read` | `summaries`: of how many ranks these were read in place of their tables; `tables`: ranks whose tables were read as well, null: all; `times_of`: calls whose times summaries keep, and all calls of the steps that are shown. [Thousands of ranks](levels.md) |
| `per_gpu` | per quantity and time: `mean`, `min`, `max` over ranks and `min_rank`, `max_rank` |
| `model` | per quantity one number: mp_size x the mean per GPU; `stored_params` is what one replica of the model takes on all its ranks; `unique_params` counts every parameter once however many ranks hold it, `active_params` those that work on a token where experts are routed; null where unknown |
| `step` | mean step of the time pass: `time_ns`, its parts, `samples` of the whole job and `samples_per_second` (null where the topology is not certain) and `flops_per_second` of the whole job (recomputation included), `mfu` per GPU, and `mfu_basis`: a `code`, `published` or `given` with the `peaks` it rests on (`flops_per_second`, `device`, `dtype`, `source`, `year`), or why it is null: `no_step`, `no_device` and `no_dtype` (of `rank`), `no_peak` (of `device` in `dtype`), `uncounted` (modules were timed that were not counted); `found`: what ends a step, as in `steps_found` of rank.json (`distprof/contract/steps_found.py`): a `rule`, the `optimizers` whose steps make a step, and from how many optimizer steps that is known |
| `evaluation` | root forward calls without gradient that not every step of a job that trains has: they are in no other number. `calls` a step over all steps, `flops` of the step of the count pass, `time_ns` of a step of the time pass; means over ranks; null where there were none |
| `steps` | all steps of the job: `num_recorded`; `num_run` (null where nothing tells), `later_ns` (median of those that were not recorded), and `change` (null, or the `step` from which on steps take longer or shorter, `before_ns` and `after_ns`, medians), by what `step_ends.bin` says of steps behind the last pass |
| `slowest_rank` | rank with the most time in forward and backward, and its ratio to the median |
| `communication` | share of a step in which a rank waits for others or for data to move (`exposed_ratio`), and these two apart (`waiting_ratio`, `moving_ratio`; null where ranks are missing, as waiting for them seems moving); of a `pipeline` (null without stages) the `bubble_ratio`, the part of a step that waits for messages of other stages, mean over stages, the work and waiting of its `stages`, and `imbalance_ratio`, the work of the busiest stage by the mean; and the `steps` that these are of: those with a timeline, where there are any; up to five ranks whose mending shortens the step, in the order in which they are blamed (`culprits`, as in [`comms --json`](comms.md#--json), without `ratio`), of all steps of the trace and arrivals passes but the first of each; those of these `passes` that there were; why delays could not be seen (`blind`, null where they could; [what it may be](comms.md#when-no-rank-is-named)); hosts whose ranks all waited for processors, and what culprits rest on (`crowded`, `basis`, as in `comms --json`). Of more than 64 ranks with summaries, all of it is what [these](levels.md) tell, unless they know of no waits. null: nothing was recorded, or there are more than a million collectives, or a rank with more than 3 million events, and no summaries: `distprof comms` looks at those |
| `modules` | the modules with the most time, reduced over ranks |
| `coverage_ratio`, `uncounted_ops` | share of the bytes that are moved by known ops (`counted` in ops.parquet); the unknown ones, per step of a rank |
| `clock` | how the times of the ranks were brought to one clock: see below |

FLOPs and MACs are per step. Unknown is null, never 0.

### Problems and remarks

`problems` are what `--strict` fails for. Each object has its `code` and the fields of that code.

@CODES@## Clocks

All times in the folder of a rank are those of its own clock (CLOCK_REALTIME). Merged times are on the clock of rank 0.

rank.json has under

| key | is |
|---|---|
| `clock` | `realtime_ns` beside `monotonic_ns`, which is never set: if their difference changes, the wall clock was set |
| `clock_sync` | a comparison with the clock of rank `peer` at each end of a pass: at `at_ns` (own clock) `offset_ns` was to be added to get the peer's time, wrong by `bound_ns` at most (half the shortest of `rounds` ways there and back, without the time the peer took to answer); null where the peer did not answer |
| `clock_note` | why answers are missing |

The first rank of a host asks the first of another host, in the end rank 0; the others ask the first of their host. A rank
spends a quarter of a second at most on this in a recording.

`clock` in summary.json has

| key | is |
|---|---|
| `method` | `shared`: all ranks read the clock of one host. `samples`: lines through all bounds of `clock_sync`. `collectives`: estimated from when collectives ended, for runs without samples. `none`: not aligned |
| `reason` | why ranks are not aligned, null where all are: `asked` (`--align none`), `hosts_unknown`, `no_samples`, `samples_do_not_join`, `too_few_collectives` |
| `num_samples`, `num_collectives` | comparisons of clocks, and collectives, that the method rests on |
| `aligned` | true where every rank is on the common clock, within `uncertainty_ns` |
| `num_hosts`, `num_clocks` | ranks of one host share a clock unless their samples contradict that |
| `uncertainty_ns` | largest of all ranks; null where one is not aligned |
| `excess_ns` | by how much the bounds contradict clocks of constant drift; it is in the uncertainty |
| `residual_ns` | last minus first end of a collective on the common clock: `p50`, `p95`, `max` |
| `causality` | no rank leaves an all_reduce, all_gather, reduce_scatter or barrier before the last one has entered it: number of collectives that were checked, `violations` and the largest; `contradicts` is true where it exceeds the uncertainty |
| `ranks` | of each rank: which `clock` it reads, `offset_ns` to be added at `reference_ns` (own clock), `drift_ppm` by which the offset grows and what it may be wrong by, `uncertainty_ns` of the sum |
| `set_by_ns` | by how much a wall clock was set while recording |

`uncertainty_ns` holds between the first and the last sample (the first and the last collective) if the clocks drift
apart by a constant rate below 1000 ppm: of all offsets and drifts that keep every bound, none is farther from the one
that is used. Where a recording ends without a sample it holds until then; by how much a clock was set in steps is added.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD.replace("@CODES@", "".join(_codes())), "\n## Tables of a rank\n\nEvery table begins with\n\n", *_rows(TAGS)]
    for table in (*RANK_TABLES, *ASKED_TABLES):
        parts += _section(table, f"### {table.file}", TAGS)
    parts.append("\n## Merged tables\n")
    for table in (MERGED_MODULES, MERGED_COLLECTIVES, MERGED_STEPS):
        parts += _section(table, f"### merged/{table.file}", ())
    for table in (MERGED_EVENTS, MERGED_OPERATORS):
        parts += _section(table, f"### merged/{table.file}", TAGS)
    return "".join(parts)


def _codes() -> Iterator[str]:
    """A table of the codes and fields of problems, and one of remarks."""
    for kind, title in ((Problem, "Code of a problem"), (Remark, "Code of a remark")):
        yield f"| {title} | fields | is |\n|---|---|---|\n"
        for one in kind.__subclasses__():
            fields = ", ".join(f"`{field}`" for field in one.__struct_fields__)
            yield f"| `{one.__struct_config__.tag}` | {fields} | {(one.__doc__ or '').splitlines()[0]} |\n"
        yield "\n"


def _section(table: Table, title: str, known: tuple[Column, ...]) -> Iterator[str]:
    yield f"\n{title}\n\n{table.doc}\n\n"
    yield from _rows(tuple(column for column in table.columns if column not in known))


def _rows(columns: tuple[Column, ...]) -> Iterator[str]:
    yield "| column | type | is |\n|---|---|---|\n"
    for column in columns:
        yield f"| `{column.name}` | {column.type}{' or null' if column.nullable else ''} | {column.doc} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
