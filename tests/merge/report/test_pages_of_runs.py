"""Pages of recorded jobs in a real Chromium: every view is drawn, and every number is one of `report --json`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.browser import PHONE, WIDE
from support.jobs import SCRIPTS, called, record_run
from support.report_documents import differences, in_units, numbers

pytestmark = pytest.mark.job
PASSES = ("--steps", "wait=1,count=1,time=2,memory=1,trace=3,arrivals=0")


@pytest.fixture(scope="module")
def pipeline(recordings):
    """Four stages under 1F1B."""
    script = SCRIPTS / "timed_pipeline.py"
    return recordings.get("timed_pipeline", lambda out: record_run(out, 4, script, "1f1b", "1", flags=PASSES))


@pytest.fixture(params=[
    "everything", "pipeline", *(pytest.param(name, marks=pytest.mark.stress) for name in ("tp", "two_late_ranks"))])
def document(request) -> dict[str, Any]:
    done = called("report", "--json", request.getfixturevalue(request.param))
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def test_every_view_is_drawn_with_the_numbers_of_the_document(opened, document):
    for size, scheme in ((WIDE, "light"), (PHONE, "dark")):
        report = opened(document, viewport=size, color_scheme=scheme)
        assert report.page.locator("text=could not be drawn").count() == 0
        assert report.page.evaluate("document.documentElement.scrollWidth") == size["width"]
    report.unfold()
    values = report.page.eval_on_selector_all("main data", "all => all.map(one => Number(one.value))")
    known = set(map(float, numbers(document))) | differences(document) | in_units(document)
    assert len(values) > 100 and {value for value in values if value not in known} == set()
    drawn = report.page.eval_on_selector_all("[data-view]", "all => all.map(one => one.dataset.view)")
    assert {"steps", "collectives", "modules", "operators", "critical_path"} <= set(drawn)
