"""The folder of one rank while it is written: rows and JSON come in; a complete folder, or a partial one, goes out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.columns import Table
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON, STEP_LINES, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.tables import STEPS
from distprof.errors import OutputError
from distprof.files import sync
from distprof.recording.run_directory import run_id_in


class RankFolder:
    """`rank00003.partial/` that becomes `rank00003/`."""

    def __init__(self, run: Path, rank: int, *, run_id: str, attempt: int, force: bool) -> None:
        self.final = run / rank_folder(rank)
        self.path = run / f"{rank_folder(rank)}{PARTIAL_SUFFIX}"
        self.files: dict[str, int | None] = {}
        """File -> rows; None for files without rows."""
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

    def add_step(self, row: Mapping[str, Any]) -> None:
        """Appends a step at once: it survives a killed process."""
        with (self.path / STEP_LINES).open("a") as lines:
            lines.write(json.dumps(dict(row)) + "\n")

    def write_rows(self, table: Table, rows: Sequence[Mapping[str, Any]], tags: Mapping[str, int],
                   metadata: Mapping[str, str]) -> None:
        """Writes one table."""
        from distprof.contract.parquet import write_table  # pyarrow takes its time: not before something is written

        self.files[table.file] = write_table(self.path, table, rows, tags=tags, metadata=metadata)
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

