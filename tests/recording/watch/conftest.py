"""Rows that end soon."""

from __future__ import annotations

import pytest

from distprof.recording.watch import rows


@pytest.fixture
def short_rows(monkeypatch):
    """Rows of steps of a hundredth of a second."""
    monkeypatch.setattr(rows, "ROW_NS", 10_000_000)
    monkeypatch.setattr(rows, "BATCH_NS", 50_000_000)
