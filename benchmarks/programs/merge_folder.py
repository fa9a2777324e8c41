"""Stands in for `distprof merge FOLDER --out DIR`: traces named rank0_trace.json come in, DIR/trace.json.gz goes out.

To be removed when the command reads folders of plain traces; it is what the command does with a run's traces today.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from isal import igzip

from distprof.merge.chrome import RankTrace, rewrite


def main(folder: str, output: str) -> None:
    """Merges all ranks; times stay as they are."""
    ranks = {int(re.sub(r"\D", "", path.name)): path for path in Path(folder).glob("*.json")}
    Path(output).mkdir()
    traces = [RankTrace(path=ranks[rank], rank=rank, title=f"rank {rank}", origin_ns=0) for rank in sorted(ranks)]
    parts = [Path(output) / f"{trace.rank}.part" for trace in traces]
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=get_context("spawn")) as executor:
        list(executor.map(rewrite, traces, parts))
    with (Path(output) / "trace.json.gz").open("wb") as file:
        for index, part in enumerate(parts):
            file.write(igzip.compress(b",\n" if index else b'{"traceEvents":[\n', mtime=0))
            with part.open("rb") as member:
                shutil.copyfileobj(member, file)
            part.unlink()
        file.write(igzip.compress(b"\n]}\n", mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
