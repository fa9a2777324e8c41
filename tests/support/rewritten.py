"""Rewrites assertions of test files once, not in every worker: saves half a minute in each, in a fresh clone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite  # pytest has no public way to write such a file without running it


def share(config: pytest.Config, tests: Path) -> None:
    """Rewrites this worker's share of the test files; when it collects tests, it reads the shares of the others."""
    if sys.dont_write_bytecode:
        return
    number, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    state = config.stash[rewrite.assertstate_key]
    for file in sorted(tests.rglob("test_*.py"))[number::workers]:
        cache = rewrite.get_cache_dir(file)
        kept = cache / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite.try_makedirs(cache) and rewrite._read_pyc(file, kept, state.trace) is None:
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source, kept)
