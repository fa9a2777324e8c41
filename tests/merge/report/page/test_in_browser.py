"""The page in a real Chromium: no errors, no requests, readable narrow and wide, by keyboard and screen reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distprof.merge.report.page import render
from support.browser import PHONE, WIDE, Opened
from support.jobs import PATIENCE_S
from support.report_documents import HOSTILE, bare_document, differences, document, numbers, with_names

pytestmark = pytest.mark.job
SIZES = {"wide": WIDE, "phone": PHONE}


MADE = {"whole": document(), "bare": bare_document(), "hostile": with_names(document(), HOSTILE)}


@pytest.mark.parametrize(
    ("kind", "size", "scheme"),
    [
        pytest.param(kind, size, scheme, marks=() if scheme == "light" or kind == "whole" else pytest.mark.stress)
        for kind in MADE
        for size in SIZES
        for scheme in ("light", "dark")
    ],
)
def test_it_is_drawn_and_nothing_sticks_out(opened: Any, kind: str, size: str, scheme: str) -> None:
    made = MADE[kind]
    page = opened(made, viewport=SIZES[size], color_scheme=scheme).page
    assert page.locator("text=could not be drawn").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size]["width"]
    assert page.locator("section").count() == (15 if made["totals"] else 4)


def test_a_long_path_does_not_stick_out(opened: Any) -> None:
    path = "could not write the whole timeline to /" + "a_folder_of_mine/" * 9
    finding = document()["findings"][0] | {"detail": path}
    made = document() | {"missing": [path], "findings": [finding]}
    page = opened(made, viewport=PHONE).page
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_long_names_of_kernels_are_cut_and_shown_whole_to_who_points_at_them(opened: Any) -> None:
    kernel = "void at::native::reduce_kernel<" + "at::native::func_wrapper_t<float>, " * 20 + ">"
    page = opened(with_names(document(), kernel), viewport=WIDE).page
    cells = page.locator("#operators tbody .name span")
    assert cells.first.get_attribute("title") == kernel
    assert kernel.startswith(cells.first.inner_text().rstrip("…")) and len(cells.first.inner_text()) == 100


def test_axe_finds_nothing(browser: Any, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    file = tmp_path / "report.html"
    file.write_text(render.page(document()), "utf-8")
    for scheme in ("light", "dark"):
        opened = Opened(
            browser, file, viewport=WIDE, color_scheme=scheme, bypass_csp=True
        )  # for axe's own script
        opened.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        found = axe.Axe().run(opened.page).response["violations"]
        assert [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found] == []
        opened.page.context.close()


def test_numbers_drawn_are_those_of_the_document(opened: Any) -> None:
    made = document()
    page = opened(made, viewport=WIDE).page
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    values = page.eval_on_selector_all("[data-view] data", "all => all.map(one => Number(one.value))")
    known = set(map(float, numbers(made))) | differences(made)
    assert len(values) > 100 and {value for value in values if value not in known} == set()




def test_tables_are_sorted_and_searched(opened: Any) -> None:
    page = opened(document(), viewport=WIDE).page
    operators = page.locator("#operators table").first
    first = operators.locator("tbody th").first
    assert first.inner_text() == "aten::mm"
    operators.get_by_role("button", name="calls").click()
    operators.get_by_role("button", name="calls").click()
    assert first.inner_text() == "aten::copy_"
    page.get_by_role("searchbox", name="find operator or class").fill("head")
    assert operators.locator("tbody tr").count() == 1


def test_modules_are_found_entered_and_shown_of_one_rank(opened: Any) -> None:
    page = opened(document(), viewport=WIDE).page
    flame = page.locator(".flame")
    box = flame.get_by_role("button", name="mlp, MLP: ")
    assert "5.00 ms" in box.get_attribute("aria-label")
    page.get_by_label("of", exact=True).select_option("1")
    assert "6.90 ms" in box.get_attribute("aria-label")
    page.get_by_label("by", exact=True).select_option("params")
    assert "600" in box.get_attribute("aria-label")
    page.get_by_placeholder("module or class").fill("linear")
    assert flame.locator("button.found").count() == 2 and flame.locator("button.faded").count() == 2
    before = flame.locator("button").count()
    box.focus()
    page.keyboard.press("Enter")
    assert flame.locator("button").count() < before
    page.get_by_role("button", name="back to the whole model").click()
    assert flame.locator("button").count() == before


def test_collectives_are_read_by_keyboard(opened: Any) -> None:
    page = opened(document(), viewport=WIDE).page
    lanes = page.locator("#collectives figure")
    lanes.locator("[tabindex]").first.focus()
    page.keyboard.press("ArrowRight")
    said = lanes.locator("figcaption").inner_text()
    assert (
        "rank 0: all_reduce" in said
        and "waited 3.00 ms" in said
        and "last to arrive: rank 1" in said
        and "in mlp" in said
    )
    page.get_by_label("step", exact=True).select_option("1")
    page.keyboard.press("Tab")
    assert "Point at a call" in lanes.locator("figcaption").inner_text()


def test_the_whole_job_is_read_by_keyboard_and_findings_lead_there(opened: Any) -> None:
    page = opened(document(), viewport=WIDE).page
    chart = page.locator("#whole_job figure")
    chart.locator("[tabindex]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    said = chart.locator("figcaption")
    assert said.inner_text().startswith("steps 64 to 83, 0.4 s after the first: time of a step 10.00 ms")
    assert "longest step 90.00 ms" in said.inner_text() and said.inner_text().endswith("; checkpoint")
    page.get_by_role("button", name="show: rank 1").click()
    assert page.get_by_label("rank", exact=True).input_value() == "1"
    assert page.get_by_label("part", exact=True).input_value() == "forward"
    assert "steps 84 to 103" in said.inner_text() and "rank 1: 8.00 ms" in said.inner_text()
    page.get_by_label("across", exact=True).select_option("steps")
    chart.locator("[tabindex]").first.focus()
    for key in ("+", "-", "0", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    assert "rank 0: 3.00 ms" in said.inner_text()
    for moved in range(100):  # the page may still scroll to what has the focus
        box = chart.locator("canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] - 20 - moved % 2, box["y"] + 80)
        if "steps 104 to 123" in said.inner_text():
            break
        page.wait_for_timeout(50)
    assert "steps 104 to 123" in said.inner_text() and "recorded in window 1" in said.inner_text()


def test_a_whole_job_of_a_million_steps_and_64_ranks_is_drawn(opened: Any) -> None:
    made, size = document(), 2000
    job = made["whole_job"]
    line = [2_000 + place % 97 for place in range(size)]
    job |= {"unit_ns": 10_000, "ranks": list(range(64)), "of_rank": {str(rank): dict.fromkeys(
        ("step", "longest", "data", "forward", "backward", "optimizer"), line) for rank in range(64)}}
    steps = [500 * place for place in range(size)]
    job["points"] = {"first_step": steps, "last_step": [step + 499 for step in steps],
                     "begin_ns": [step * 20_000_000 for step in steps],
                     "end_ns": [(step + 500) * 20_000_000 for step in steps],
                     **dict.fromkeys(("low", "from", "median", "to", "longest"), line)}
    assert len(render.page(made)) < 5_000_000
    page = opened(made, viewport=WIDE).page
    page.locator("#whole_job figure [tabindex]").first.focus()
    page.keyboard.press("ArrowRight")
    assert "steps 0 to 499" in page.locator("#whole_job figcaption").inner_text()


def test_the_heat_map_is_read_by_keyboard(opened: Any) -> None:
    page = opened(document(), viewport=WIDE).page
    chart = page.locator("#steps figure")
    chart.locator("[tabindex]").first.focus()
    page.keyboard.press("ArrowDown")
    assert "rank 1, step 2 (trace): time of the step 9.10 ms" in chart.locator("figcaption").inner_text()


def test_the_theme_can_be_switched_and_it_prints(opened: Any, tmp_path: Path) -> None:
    page = opened(document(), viewport=WIDE, color_scheme="light").page
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert page.pdf()[:4] == b"%PDF"


def test_without_scripts_findings_and_totals_are_there(opened: Any, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render.page(document()), "utf-8")
    page = browser.new_context(java_script_enabled=False).new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    page.goto(file.as_uri())
    text = page.locator("main").inner_text()
    assert "Rank 1 delays the job" in text and "1.00 K" in text
    page.context.close()


def test_a_document_of_1024_ranks_is_drawn(opened: Any) -> None:
    made = document()
    ranks = list(range(64))
    made["heat_map"]["by"] = {
        "rank": [rank for rank in ranks for _ in range(16)],
        "step": list(range(16)) * 64,
        "pass": ["trace"] * 1024,
        **{key: [1_000_000 + 10 * cell for cell in range(1024)] for key in ("duration_ns", "waiting_ns", "compute_ns")},
    }
    calls, parts = 300, 300 * 64
    step = made["collectives"]["steps"][0]
    step["calls"] = {
        "collective": list(range(calls)),
        **{key: [0] * calls for key in ("op", "group", "module", "late_rank")},
        "size_bytes": [4096] * calls,
    }
    step["parts"] = {
        "call": [part // 64 for part in range(parts)],
        "rank": [part % 64 for part in range(parts)],
        "arrival_ns": [30_000 * (part // 64) for part in range(parts)],
        "full_ns": [30_000 * (part // 64) + 9_000 for part in range(parts)],
        "end_ns": [30_000 * (part // 64) + 20_000 for part in range(parts)],
    }
    made["world_size"], made["left_out"] = 1024, ["64 of 1024 ranks are shown"]
    opened_page = opened(made, viewport=WIDE)
    assert len(json.dumps(made)) < 5_000_000
    assert "64 of 1024 ranks are shown" in opened_page.page.locator("#missing").inner_text()
