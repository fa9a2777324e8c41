"""Loops as most people write them: the late rank's place is named, five times of five, with two ranks and with four."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.jobs import SCRIPTS, called, record_run, torchrun

SCRIPT = SCRIPTS / "usual_loop.py"
CAUSES = {"accumulated": ("host", "between forward and backward"),
          "before zero_grad": ("host", "between data and forward"), "module": ("forward", "1"),
          "behind": ("host", "between optimizer and data"), "profiled": ("forward", None)}
"""Where rank 1 sleeps 30 ms, and what is to be said."""

pytestmark = [pytest.mark.stress]


def said(folder: Path, place: str, num_ranks: int) -> list[tuple[int, str, str | None]]:
    if place == "profiled":
        torchrun(num_ranks, SCRIPT, place, folder)
    else:
        record_run(folder, num_ranks, SCRIPT, place, flags=("--no-merge",))
    found = json.loads(called("comms", "--json", folder).stdout)["culprits"]
    return [(one["rank"], one["causes"][0]["kind"], one["causes"][0]["where"]) for one in found if one["certain"]]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("place", CAUSES)
def test_the_place_is_named(tmp_path, place, num_ranks):
    each = [said(tmp_path / str(number), place, num_ranks) for number in range(5)]
    assert each == [[(1, *CAUSES[place])]] * 5
