"""Threads, and none where a process may have little address space."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor

import pytest

from distprof import threads


@pytest.mark.parametrize(("limit", "is_inline"), [
    (resource.RLIM_INFINITY, False), (threads.SCARCE_BYTES, False), (threads.SCARCE_BYTES - 1, True)])
def test_short_memory_starts_no_thread(monkeypatch, limit, is_inline):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit))
    with threads.thread_pool(2) as executor:
        assert isinstance(executor, threads.InlineExecutor if is_inline else ThreadPoolExecutor)
        assert list(executor.map(divmod, [7, 8], [2, 3])) == [(3, 1), (2, 2)]
        with pytest.raises(ZeroDivisionError):
            list(executor.map(divmod, [7], [0]))
