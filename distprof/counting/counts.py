"""The result of `distprof.count`: what was counted, as text, JSON and tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.counting.counted_call import CountedCall
from distprof.reporters.tree_view import TreeView

if TYPE_CHECKING:
    from distprof.reporters.count_tables import Frames
    from distprof.reporters.tree_report import TreeReport


@dataclass(frozen=True, kw_only=True, repr=False)
class Counts(CountedCall):
    """Everything that ran in one call of a model.

    FLOPs are 2 x MACs of contractions (matrix products, convolutions, attention, recurrent layers) on the shapes of
    this process; attention masks do not reduce them. Elementwise work is listed separately, by kind.
    """

    def table(self, *, depth: int | None = 3, top: int | None = None, sort: str = "path",
              columns: Sequence[str] | None = None) -> TreeReport:
        """The modules as a tree and all totals; `print` it.

        Args:
            depth: Levels below the root; None for all.
            top: Only this many modules, the largest by `sort`.
            sort: path (the order of the model), params, macs or flops; for a profile also fwd, bwd or time.
            columns: Keys of `distprof.reporters.tree_columns.TREE_COLUMNS`; None for all that are informative.

        Raises:
            UsageError: There is no such order or column.
        """
        from distprof.reporters.count_report import count_report

        return count_report(self, TreeView(depth=depth, top=top, sort=sort, columns=columns))

    def __str__(self) -> str:
        """The table as plain text of 120 columns."""
        return str(self.table())

    def __rich__(self) -> TreeReport:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Totals, uncounted operators, modules and operators, as plain JSON types.

        `distprof.reporters.count_schema` documents every key.
        """
        from distprof.reporters.count_dict import count_dict

        return count_dict(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_polars(self) -> Frames:
        """Frames `modules` and `ops` with the columns of `distprof.reporters.count_schema`."""
        from distprof.reporters.count_tables import count_frames

        return count_frames(self)

    def write_parquet(self, folder: str | Path) -> None:
        """Writes `modules.parquet` and `ops.parquet` into a folder; each column carries its documentation.

        Raises:
            OutputError: The folder cannot be written.
        """
        from distprof.reporters.count_tables import write_counts

        write_counts(self, Path(folder))
