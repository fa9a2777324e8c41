"""A job on an H100 that plants idle time, recorded by torch.profiler, beside its own events and clock.

Each step, the main stream waits for a kernel of another stream that spins for 4 ms, and for a copy of a third; then the
host synchronises, sleeps for 3 ms and goes on.
"""

from __future__ import annotations

import gzip
import json

import pytest

from support.device_arithmetic import Trace, slices_of, span
from support.jobs import ROOT, called

PATH = ROOT / "tests" / "support" / "data" / "h100_streams.json.gz"
TRUTH = json.loads(gzip.decompress(PATH.read_bytes()))["truth"]
MAIN = "7"


@pytest.fixture(scope="module")
def found():
    return {step: json.loads(called("waits", "--json", "--step", step, PATH).stdout)["devices"] for step in range(4)}


@pytest.fixture(scope="module")
def trace():
    return Trace(slices_of(PATH))


@pytest.mark.long
def test_steps_are_as_long_as_between_events_that_the_job_recorded(found):
    for step, devices in found.items():
        row, = devices["by_step"]
        assert row["device_step_ns"] / 1e6 == pytest.approx(TRUTH["device_ms"][step], rel=0.02)
        assert row["is_whole"] == (step < 3) and row["commands"] == 29


def test_parts_and_causes_are_those_of_plain_arithmetic(found, trace):
    parts, causes = trace.parts(), trace.causes()
    for step, devices in found.items():
        row, = devices["by_step"]
        assert [row[f"{name}_ns"] for name in ("device_step", "compute", "copies", "idle")] == pytest.approx(
            [1e3 * parts[step][name] for name in ("step", "compute", "copies", "idle")], abs=2000)
        assert {one: row[f"{one}_idle_ns"] for one in causes[step]} == pytest.approx(
            {one: 1e3 * us for one, us in causes[step].items()}, abs=2000)


def test_the_sleep_is_the_hosts_and_known_to_follow_a_synchronisation(found):
    for devices in found.values():
        row, = devices["by_step"]
        assert 3e6 * TRUTH["sleep_ms"] / 3 < row["after_sync_ns"] <= row["host_idle_ns"]
        assert row["host_idle_ns"] + row["sync_idle_ns"] > 0.95 * row["idle_ns"]  # no stream waits while none runs
    text = called("comms", PATH).stdout
    assert "directly follow a synchronisation that emptied the queue" in text
    assert "between backward and optimizer" in text


def test_the_main_stream_waits_for_the_spinning_kernel_and_for_the_copy(found, trace):
    main = [one for one in trace.device if str(one["tid"]) == MAIN]

    def waited_for(name, step):
        """From when the host had launched what waits and what ran before had ended, until the other stream was done."""
        other, = (one for one in trace.device if name in one["name"] and trace.step(one) == step)
        done = span(other)[1]
        behind = min((one for one in main if one["ts"] >= done), key=lambda one: one["ts"])
        before = max(span(one)[1] for one in main if span(one)[1] <= behind["ts"])
        return max(done - max(before, span(trace.call(behind))[1]), 0)

    for step, devices in found.items():
        shown, = (one for one in devices["streams"] if one["stream"] == MAIN)
        assert shown["for_kernel_ns"] / 1e3 == pytest.approx(waited_for("spin_kernel", step), abs=2)
        assert shown["for_copy_ns"] / 1e3 == pytest.approx(waited_for("HtoD", step), abs=2)
        assert shown["for_communication_ns"] == shown["unshown_ns"] == 0
        assert 0.75 * TRUTH["spin_ms"] < shown["for_kernel_ns"] / 1e6 < 1.02 * TRUTH["spin_ms"]


def test_commands_behind_the_last_step_are_in_none(found):
    assert all(devices["in_no_step"][0]["outside"] == 4 for devices in found.values())
