"""accelerate: `ProfileKwargs(on_trace_ready=trace_handler("traces"))` writes traces that `distprof merge` reads.

The handler works with every `torch.profiler.profile` of a job, with or without accelerate.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isal import igzip

from distprof.files import write_whole
from distprof.terminal import say

COMPRESSION = 1
"""isal's levels range from 0 to 3; a low one, because timelines are large and the job waits."""


def trace_handler(folder: str | os.PathLike[str]) -> Callable[[Any], None]:
    """Returns a function that a profiler calls with each trace that is ready.

    The trace of rank 3 becomes `FOLDER/rank3_trace.json.gz`; with a schedule, which has a trace per cycle,
    `FOLDER/iteration_20/rank3_trace.json.gz` with the number of the step. Files are written completely or not at all.
    If one cannot be written, a line on stderr says so, and the job continues.

    Args:
        folder: The folder, the same on all ranks; created if missing.
    """
    def on_trace_ready(profiler: Any) -> None:
        rank = _rank()
        where = Path(folder, f"iteration_{profiler.step_num}") if profiler.step_num else Path(folder)
        try:
            where.mkdir(parents=True, exist_ok=True)
            write_whole(where / f"rank{rank}_trace.json.gz", lambda path: _write(profiler, path))
        except Exception as error:  # noqa: BLE001 (the training job always survives us)
            say(f"rank {rank}: could not write the trace to {where}: {error}")

    return on_trace_ready


def _rank() -> int:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    return int(os.environ.get("RANK", "0"))


def _write(profiler: Any, path: Path) -> None:
    plain = path.with_name(f"{path.name}.json")  # the profiler chooses the format by the suffix
    try:
        profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as trace, igzip.open(path, "wb", compresslevel=COMPRESSION) as compressed:
            shutil.copyfileobj(trace, compressed, 1 << 20)
    finally:
        plain.unlink(missing_ok=True)
