"""Measured collectives piece by piece: of many ranks they lie on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from distprof.merge.spill import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePieces:
    """`MERGED_COLLECTIVES` in pieces of whole collectives, in their order; texts and lists of ranks are categories."""

    frames: Iterable[pl.DataFrame]
    """The pieces, as often as they are asked for."""
    num_rows: int
    """Of all pieces."""
    begins_ns: Sequence[int] = ()
    """First arrival in each piece but the first, ascending."""
    folder: Path | None = None
    """Where files can be made of what is made of them; None: they are few enough to be held."""

    @classmethod
    def held(cls, rows: pl.DataFrame) -> CollectivePieces:
        """All in one piece."""
        return cls(frames=(rows,), num_rows=len(rows))

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return iter(self.frames)

    def where(self, kept: pl.Expr) -> CollectivePieces:
        """The rows for which an expression is true."""
        return replace(self, frames=_Where(frames=self.frames, kept=kept))

    def whole(self) -> pl.DataFrame:
        """All rows, in memory."""
        return pl.concat(list(self), rechunk=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    frames: Iterable[pl.DataFrame]
    kept: pl.Expr

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return (frame.filter(self.kept) for frame in self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesOnDisk:
    """Reads pieces from files, one after the other."""

    parts: Parts
    """Rows in any order, with a column for their order in a rank."""
    order: Sequence[str]

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for number in self.parts.numbers:
            yield self.parts.read(number).sort(self.order, maintain_order=True).drop(self.order[-1])
