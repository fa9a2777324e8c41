"""Writes the execution traces of a run in Chakra's format, one file a rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from distprof.files import told, write_whole
from distprof.merge.execution.formats.chakra import VERSION, GlobalMetadata
from distprof.merge.execution.formats.chakra_nodes import ExportContext, Written, chakra_nodes
from distprof.merge.execution.formats.protobuf import delimited
from distprof.merge.execution.rank_execution import RankExecution

BUFFER_BYTES = 1 << 20


def write_chakra(path: Path, execution: RankExecution, context: ExportContext, to_common: Any,
                 tags: Mapping[str, str]) -> Written:
    """Writes the file of a rank.

    Args:
        path: Ends with `.<rank>.et`, as simulators want it.
        execution: The rank.
        context: What is the same for all ranks.
        to_common: Turns an array of times of the rank into times of the clock of all ranks.
        tags: Attributes of the whole file.

    Raises:
        OutputError: It cannot be written.
    """
    written = Written()

    def write(temporary: Path) -> None:
        nonlocal written
        written = Written()
        with temporary.open("wb", BUFFER_BYTES) as file:
            file.write(delimited(GlobalMetadata(version=VERSION, attributes=tags).message()))
            for node in chakra_nodes(execution, context, to_common, written):
                file.write(delimited(node.message()))

    with told(path):
        write_whole(path, write)
    return written


def sizes_of(rows: pl.DataFrame) -> dict[int, int]:
    """Bytes of each collective: of the rank that has most, so that all agree."""
    largest = rows.group_by("collective").agg(pl.col("size_bytes").max()).drop_nulls()
    return dict(largest.iter_rows())
