"""Writes docs/run-directory.md from distprof/contract.py, so that the page says what the code does.

python docs/run_directory.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distprof.contract import (
    FORMAT,
    MERGED_COLLECTIVES,
    MERGED_EVENTS,
    MERGED_MODULES,
    MERGED_STEPS,
    RANK_TABLES,
    TAGS,
    Column,
    Table,
)

PAGE = Path(__file__).parent / "run-directory.md"

HEAD = f"""# The run directory, format {FORMAT}

Written by `distprof run` and `distprof.record`, read by `distprof merge`, `stats` and `comms`. This page is made from
`distprof/contract.py` by `docs/run_directory.py`.

    runs/<name>/
      run.json                    what was launched: arguments, plan, world size, versions, start, end, exit code
      rank00003/
        rank.json                 who the rank is, its device, topology, params, clock samples, passes, files with rows, status
        trace.json.gz             Chrome trace of this rank, as Kineto wrote it, tagged under the key "distprof"
        modules.parquet, ops.parquet, collectives.parquet, steps.parquet, events.parquet
      merged/
        trace.json.gz             one Chrome trace of all ranks
        modules.parquet, collectives.parquet, steps.parquet
        events.parquet/           the events of all ranks, a table a rank
        summary.json              what `distprof stats --json` prints

A rank writes into `rank00003.partial/` and renames it when it is done. What a killed rank leaves there is read as well
and called unfinished. `status` in rank.json is `complete`, `partial` (with the reason in `why`), `recording` or
`failed`. Times end in `_ns`: int64 nanoseconds, since the Unix epoch where they are points in time.

## summary.json

| key | is |
|---|---|
| `format`, `kind`, `run_id`, `world_size`, `mp_size`, `dp_size`, `topology`, `topology_source` | what was run, and how the topology was found; `kind` is `distprof`, or `traces` for those of other programs, whose sizes and topology are null where they do not tell |
| `ranks`, `missing_ranks`, `problems` | ranks that were read, ranks that are not there, everything that is incomplete, in words |
| `remarks` | what to keep in mind when reading the numbers, in words |
| `per_gpu` | per quantity and time: `mean`, `min`, `max` over ranks and `min_rank`, `max_rank` |
| `model` | per quantity one number: mp_size x the mean per GPU; `unique_params` counts replicas once, null where unknown |
| `step` | mean step of the time pass: `time_ns`, its parts, `samples_per_second` and `flops_per_second` of the whole job (recomputation included), `mfu` per GPU and in `mfu_basis` the FLOPs and the peak it rests on, or why it is null |
| `slowest_rank` | rank with the most time in forward and backward, and its ratio to the median |
| `modules` | the modules with the most time, reduced over ranks |
| `coverage_ratio`, `uncounted_ops` | share of the bytes that are moved by ops of which it is known what they do; the others, per step of a rank |
| `clock` | how timestamps were brought together; `uncertainty_ns` is null where it was not measured |

FLOPs and MACs are per step. Unknown is null, never 0.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n## Tables of a rank\n\nEvery table begins with\n\n", *_rows(TAGS)]
    for table in RANK_TABLES:
        parts += _section(table, f"### {table.file}", TAGS)
    parts.append("\n## Merged tables\n")
    for table in (MERGED_MODULES, MERGED_COLLECTIVES, MERGED_STEPS):
        parts += _section(table, f"### merged/{table.file}", ())
    parts += _section(MERGED_EVENTS, f"### merged/{MERGED_EVENTS.file}", TAGS)
    return "".join(parts)


def _section(table: Table, title: str, known: tuple[Column, ...]) -> Iterator[str]:
    yield f"\n{title}\n\n{table.doc}\n\n"
    yield from _rows(tuple(column for column in table.columns if column not in known))


def _rows(columns: tuple[Column, ...]) -> Iterator[str]:
    yield "| column | type | is |\n|---|---|---|\n"
    for column in columns:
        yield f"| `{column.name}` | {column.type}{' or null' if column.nullable else ''} | {column.doc} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
