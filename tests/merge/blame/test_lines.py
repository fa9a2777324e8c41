"""The line of the script that makes a rank late is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from support.jobs import SCRIPTS, called, record_run

SCRIPT = SCRIPTS / "slow_lines.py"
LINES = SCRIPT.read_text().splitlines()
KINDS = re.findall(r"# slow: (\w+)$", SCRIPT.read_text(), re.MULTILINE)
NEAR = ("loop", "logging")
"""Kinds in which Python lets other threads look at the begin of the loop alone, a line or two above."""

pytestmark = pytest.mark.job


def named(tmp_path: Path, kind: str) -> tuple[int, list[dict]]:
    """The line that is slow, and what is said of the ranks that are called late."""
    record_run(tmp_path / "run", 2, SCRIPT, kind, flags=("--no-merge",))
    late = [one for one in json.loads(called("comms", "--json", tmp_path / "run").stdout)["culprits"] if one["certain"]]
    return next(number for number, line in enumerate(LINES, 1) if line.endswith(f"# slow: {kind}")), late


def is_right(kind: str, slow: int, said: dict | None) -> bool:
    return said is not None and said["file"] == str(SCRIPT) and (
        slow - (1 if kind in NEAR else 0) <= said["line"] <= slow)


@pytest.mark.core
@pytest.mark.parametrize("kind", ["dataset", pytest.param("regex", marks=pytest.mark.stress)])
def test_the_line_is_named(tmp_path, kind):
    """A busy machine may make the other rank late, and not let this one be called so; the line is seen all the same."""
    slow, late = named(tmp_path, kind)
    said = json.loads(called("waits", "--json", tmp_path / "run").stdout)["lines"]
    assert (said[0]["line"], said[0]["most_rank"]) == (slow, 1) and is_right(kind, slow, said[0])
    assert f"slow_lines.py:{slow} {said[0]['function']}" in called("waits", tmp_path / "run").stdout
    for one in (one for one in late if one["rank"] == 1):
        line = one["causes"][0]["line"]
        assert is_right(kind, slow, line), line
        assert line["spent_ns"] == pytest.approx(said[0]["most_ns"], rel=0.2)
        assert f" more at slow_lines.py:{slow} {line['function']}" in called("comms", tmp_path / "run").stdout
    rows = pl.read_parquet(tmp_path / "run" / "rank00001" / "lines.parquet")
    steps = pl.read_parquet(tmp_path / "run" / "rank00001" / "steps.parquet")
    assert set(rows["step"]) <= set(steps.filter(pl.col("pass").is_in(["trace", "arrivals"]))["step"])


@pytest.mark.stress
def test_of_ten_slow_lines_nine_are_named(tmp_path):
    found = {}
    for kind in KINDS:
        slow, late = named(tmp_path / kind, kind)
        assert {one["rank"] for one in late} <= {1}
        found[kind] = bool(late) and is_right(kind, slow, late[0]["causes"][0]["line"])
    assert len(found) == 10 and sum(found.values()) >= 9, found
