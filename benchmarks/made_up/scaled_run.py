"""Turns a recorded run into one of many ranks: with 4 recorded ranks, rank 5 is a copy of rank 1 with another number.

The run must be of a data parallel job all of whose collectives involve all ranks. Each rank has its own files; times
are those of the original rank, so that the ranks of a collective still meet. Totals are meaningless, because shards of
the model keep their size.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl
from isal import igzip

from distprof.contract.collective_ops import text_of
from distprof.summaries.host_file import append
from distprof.summaries.maker import summarise

TRACE = "trace.json.gz"


def number_of(folder: Path) -> int:
    """Returns the rank of a folder."""
    return int(folder.name.removeprefix("rank"))


def write_rank(source: Path, folder: Path, num_ranks: int) -> None:
    """Writes a copy of a rank folder as a rank of a larger job."""
    folder.mkdir(parents=True)
    rank = number_of(folder)
    about = json.loads((source / "rank.json").read_text())
    about |= {"rank": rank, "local_rank": rank, "world_size": num_ranks, "dp_size": num_ranks,
              "topology": {"dp": num_ranks}, "coordinates": {"dp": rank}}
    (folder / "rank.json").write_text(json.dumps(about, indent=1))
    for path in source.glob("*.parquet"):
        rows = pl.read_parquet(path).with_columns(rank=pl.lit(rank), dp_size=pl.lit(num_ranks))
        if "group_ranks" in rows.columns:
            rows = rows.with_columns(group_ranks=pl.lit(text_of(range(num_ranks)), pl.Categorical),
                                     group_size=pl.lit(num_ranks, pl.Int64))
        rows.write_parquet(folder / path.name)
    text = igzip.decompress((source / TRACE).read_bytes())
    tags = {rb'"rank": ?\d+': f'"rank": {rank}', rb'"world_size": ?\d+': f'"world_size": {num_ranks}',
            rb'"dp_size": ?\d+': f'"dp_size": {num_ranks}', rb'"dp": ?\d+': f'"dp": {num_ranks}'}
    start = text.index(b'"distprof"')
    head, tag = text[:start], text[start:start + 2000]
    for pattern, value in tags.items():
        tag = re.sub(pattern, value.encode(), tag)
    (folder / TRACE).write_bytes(igzip.compress(head + tag + text[start + 2000:], 1, mtime=0))


def write_run(run: Path, out: Path, num_ranks: int, *, summaries: bool = False) -> None:
    """Writes a run of `num_ranks` ranks; with `summaries`, also the summaries that completed ranks leave."""
    sources = sorted(run.glob("rank?????"))
    shutil.rmtree(out, ignore_errors=True)
    for rank in range(num_ranks):
        folder = out / f"rank{rank:05}"
        write_rank(sources[rank % len(sources)], folder, num_ranks)
        if summaries:
            append(out, summarise(folder))
    about = json.loads((run / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(about | {"world_size": num_ranks}, indent=1))
