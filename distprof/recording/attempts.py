"""A later attempt of a job that torchrun restarts: elastic jobs go on with fewer ranks, or with more."""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON
from distprof.contract.rank_json import RankJson, RunJson
from distprof.errors import DataError
from distprof.files import told


def begin_attempt(run: Path, *, run_id: str, world_size: int) -> None:
    """Makes what an earlier attempt left fit to this one; called by rank 0, before it makes its folder.

    Raises:
        OutputError: Nothing can be written there.
    """
    with told(run):
        for path in run.glob(f"rank*/{RANK_JSON}"):
            try:
                found = rank_json.read(path, RankJson)
            except DataError:
                continue  # merging will say so
            if found.run_id == run_id and found.rank >= world_size:
                shutil.rmtree(path.parent)
        about = rank_json.read(run / RUN_JSON, RunJson)
        if about.world_size not in (None, world_size):
            rank_json.write(run / RUN_JSON, replace(about, world_size=world_size))
