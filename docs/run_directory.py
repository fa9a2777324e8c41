"""Writes docs/run-directory.md, whose tables come from distprof/contract/.

python docs/run_directory.py
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

from distprof.contract.merged import (
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

Written by `distprof run` and `distprof.record`, read by all other commands. `docs/run_directory.py` generates this page
from `distprof/contract/`, where `run_json.py` has all fields of `run.json`, `rank_json.py` those of `rank.json`,
`stuck.py` those of `stuck.json`, and `tables.py` and `merged.py` all columns.

    runs/<name>/
      run.json                    what was launched: arguments (without secrets), plan, versions, start, end, exit code
      rank00003/
        rank.json                 identity, device, topology, params, clocks, passes, files with row counts, status
        trace.json.gz             Chrome trace of this rank, as Kineto wrote it, tagged under the key "distprof"
        modules.parquet, parameters.parquet, ops.parquet, collectives.parquet, steps.parquet, events.parquet
        watch-000.bin, ...        every step outside of the passes, see below
        waits.parquet             only with the sync pass; then also in merged/
        memory.json.gz            only with the memory pass: its Chrome trace, with every allocation
        tensors.parquet           only with the memory pass: tensors that the rank held
        uses.parquet              only with the memory pass: when each allocation was last used
        execution_trace.json.gz, execution_timeline.json.gz, execution_collectives.parquet   only with the execution pass
        lines.parquet             samples of lines of the script, from the trace and arrivals passes
        compilations.parquet      only if torch.compile compiled something; then also in merged/
        stuck.json                only for a rank that hangs or was asked for it: its collectives and stacks, see below
      hosts/host-4f00/            readings of a host, once a second while the job was watched: conditions-000.bin, ...
      columns/host-4f00.bin       summaries of the ranks of a host: see [thousands of ranks](levels.md)
      watch/state.json            what `distprof watch` shows: ranks and findings, while the job runs and at its end
      watch/tensorboard/          only with `run --log-to tensorboard`: metrics and findings of the job
      watch/log-to-wandb          only with `run --log-to wandb` (or mlflow): which rank wrote into which run
      watch/request.json          a request of `distprof trigger` or the watch to record some steps: number, step, passes
      windows/0001/               the steps recorded then, as a run directory of its own; 0002 and so on
      attempt0000/rank00003/      ranks of an earlier attempt of a job that torchrun restarted
      merged/
        trace.json.gz             one Chrome trace of all ranks
        modules.parquet, collectives.parquet, steps.parquet
        events.parquet/           the events of all ranks, one table per rank
        operators.parquet/        their operators, summed, one table per rank, for `distprof ops`
        summary.json              what `distprof stats --json` prints
        report.html               the page of `distprof report`, if it was written

A rank writes to `rank00003.partial/` and renames the folder when it is done. What a killed rank leaves there is read as
well and reported as unfinished. `status` in rank.json is `complete`, `partial` (with the reason in `why`), `recording`
or `failed`. Times end in `_ns`: int64 nanoseconds, since the Unix epoch if they are points in time.

Between the data and the footer of each table that a rank writes is a checksum of the whole file. distprof checks it
before reading the table; for other readers the file is ordinary Parquet (`distprof/contract/parquet_footer.py`). Values
are checked too: a table with rows of another rank, with nulls where the list below has none, or with impossible numbers
(2^50 elements or bytes, 2^60 FLOPs, a step of 104 days) is named and skipped (`merge/run/table_check.py`; the limits
are in `distprof/contract/tables.py`).

## watch-000.bin

All steps outside the passes, in rows of one or more steps; collectives in sampled steps; and notes. Frames of
zlib-compressed MessagePack are appended while the job runs. If a kill cuts a frame short, only its contents are lost.
`distprof/contract/watch.py` has all columns and reads frames; `merge/watch/pieces.py` joins them. When the files exceed
`--watch-bytes`, older rows are joined.

## stuck.json

Written when no step has ended for 20 times the longest step, at least 30 s, or (after the last pass, in a job started
by `distprof run`) when no collective was called for 300 s; DISTPROF_HANG_SECONDS sets both. Also written when the
process gets SIGTERM, when SIGINT does not reach the script, when a collective raises, and when the watcher of the job
requests it because no rank has ended a step for 15 s and the duration of 20 normal steps. A rank that continues removes
it. It lists the process groups of the rank with their last collectives, called and completed, as recorded by torch's
flight recorder, calls of the trace pass that have not ended, and the Python stack of every thread.
`distprof/contract/stuck.py` has all fields, with types, and explains how to read several ranks together.

## summary.json

| key | meaning |
|---|---|
| `format`, `kind`, `run_id`, `world_size`, `mp_size`, `dp_size`, `topology`, `topology_source`, `topology_certain` | what was run, how the topology was found, and whether it is certain; `kind` is `distprof`, or `traces` for foreign traces, whose sizes and topology are null if unknown |
| `ranks`, `missing_ranks`, `problems` | ranks that were read, ranks that are missing, everything that is incomplete: objects with a `code` and its fields, see below; of many ranks with the same problem, commands print eight |
| `joined_with` | run directories of other hosts that were also read, as absolute paths |
| `remarks` | what to keep in mind when reading the numbers, in the same form |
| `per_gpu` | per quantity and time: `mean`, `min`, `max` over ranks and `min_rank`, `max_rank`. Times are parts of the step time: their share of the steps with module timers, times the step time |
| `model` | per quantity one number: mp_size x the mean per GPU; `stored_params` is what one replica of the model takes on all its ranks; `unique_params` counts every parameter once, however many ranks hold it, `active_params` those that work on a token if experts are routed; null if unknown |
| `step` | the step time, `time_ns`: the median over steps in which nothing heavy ran, or the mean of their middle half if that differs by more than 10 % because steps are of several kinds (steps are those of `passes`: time and arrivals; if there are none, steps with a timeline), each step being the mean over ranks. 5 to 95 % of the `num_steps` steps lie between `low_ns` and `high_ns`. Its parts as in `per_gpu`, and `measured_ns`, the mean of the steps with module timers in which the parts were measured; `samples` of the whole job and `samples_per_second` (null if the topology is not certain) and `flops_per_second` of the whole job (including recomputation), `mfu` per GPU; FLOP/s and MFU divide the counted FLOPs by the time in which steps process as many samples (or forward calls) as the counted step did; and `mfu_basis`: a `code`, `published` or `given` with the `peaks` it is based on (`flops_per_second`, `device`, `dtype`, `source`, `year`), or why it is null: `no_step`, `no_device` and `no_dtype` (of `rank`), `no_peak` (of `device` in `dtype`), `uncounted` (some timed modules were not counted); `found`: what ends a step, as in `steps_found` of rank.json (`distprof/contract/rank_json.py`): a `rule`, the `optimizers` whose steps make a step, and after how many optimizer steps that was known |
| `evaluation` | root forward calls without gradient that only some steps of a training job have; they are in no other number. `calls` per step over all steps, `flops` of the step of the count pass, `time_ns` as a part of the step time; means over ranks; null if there were none |
| `steps` | all steps of the job: `num_recorded`; `num_run` (null if unknown), `later_ns` (median of the steps that were not recorded), and `change` (null, or the `step` from which steps take longer or shorter, `before_ns` and `after_ns`, medians; null if `watched` covers it more precisely), based on `watch-*.bin` (in older runs `step_ends.bin`); and `watched` (null if no watch has analysed the job), the state of the watch of the whole job: `num_steps`, `first_watched`, `elapsed_ns`, `step_ns`, `findings`, `notes`, `is_short` (too short to be searched) and `unexplained` (longer steps without a known reason) of [`distprof watch --once --json`](watching.md) |
| `slowest_rank` | rank with the most time in forward and backward, and its ratio to the median |
| `passes` | what recording costs: for each `pass`, its `num_steps`, their median `time_ns`, and its `ratio` to the step time; `stats --passes` shows them |
| `communication` | fraction of a step (of the [device](devices.md), if `of_device`) in which a rank waits for others or for data to move (`exposed_ratio`), and these two separately (`waiting_ratio`, `moving_ratio`; null if ranks are missing or no collective is known from all of its ranks, because waiting then looks like moving); what steps of each device are spent on (`devices`, as `steps` of [`comms --json`](devices.md#--json)); for a `pipeline` (null without stages), the `bubble_ratio`, the part of a step that waits for messages of other stages (mean over stages), the work and waiting of its `stages`, and `imbalance_ratio`, the work of the busiest stage divided by the mean; and the `steps` that these cover: those with a timeline, if there are any; up to five ranks that shorten the step when fixed, in the order in which they are blamed (`culprits`, as in [`comms --json`](comms.md#--json), without `ratio`), over all steps of the trace and arrivals passes except the first of each; which of these `passes` there were; why delays could not be seen (`blind`, null if they could; [possible values](comms.md#when-no-rank-is-named)); hosts whose ranks all waited for CPUs (`crowded`, as in `comms --json`). For more than 64 ranks, all of this comes from [files of hosts](levels.md), unless they know of no waits. null: nothing was recorded, or there are more than a million collectives, or a rank with more than 3 million events, and no such files: use `distprof comms` for those |
| `modules` | the modules with the most time, reduced over ranks |
| `coverage_ratio`, `uncounted_ops` | fraction of the bytes moved by known ops (`counted` in ops.parquet); the unknown ones, per step and rank |
| `clock` | how the times of the ranks were aligned: see below |

FLOPs and MACs are per step. Unknown values are null, never 0.

### Problems and remarks

`problems` make `--strict` fail. Each object has its `code` and the fields of that code.

@CODES@## Clocks

All times in a rank's folder are on its own clock (CLOCK_REALTIME). Merged times are on the clock of rank 0.

In rank.json:

| key | meaning |
|---|---|
| `clock` | `realtime_ns` with `monotonic_ns`, which is never adjusted: if their difference changes, the wall clock was adjusted |
| `clock_sync` | a comparison with the clock of rank `peer` at each end of a pass: at `at_ns` (own clock), add `offset_ns` to get the peer's time; the error is at most `bound_ns` (half the shortest of `rounds` round trips, excluding the time the peer took to answer); null if the peer did not answer |
| `clock_note` | why answers are missing |
| `device_clock_ns` | on GPUs, the largest possible error of device times on the clock of the rank: half the shortest round trip to the device, which takes milliseconds if other processes use the same GPU |

The first rank of a host asks the first rank of another host, and finally rank 0; the others ask the first rank of their
host. A rank spends at most a quarter of a second on this in a recording.

In `clock` of summary.json:

| key | meaning |
|---|---|
| `method` | `shared`: all ranks use the clock of one host. `samples`: lines through all bounds of `clock_sync`. `collectives`: estimated from the ends of collectives, for runs without samples. `none`: not aligned |
| `reason` | why ranks are not aligned, null if all are: `asked` (`--align none`), `hosts_unknown`, `no_samples`, `samples_do_not_join`, `too_few_collectives` |
| `num_samples`, `num_collectives` | clock comparisons and collectives that the method is based on |
| `aligned` | true if every rank is on the common clock, within `uncertainty_ns` |
| `num_hosts`, `num_clocks` | ranks of one host share a clock unless their samples contradict that; 0 hosts: unknown |
| `uncertainty_ns` | largest over all ranks; null if any is not aligned |
| `excess_ns` | by how much the bounds contradict clocks of constant drift; included in the uncertainty |
| `residual_ns` | last minus first end of a collective on the common clock: `p50`, `p95`, `max` |
| `causality` | no rank leaves an all_reduce, all_gather, reduce_scatter or barrier before the last one has entered it: number of collectives checked, `violations` and the largest of them; `contradicts` is true if it exceeds the uncertainty |
| `ranks` | for each rank: which `clock` it uses, `offset_ns` to add at `reference_ns` (own clock), `drift_ppm` by which the offset grows and its error, `uncertainty_ns` of the sum; `device_ns` is `device_clock_ns` of the rank |
| `set_by_ns` | by how much a wall clock was adjusted while recording |

`uncertainty_ns` holds between the first and the last sample (or collective) if the clocks drift apart at a constant
rate below 1000 ppm: of all offsets and drifts that satisfy every bound, none is farther from the one used. If a
recording ends without a sample, it holds until then; the amount of any clock adjustment is added.
"""


def page() -> str:
    """Returns the whole page."""
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
    """Yields a table of the codes and fields of problems, and one of remarks."""
    for kind, title in ((Problem, "Code of a problem"), (Remark, "Code of a remark")):
        yield f"| {title} | fields | meaning |\n|---|---|---|\n"
        for one in kind.__subclasses__():
            fields = ", ".join(f"`{field}`" for field in one.__struct_fields__)
            yield f"| `{one.__struct_config__.tag}` | {fields} | {meaning(one)} |\n"
        yield "\n"


def meaning(kind: type[object]) -> str:
    """Returns the first paragraph of the docstring of a problem or remark, in one line."""
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def _section(table: Table, title: str, known: tuple[Column, ...]) -> Iterator[str]:
    yield f"\n{title}\n\n{table.doc}\n\n"
    yield from _rows(tuple(column for column in table.columns if column not in known))


def _rows(columns: tuple[Column, ...]) -> Iterator[str]:
    yield "| column | type | meaning |\n|---|---|---|\n"
    for column in columns:
        yield f"| `{column.name}` | {column.type}{' or null' if column.nullable else ''} | {column.doc} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
