"""Makes the directory of a run with its run.json: the launcher does, else rank 0."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from distprof.contract import rank_json
from distprof.contract.paths import MERGED, PARTIAL_SUFFIX, RANK_JSON, RUN_JSON
from distprof.contract.rank_json import RunJson
from distprof.errors import OutputError
from distprof.process.identity import versions


def new_run_id() -> str:
    """A random id for one launch."""
    return uuid.uuid4().hex[:12]


def run_id_of(environ: Mapping[str, str], directory: Path) -> str:
    """The same id on all ranks of one launch: the launcher's, else a hash of what torchrun gives to all of them."""
    given = environ.get("DISTPROF_RUN_ID")
    if given:
        return given
    shared = [environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")]
    if not any(shared):
        return new_run_id()
    return hashlib.sha256("|".join((*shared, directory.name)).encode()).hexdigest()[:12]


def run_id_in(path: Path) -> str | None:
    """The run that a run.json or rank.json belongs to; None where there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found.get("run_id") if isinstance(found, dict) else None


def make_run_directory(directory: Path, launch: RunJson, *, force: bool) -> None:
    """Makes the directory of a run and writes its run.json.

    Folders that other ranks of the same run made in the meantime are left alone.

    Raises:
        OutputError: There is something already and `force` is False or it is no run; or it cannot be written.
    """
    try:
        if directory.exists() and not directory.is_dir():
            raise OutputError(f"expected a directory at {directory}, found a file", hint="choose another --out")
        others = [child for child in (directory.iterdir() if directory.exists() else ())
                  if not _is_of_run(child, launch.run_id)]
        if others:
            _remove(directory, others, force=force)
        directory.mkdir(parents=True, exist_ok=True)
        rank_json.write(directory / RUN_JSON, launch)
    except OSError as error:
        raise OutputError(f"cannot write the run directory {directory}: {error.strerror}",
                          hint="choose another --out, or make room there") from error


def _is_of_run(child: Path, run_id: str) -> bool:
    just_made = child.name.endswith(PARTIAL_SUFFIX) and not (child / RANK_JSON).exists()
    return just_made or run_id_in(child / RANK_JSON) == run_id


def _remove(directory: Path, others: Sequence[Path], *, force: bool) -> None:
    if not force:
        raise OutputError(f"expected a new or empty directory, found {directory} with files in it",
                          hint="choose another --out, or pass --force to replace the run")
    if not (directory / RUN_JSON).exists():
        raise OutputError(f"expected a run in {directory}, found other files and no {RUN_JSON}",
                          hint="--force replaces runs only; choose another --out")
    for path in others:
        if path.is_dir() and (path.name in (MERGED, f".{MERGED}.tmp") or path.name.startswith("rank")):
            shutil.rmtree(path)
    (directory / RUN_JSON).unlink()  # last: until then the directory is known for a run


def this_launch(*, run_id: str, plan: str, world_size: int | None, sizes: Mapping[str, int]) -> RunJson:
    """What run.json holds of a job that this process launches, or is the first rank of."""
    return RunJson(run_id=run_id, argv=list(sys.argv), working_directory=os.fspath(Path.cwd()), steps=plan,
                   world_size=world_size, given_sizes=dict(sizes), versions=versions(), hosts=[socket.gethostname()],
                   start_ns=time.time_ns())
