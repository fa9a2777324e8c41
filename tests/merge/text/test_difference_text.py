"""What `diff` says on top."""

from __future__ import annotations

from types import SimpleNamespace

from distprof.merge.difference.change import Change
from distprof.merge.text.difference.headlines import headlines


def test_the_use_of_the_device_is_a_percentage_as_in_stats():
    rates = {"samples_per_second": Change(base=300, new=400), "flops_per_second": Change(base=None, new=None),
             "mfu": Change(base=0.094, new=0.134)}
    found = SimpleNamespace(notes=(), facts=(), collective_counts={}, step=None, cpu=None, rates=rates, modules=None)
    _, samples, mfu = headlines(found)
    assert samples.startswith("samples/s 300 -> 400: ") and mfu.startswith("MFU 9.4 % -> 13.4 %: +42.6 %")
