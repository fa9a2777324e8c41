"""Both merge engines, and the results of their scans as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from distprof.compiled.library import is_built
from distprof.merge.scan import compiled, plain
from distprof.merge.scan.scanned_columns import ARRAYS, NO_ARROW, NONE, Status

needs_compiled = pytest.mark.skipif(
    not is_built(), reason="no compiled engine of these C files: run python distprof/compiled/build.py")
ENGINES = [pytest.param(compiled, id="compiled", marks=needs_compiled), pytest.param(plain, id="plain")]


def scans(engine: Any, text: bytes, ends: list[int], **options: Any) -> Iterator[tuple[Any, Status, int, bytes]]:
    """Scans a text that arrives in pieces, continues one byte after damage, and yields after each scan."""
    scanner = engine.new_scanner(**options)
    at = 0
    for end in [*sorted(ends), len(text)]:
        while at <= end:
            # passes no bytes after the end, because they must not matter
            status, behind = scanner.scan(text[:end], at, end)
            assert at <= behind <= end
            yield scanner, status, behind, text[:end]
            at = behind + (status is Status.MALFORMED)
            if status is Status.MORE or (status is Status.ENDED and at >= len(text)):
                break


def found(scanner: Any) -> dict[str, list[Any]]:
    """Returns all rows of the last scan."""
    rows = slice(scanner.num_rows)
    return {**{name: scanner.column(name).tolist() for name in ARRAYS},
            **{key: column[rows].tolist() for key, column in (scanner.integers | scanner.interned).items()}}


def texts(scanner: Any) -> list[list[bytes]]:
    """Returns the texts for the numbers of all scans."""
    return [interner.texts() for interner in (scanner.names, scanner.categories, scanner.threads, scanner.texts)]


def new_numbers(count: int, *, seed: int = 0) -> dict[str, Any]:
    """Returns random columns for `Scanner.rewrite` that drop some rows and keep some numbers."""
    chance = np.random.default_rng(seed)
    numbers = {name: chance.integers(-(2**62), 2**62, count) for name in ("pid", "tid", "ts_ns", "dur_ns")}
    for name in ("ts_ns", "dur_ns"):
        numbers[name][chance.random(count) < 0.3] = NONE
    links = np.where(chance.random(count) < 0.7, NONE, chance.integers(0, 2**53, count))
    return {**numbers, "links": links, "keep": chance.choice([0, 1, 1, 1, NO_ARROW], count).astype(np.uint8)}
