"""Both merge engines read the same events of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distprof.errors import DataError
from distprof.merge.scan import compiled, plain
from distprof.merge.scan.chrome_file import ChromeFile
from fuzz.merges.check import BrokenError, sources_of
from fuzz.merges.reader import strict
from support.engines import found

SIZES = (1 << 16, 100, 7)


def check_engines_of(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    """Reads the traces of a folder with both.

    Args:
        folder: Of traces, or a run directory.
        sizes: Bytes of the chunks in which a text comes.

    Raises:
        BrokenError: They find other events or columns where neither finds damage, or one fails.
    """
    for source in sources_of(folder):
        for size in sizes:
            _check(source.text.encode("utf-8", "surrogateescape"), size)


def _check(text: bytes, size: int) -> None:
    (events, clean), (others, other_clean) = (_read(engine, text, size) for engine in (compiled, plain))
    if clean and other_clean and events != others:
        pairs = [pair for pair in zip(events, others, strict=False) if pair[0] != pair[1]]
        raise BrokenError("engines differ", f"{len(events)} and {len(others)} events, first: {pairs[:1]}")


def _read(engine: Any, text: bytes, size: int) -> tuple[list[dict[str, Any]], bool]:
    """Columns of all events, with words for numbers; and whether nothing was damaged."""
    chunks = [text[at:at + size] for at in range(0, len(text), size)]
    file = ChromeFile("trace.json", chunks, engine.new_scanner(integers=("External id",), texts=("Input Dims",)))
    events: list[dict[str, Any]] = []
    try:
        for part in file.scanned():
            events += _rows(file.scanner, part)
    except DataError:
        return [], True
    except ValueError as error:
        raise BrokenError(f"{engine.__name__.rpartition('.')[2]} gives no strict JSON", repr(error)) from error
    except Exception as error:
        raise BrokenError(f"{engine.__name__.rpartition('.')[2]} raised {type(error).__name__}", repr(error)) from error
    return events, not file.losses.damaged_events


def _rows(scanner: Any, text: Any) -> list[dict[str, Any]]:
    words = {"name": scanner.names, "category": scanner.categories, "thread": scanner.threads,
             "Input Dims": scanner.texts}
    texts = {key: interner.texts() for key, interner in words.items()}
    columns = found(scanner)
    return [{**{key: texts[key][values[row]] if key in texts and values[row] >= 0 else values[row]
                for key, values in columns.items() if key not in ("start", "end")},
             "event": strict(bytes(text[columns["start"][row]:columns["end"][row]]))}
            for row in range(scanner.num_rows)]
