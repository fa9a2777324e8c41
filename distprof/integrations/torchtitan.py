"""torchtitan: `Profiler.Config(trace_post_processor=Function.Config(fn=trace_post_processor))` in its configuration.

Its traces merge as they are. The post-processor adds what they lack: the mesh of the job, by `ParallelDims`.
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
"""In which the first brace of a trace is looked for."""


def trace_post_processor(trace_path: str) -> None:
    """Writes sizes of the mesh and the place of this rank into a trace that torchtitan has just exported.

    A file that does not begin as a JSON object is left as it is, and so is one in a job whose mesh no framework says.

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
    """Puts members in front of the first one of the object that the file holds: readers need not go to its end."""
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
