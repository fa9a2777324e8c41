"""The run directory with its run.json, created by the launcher or else by rank 0; and the folder of a rank in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.conditions import HOSTS
from distprof.contract.paths import (
    MERGED,
    PARTIAL_SUFFIX,
    RANK_FOLDER,
    RANK_JSON,
    REPORT_HTML,
    RUN_JSON,
    STEP_LINES,
    rank_folder,
)
from distprof.contract.rank_json import EventsLeftOut, RankJson
from distprof.contract.rank_summary import SUMMARIES
from distprof.contract.run_json import RunJson, script_command
from distprof.contract.tables import STEPS, TAGS, Table, TableRow
from distprof.contract.watch_state import WATCH as WATCH_FOLDER
from distprof.contract.watch_state import WINDOWS
from distprof.errors import OutputError
from distprof.files import append_whole, hint_of, read_small, sync, told
from distprof.helper import Helper
from distprof.hidden import without_secrets
from distprof.own import time
from distprof.process.identity import git_commit, versions
from distprof.system import opened_at

WATCH = "DISTPROF_WATCH"
NO_ARGV = "DISTPROF_NO_ARGV"
"""Environment variable: if it is set, run.json holds no arguments."""
MERGING = ".merging"
"""A folder in the run directory, created when a launcher merges what several hosts recorded there."""
UPLOADED = ".uploaded"
"""A folder in a run at a URL that says whose upload has ended: objects named after the first and the last rank."""
LOCK = ".claim"
"""A folder in the run directory that serves as a lock: creating a folder is atomic on every file system."""
FOLDERS = re.compile("|".join((
    RANK_FOLDER.pattern, r"attempt\d{4,}", MERGED, re.escape(MERGING), re.escape(UPLOADED), rf"\.{MERGED}\.tmp",
    SUMMARIES, "summaries", HOSTS, WATCH_FOLDER, WINDOWS)))
"""Names of the folders that are removed when a run is replaced, from a directory as from a URL."""


def new_run_id() -> str:
    """Returns a random id for one launch."""
    return uuid.uuid4().hex[:12]


def run_id_of(environ: Mapping[str, str], directory: Path) -> str:
    """Returns an id that is the same on all ranks of a launch: the launcher's, else a hash of torchrun's variables."""
    given = environ.get("DISTPROF_RUN_ID")
    if given:
        return given
    job = environ.get("TORCHELASTIC_RUN_ID", "")
    # address and port may change when torchrun restarts the ranks
    shared = [job] if job not in ("", "none") else [environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    if not any(shared):
        return new_run_id()
    return hashlib.sha256("|".join((*shared, directory.name)).encode()).hexdigest()[:12]


def run_id_in(path: Path) -> str | None:
    """Returns the run that a run.json or rank.json belongs to; None if it does not exist or cannot be read."""
    try:
        found = json.loads(read_small(path))
    except (OSError, ValueError):
        return None
    return found.get("run_id") if isinstance(found, dict) else None


def make_run_directory(directory: Path, launch: RunJson, *, force: bool) -> None:
    """Creates the directory of a run and writes its run.json.

    Folders that other ranks of the same run created in the meantime are left alone.

    Raises:
        OutputError: The directory has other contents and `force` is False or it is not a run; or it cannot be written.
    """
    refuse_file(directory)
    try:
        others = [child for child in (directory.iterdir() if directory.exists() else ())
                  if not _is_of_run(child, launch.run_id) and child.name != LOCK]
        if others:
            _remove(directory, others, force=force)
        directory.mkdir(parents=True, exist_ok=True)
        rank_json.write(directory / RUN_JSON, launch)
    except OSError as error:
        what = f"cannot write the run directory {directory}: {error.strerror}"
        raise OutputError(what, hint=hint_of(error)) from error


def refuse_file(directory: Path) -> None:
    """Raises an OutputError if there is a file in the place of the run directory."""
    try:
        is_file = directory.exists() and not directory.is_dir()
    except OSError:
        return  # creating the directory will report it
    if is_file:
        raise OutputError(f"{directory} is a file, not a directory", hint="choose another --out")


def _is_of_run(child: Path, run_id: str) -> bool:
    just_made = child.name.endswith(PARTIAL_SUFFIX) and not (child / RANK_JSON).exists()
    return just_made or run_id_in(child / RANK_JSON) == run_id


def _remove(directory: Path, others: Sequence[Path], *, force: bool) -> None:
    if not force:
        raise OutputError(f"{directory} is not empty",
                          hint="choose another --out, or pass --force (DISTPROF_FORCE=1) to replace the run")
    if not (directory / RUN_JSON).exists():
        raise OutputError(f"{directory} has files but no {RUN_JSON}: not a run",
                          hint="--force replaces only runs; choose another --out")
    for path in others:
        if path.is_dir() and FOLDERS.fullmatch(path.name):
            shutil.rmtree(path)
        elif path.name == REPORT_HTML:
            path.unlink()
    (directory / RUN_JSON).unlink()  # last, because it identifies the directory as a run


def launch_key_of(environ: Mapping[str, str]) -> str:
    """Returns a key that is equal in all attempts of a job under torchrun and differs between jobs; '' if unknown."""
    job = environ.get("TORCHELASTIC_RUN_ID", "")
    if job in ("", "none"):
        job = ":".join(environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return hashlib.sha256(job.encode()).hexdigest()[:12] if job.strip(":") else ""


def this_launch(*, run_id: str, plan: str, world_size: int | None, sizes: Mapping[str, int],
                key: str = "") -> RunJson:
    """Returns run.json for a job that this process launches, or is the first rank of."""
    return RunJson(run_id=run_id, argv=_arguments(), working_directory=_working_directory(), steps=plan,
                   world_size=world_size, given_sizes=dict(sizes), versions=versions(), hosts=[socket.gethostname()],
                   start_ns=time.time_ns(), launch_key=key, directory_id=new_run_id(), git_commit=_git_commit())


def _arguments() -> list[str]:
    return [] if os.environ.get(NO_ARGV) else without_secrets(sys.argv)


def _git_commit() -> str:
    """Returns the commit of the script's folder; of the working directory if no script is named."""
    script = next((word for word in script_command(sys.argv) if word.endswith(".py")), "")
    return git_commit(Path(_working_directory(), script).parent if script else Path(_working_directory()))


def _working_directory() -> str:
    try:
        return os.fspath(Path.cwd())
    except OSError:
        return ""  # it was removed


class RankFolder:
    """The folder of a rank: `rank00003.partial/`, renamed to `rank00003/` when it is complete."""

    def __init__(self, run: Path, rank: int, *, run_id: str, force: bool,
                 tags: Callable[[], Mapping[str, Any]], helper: Helper | None = None) -> None:
        """Creates the folder.

        Args:
            run: The run directory.
            rank: The global rank.
            run_id: The run that the rank belongs to.
            force: Replaces what another run left there.
            tags: Returns what every table carries; called when one is written.
            helper: Writes the tables; the caller closes it.

        Raises:
            OutputError: There is already a folder of this rank, or it cannot be created.
        """
        self.final = run / rank_folder(rank)
        self.path = run / f"{rank_folder(rank)}{PARTIAL_SUFFIX}"
        self.files: dict[str, int | None] = {}
        """File name -> number of rows; None for files without rows."""
        self.left_out: EventsLeftOut | None = None
        """Events of its timeline that were left out for lack of room."""
        self.is_complete = False
        """True once the folder has its final name."""
        self._tags = tags
        self._helper = helper or Helper()
        self._step_lines: int | None = None
        """File descriptor of the open step file."""
        self._opened: tuple[int, int] | None = None
        with told(run):
            for folder in (self.final, self.path):
                if force and run_id_in(folder / RANK_JSON) != run_id and folder.exists():
                    shutil.rmtree(folder)
            if self.final.exists():
                raise OutputError(f"{self.final} exists already",
                                  hint="record to another directory, or replace the run with --force (force=True)")
            self._make()

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise OutputError(f"{self.path} exists already: do two processes have the same rank?",
                              hint="record to another directory, or replace the run with --force "
                                   "(force=True)") from None

    def add_step(self, row: TableRow) -> None:
        """Appends a step to a file at once, so that it survives if the process is killed."""
        with told(self.path):
            if self._step_lines is None or opened_at(self._step_lines) != self._opened:
                # it stays open, since opening it takes longer than everything else
                self._step_lines = os.open(self.path / STEP_LINES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
                self._opened = opened_at(self._step_lines)
            append_whole(self._step_lines, f"{json.dumps(row)}\n".encode())

    def start_over(self) -> None:
        """Removes all files but rank.json."""
        self.close()
        with told(self.path):
            for name in (*self.files, STEP_LINES):
                (self.path / name).unlink(missing_ok=True)
        self.files, self.left_out = {}, None

    def write_rows(self, table: Table, rows: Sequence[TableRow]) -> None:
        """Writes one table with its tags."""
        with told(self.path):
            self.files[table.file] = self.call("distprof.contract.parquet:write_table", self.path.absolute(), table,
                                               rows, **self.about_tables())
            if table is STEPS:
                self.close()
                (self.path / STEP_LINES).unlink(missing_ok=True)

    def about_tables(self) -> dict[str, dict[str, Any]]:
        """Returns the columns that are equal in all rows of a table, and the metadata of its schema."""
        tags = self._tags()
        return {"tags": {column.name: tags[column.name] for column in TAGS},
                "metadata": {f"distprof.{name}": str(value) for name, value in tags.items()}}

    def call(self, where: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a function, given as `module:name`, in the process that writes tables."""
        return self._helper.call(where, *args, **kwargs)

    def write_rank(self, rank: RankJson) -> None:
        """Writes rank.json, with the files that the folder holds so far."""
        self.close()
        with told(self.path):
            rank_json.write(self.path / RANK_JSON, replace(rank, files=self.files, left_out=self.left_out))

    def close(self) -> None:
        """Closes the step file; the next step opens it again."""
        lines, self._step_lines = self._step_lines, None
        if lines is not None and opened_at(lines) == self._opened:
            os.close(lines)

    def complete(self) -> None:
        """Gives the folder its final name."""
        with told(self.path):
            sync(self.path)
            self.path.rename(self.final)
            sync(self.final.parent)
        self.path, self.is_complete = self.final, True
