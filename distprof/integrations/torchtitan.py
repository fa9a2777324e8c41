"""torchtitan: set `Profiler.Config(trace_post_processor=Function.Config(fn=trace_post_processor))` in its
configuration.

Its traces can be merged without this. The post-processor adds the mesh of the job, which they lack, from
`ParallelDims`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from isal import igzip

from distprof.contract.mesh import in_rank_order
from distprof.files import write_whole
from distprof.terminal import say

HEAD_BYTES = 4096
"""The first brace of a trace is searched in this many bytes."""


def trace_post_processor(trace_path: str) -> None:
    """Adds the mesh sizes and the coordinates of this rank to a trace that torchtitan has just exported.

    The file is not changed if it does not begin as a JSON object, or if no framework states the mesh of the job.

    Args:
        trace_path: The file that this rank exported.
    """
    try:
        about = _topology()
        if about is not None:
            _add(Path(trace_path), {"distprof": about})
    except Exception as error:  # noqa: BLE001 (the training job always survives us)
        say(f"could not write the mesh into {trace_path}: {error}")


def _topology() -> dict[str, object] | None:
    from distprof.process.identity import Identity
    from distprof.process.topology import framework_sizes

    identity = Identity.read()
    found = framework_sizes(rank=identity.rank, world_size=identity.world_size)
    if found is None:
        return None
    return {"rank": identity.rank, "world_size": identity.world_size, "topology": in_rank_order(found.sizes),
            "coordinates": in_rank_order(found.coordinates), "topology_source": found.source}


def _add(path: Path, members: dict[str, object]) -> None:
    """Inserts members at the beginning of the object in the file, so that readers need not go to its end."""
    opened: Any = igzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as trace:
        head = trace.read(HEAD_BYTES).lstrip()
        if not head.startswith(b"{"):
            return

        def write(temporary: Path) -> None:
            with opened(temporary, "wb") as file:
                file.write(json.dumps(members).encode()[:-1] + b",\n" + head[1:])
                shutil.copyfileobj(trace, file, 1 << 20)

        write_whole(path, write)
