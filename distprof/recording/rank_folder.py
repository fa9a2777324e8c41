"""The folder of one rank while it is written. It gets its final name when it is complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.columns import Table, TableRow
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON, STEP_LINES, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.tables import STEPS, TAGS
from distprof.errors import OutputError
from distprof.files import sync
from distprof.recording.run_directory import run_id_in


class RankFolder:
    """`rank00003.partial/` that becomes `rank00003/`."""

    def __init__(self, run: Path, rank: int, *, run_id: str, attempt: int, force: bool,
                 tags: Callable[[], Mapping[str, Any]]) -> None:
        """Makes the folder.

        Args:
            run: The run directory.
            rank: The global rank.
            run_id: The run that the rank belongs to.
            attempt: How often torchrun had restarted the job; what an earlier attempt left is replaced.
            force: Replaces what another run left.
            tags: What every table carries, asked for when one is written.

        Raises:
            OutputError: There is a folder of this rank already.
        """
        self.final = run / rank_folder(rank)
        self.path = run / f"{rank_folder(rank)}{PARTIAL_SUFFIX}"
        self.files: dict[str, int | None] = {}
        """File -> rows; None for files without rows."""
        self._tags = tags
        self._claim(run_id, attempt, force=force)

    def _claim(self, run_id: str, attempt: int, *, force: bool) -> None:
        for folder in (self.final, self.path):
            # all ranks of a restarted job are recorded anew: parts of two attempts do not fit together
            outdated = attempt > 0 or (force and run_id_in(folder / RANK_JSON) != run_id)
            if outdated and folder.exists():
                shutil.rmtree(folder)
        if self.final.exists():
            raise OutputError(f"expected no folder {self.final}, found one",
                              hint="record into another directory, or replace the run: --force, force=True")
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise OutputError(f"expected no folder {self.path}, found one: two processes with the same rank?",
                              hint="record into another directory, or replace the run: --force, force=True") from None

    def add_step(self, row: TableRow) -> None:
        """Appends a step at once: it survives a killed process."""
        with (self.path / STEP_LINES).open("a") as lines:
            lines.write(json.dumps(row) + "\n")

    def write_rows(self, table: Table, rows: Sequence[TableRow]) -> None:
        """Writes one table, tagged."""
        from distprof.contract.parquet import write_table  # pyarrow takes its time: not before something is written

        tags = self._tags()
        self.files[table.file] = write_table(
            self.path, table, rows, tags={column.name: tags[column.name] for column in TAGS},
            metadata={f"distprof.{name}": str(value) for name, value in tags.items()})
        if table is STEPS:
            (self.path / STEP_LINES).unlink(missing_ok=True)

    def write_rank(self, rank: RankJson) -> None:
        """Writes rank.json, with the files that the folder holds by now."""
        rank_json.write(self.path / RANK_JSON, replace(rank, files=self.files))

    def complete(self) -> None:
        """Gives the folder its final name."""
        sync(self.path)
        self.path.rename(self.final)
        sync(self.final.parent)

