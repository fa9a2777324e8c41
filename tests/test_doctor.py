"""`distprof doctor` and the numbers people read."""

from __future__ import annotations

import json

import pytest
from conftest import distprof

from distprof.units import duration, percent, si, size


def test_a_healthy_machine_is_told_so(tmp_path):
    done = distprof("doctor", "--out", tmp_path)
    assert done.returncode == 0, done.stdout
    topics = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("ok", "warn", "fail"))]
    assert topics == ["python", "packages", "torch", "device", "backend", "timeline", "disk", "write", "clock"]
    assert "gloo" in done.stdout and "Next: distprof run" in done.stdout


def test_a_place_that_takes_no_files_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    done = distprof("doctor", "--json", "--out", tmp_path / "file")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["healthy"] is False
    assert [one["topic"] for one in found["findings"] if one["level"] == "fail"] == ["write"]


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (7, "7"), (999, "999"), (1000, "1.00 K"), (1057536, "1.06 M"), (999_999, "1.00 M"), (2.5, "2.50"),
    (1.5e21, "1500.00 E"), (None, "-")])
def test_numbers(value, text):
    assert si(value) == text


def test_units():
    assert size(1106944) == "1.11 MB" and size(0) == "0 B"
    assert [duration(ns) for ns in (5, 1500, 2_500_000, 3e9, None)] == ["5 ns", "1.50 us", "2.50 ms", "3.00 s", "-"]
    assert percent(0.3322) == "33.2 %" and percent(None) == "-"
