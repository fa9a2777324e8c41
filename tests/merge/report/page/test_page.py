"""The page as text: what is in it, what cannot be in it."""

from __future__ import annotations

import json
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from distprof.merge.report.page import render
from distprof.merge.text.phrases import capitalized
from support.perfetto import NODE
from support.report_documents import HOSTILE, bare_document, document, numbers, with_names


class Tags(HTMLParser):
    """Elements and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize(
    "made", [document(), bare_document(), with_names(document(), HOSTILE)], ids=["whole", "bare", "hostile"]
)
def test_the_page_holds_the_document_and_loads_nothing(made: dict[str, Any]) -> None:
    text = render.page(made)
    tags = Tags(text)
    data, script = tags.named("script")
    assert data == {"type": "application/json", "id": "document"} and script == {}
    assert json.loads(text.split('id="document">')[1].split("</script>")[0]) == made
    assert "default-src 'none'" in str(next(meta["content"] for meta in tags.named("meta") if meta.get("http-equiv")))
    assert not any("src" in attributes for _, attributes in tags.tags)
    links = {attributes.get("href") or "" for tag in ("a", "link") for attributes in tags.named(tag)}
    assert all(link.startswith("#") or link == "data:," for link in links)


def test_names_stay_text() -> None:
    text = render.page(with_names(document(), HOSTILE))
    assert "alert(1)</script>" not in text and "\u202e" not in text and "\u2028" not in text
    assert "{{ 7 * 7 }}" in text
    title = "".join(
        Tags(text).texts[
            : Tags(text).texts.index(next(one for one in Tags(text).texts if "distprof report" in one)) + 1
        ]
    )
    assert r"\n\u202e\u2028" in title


def test_every_number_on_the_static_page_is_in_the_document() -> None:
    made = document()
    known = {json.dumps(number) for number in numbers(made)}
    values = [attributes["value"] for attributes in Tags(render.page(made)).named("data")]
    assert len(values) > 20
    assert {value for value in values if value not in known} == set()



def test_sections_without_data_say_why_or_are_left_out() -> None:
    tags = Tags(render.page(bare_document()))
    assert [section["id"] for section in tags.named("section")] == ["findings", "steps", "modules", "missing"]
    assert {"No steps were recorded", "No modules were recorded"} <= set(tags.texts)
    assert any("There are no findings" in text for text in tags.texts)


@pytest.mark.parametrize(("seconds", "said"), [(0, None), (41, "41 s"), (125, "2 min 5 s"), (7530, "2 h 5 min")])
def test_the_top_says_when_how_long_and_of_which_commit(seconds: int, said: str | None) -> None:
    made = document()
    made["run"]["ended_ns"] = made["run"]["started_ns"] + seconds * 10**9
    texts = Tags(render.page(made)).texts
    shown = texts[texts.index("late") + 1:texts.index("train.py --steps 4")]
    assert [text for text in shown if text.strip()][:3 + bool(said)] == [
        "2023-11-14 22:13 UTC", *([f"ran {said}"] if said else []), "commit 9fceb02d0ae5",
        "steps 0-43 of 320 recorded"]


def test_what_was_never_noted_is_not_said() -> None:
    made = document() | {"steps": None, "peak_memory": None}
    made["run"] |= {"started_ns": None, "ended_ns": None, "git_commit": None}
    assert "2 ranks" in (texts := Tags(render.page(made)).texts)
    assert not any(word in text for text in texts[:texts.index("2 ranks")] for word in ("UTC", "ran ", "commit"))


def test_the_largest_peak_of_a_device_or_else_of_a_process_is_a_figure() -> None:
    made = document()
    assert "910.00 MB" in (texts := Tags(render.page(made)).texts) and "peak memory of a rank's process" in texts
    made["peak_memory"][0]["device_bytes"] = 5 * 10**9
    assert "5.00 GB" in (texts := Tags(render.page(made)).texts) and "peak device memory of a rank" in texts


def test_links_of_findings_lead_to_sections() -> None:
    tags = Tags(render.page(document()))
    anchors = {attributes["id"] for _, attributes in tags.tags if "id" in attributes}
    targets = {(attributes["href"] or "#")[1:] for attributes in tags.named("a")}
    assert targets <= anchors and {"blame", "clock"} <= targets


def test_the_page_without_its_document_is_small() -> None:
    assert len(render.page(bare_document())) < 100_000


def test_units_of_the_script_are_those_of_the_terminal() -> None:
    from distprof.units import duration, percent, si, size

    values = [0, 1, 12.5, 999, 999.4, 999.5, 999.994, 999.996, 1000, 123456, 999_996, 1057536,
              999_999_999, 1e12, 3.2e15, -5e6]
    script = (Path(render.__file__).parent / "scripts" / "format.js").read_text()
    kinds = '["ns", "bytes", "count"].map(kind => shown(one, kind)).concat(shown(one / 1000, "ratio"))'
    code = f"{script}\nconsole.log(JSON.stringify({json.dumps(values)}.map(one => {kinds})));"
    done = subprocess.run([str(NODE), "-e", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[duration(one), size(one), si(one), percent(one / 1000)] for one in values]


@pytest.mark.parametrize(("said", "shown"), [
    ("rank 2 is late", "Rank 2 is late"), ("`model` forward takes", "`model` forward takes"), ("42 steps", "42 steps"),
    ("all_reduce of 1 MB", "all_reduce of 1 MB"), ("layers.1 is late", "layers.1 is late"), ("", ""),
    ("train.py:12 takes", "train.py:12 takes"), ("stuck: rank 0", "Stuck: rank 0")])
def test_sentences_begin_with_a_capital_and_names_stay_as_they_are(said: str, shown: str) -> None:
    assert capitalized(said) == shown


def test_names_in_sentences_are_set_as_code() -> None:
    made = document()
    made["findings"][0] |= {"text": "`a<b>` takes long", "detail": "an odd ` is left"}
    text = render.page(made)
    assert "<code>a&lt;b&gt;</code> takes long" in text and "an odd ` is left" in text


@pytest.mark.parametrize("said", ["stuck: rank 0 waits in all_reduce #3", "rank 0 gave up: KeyboardInterrupt", None])
def test_a_hang_is_said_in_its_own_words_if_there_are_any(said: str | None) -> None:
    hang = {"sentence": said, "lines": [], "hangs": [], "ranks": [{"rank": 0, "failure": "Connection closed"}]}
    texts = Tags(render.page(document() | {"hang": hang, "findings": []})).texts
    assert said is None or f" {said[0].upper()}{said[1:]}" in texts
    assert ("problem" in texts) == (said is not None) and "stuck" not in texts


def test_lines_of_a_detail_are_lines() -> None:
    finding = document()["findings"][0] | {"detail": "first line\nsecond line\u202e"}
    texts = Tags(render.page(document() | {"findings": [finding]})).texts
    assert "first line" in texts and "second line\\u202e" in texts


@pytest.mark.parametrize(("section", "shown"), [("step_parts", "steps"), ("hang", "blame"), ("clock", "clock")])
def test_a_finding_leads_to_the_section_that_draws_its_part(section: str, shown: str) -> None:
    finding = document()["findings"][0] | {"section": section}
    links = Tags(render.page(document() | {"findings": [finding]})).named("a")
    assert [one["href"] for one in links if str(one.get("aria-label")).startswith("Evidence")] == [f"#{shown}"]
