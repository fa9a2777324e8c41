"""Causes of idle time beside a simulation that decides them itself."""

from __future__ import annotations

from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.activity.device.commands import commands_of
from distprof.merge.activity.device.rank_device import WINDOWS, OnHost, device_steps
from support.device_simulation import Simulation

SCHEMA = {"name": pl.String, "category": pl.String, "start_ns": pl.Int64, "duration_ns": pl.Int64,
          "correlation": pl.Int64, "process": pl.String, "thread": pl.String}


def shown(job):
    windows = pl.DataFrame([(number, *mark, True) for number, mark in enumerate(job.marks)], schema=WINDOWS,
                           orient="row")
    events = pl.DataFrame(list(job.slices()), schema=SCHEMA, orient="row")
    return device_steps(0, commands_of(events), windows, OnHost())


def within(pieces, window):
    found = defaultdict(int)
    for start, end, *key in pieces:
        found[tuple(key)] += max(min(end, window[1]) - max(start, window[0]), 0)
    return found


def compare(job):
    """Idle time of all whole steps by cause, and waits of streams: what is shown, and what was simulated."""
    devices, spans = shown(job), job.spans()
    rows = {row["step"]: row for row in devices.steps.to_dicts() if row["is_whole"]}
    assert {step: (row["start_ns"], row["start_ns"] + row["device_step_ns"]) for step, row in rows.items()} == spans
    mine, true = defaultdict(int), defaultdict(int)
    idle, waits = list(job.idle()), list(job.stream_waits())
    for step, row in rows.items():
        assert row["idle_ns"] == sum(row[f"{cause}_idle_ns"] for cause in (
            "host", "sync", "stream", "latency", "unshown", "unsent", "unasked"))
        for cause, ns in within(idle, spans[step]).items():
            true[cause] += ns
        for cause, names in {"host": ["host"], "sync": ["sync"], "short": ["stream", "latency"],
                             "unshown": ["unshown"]}.items():
            mine[(cause,)] += sum(row[f"{name}_idle_ns"] for name in names)
        for key, ns in within(waits, spans[step]).items():
            true[key] += ns
    for row in devices.streams.filter(pl.col("step").is_in(list(rows))).to_dicts():
        for kind in ("kernel", "copy", "communication"):
            mine[(int(row["stream"]), kind)] += row[f"for_{kind}_ns"]
    return mine, true


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_idle_time_has_the_cause_that_was_simulated(seed):
    mine, true = compare(Simulation(seed))
    for key in {one for one in (*mine, *true) if len(one) == 1}:
        assert mine[key] == true[key], (key, dict(mine), dict(true))


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_the_profiler_did_not_note_is_not_said_to_be_the_hosts(seed):
    mine, true = compare(Simulation(seed, loses=True))
    for cause in ("host", "sync"):
        assert mine[cause,] == true[cause,]
    assert mine["unshown",] == pytest.approx(true["unshown",], rel=0.03, abs=40_000)


@pytest.mark.long
def test_streams_wait_for_what_was_simulated():
    """Which command a stream waited for is inferred, so that single ones may be wrong."""
    mine, true = defaultdict(int), defaultdict(int)
    for seed in range(200):
        for sums, found in zip((mine, true), compare(Simulation(seed)), strict=True):
            for key, ns in found.items():
                if len(key) == 2:
                    sums[key] += ns
    assert min(true.values()) > 0
    assert {key: mine[key] for key in true} == pytest.approx(dict(true), rel=0.03)
    assert sum(ns for key, ns in mine.items() if key not in true) < 0.01 * sum(true.values())
