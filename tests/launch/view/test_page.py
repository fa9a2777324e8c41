"""Our page: whatever names hold shows as text, and it may talk to Perfetto's page alone."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from urllib.parse import parse_qs

import pytest

from distprof.launch.view.page import page
from distprof.launch.view.place import Place

HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "{{about}}{{nonce}}", "a\u202eb",
           "\"'&\n", "<!--", "]]>"]


class Tags(HTMLParser):
    """Tags, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def text_of(self, tag: str) -> list[str]:
        return [text for (name, _), text in zip(self.tags, self.texts, strict=True) if name == tag]


def about(tags: Tags) -> dict:
    return json.loads(next(text for (tag, more), text in zip(tags.tags, tags.texts, strict=True)
                           if more.get("id") == "about"))


@pytest.mark.parametrize("name", HOSTILE)
def test_names_show_as_text(name):
    plain = Tags(page("trace.json.gz", "run", Place(sentences=("said",)), offline=False).content.decode())
    place = Place(title=name, sentences=(name,), marked=((name, f"SELECT '{name}'"),))
    tags = Tags(page("trace.json.gz", "run", place, offline=False).content.decode())
    assert [tag for tag, _ in tags.tags] == [tag for tag, _ in plain.tags]
    shown = name.replace("\u202e", "\\u202e").replace("\n", "\\n")
    assert tags.text_of("title")[0].strip() == tags.text_of("h1")[0].strip() == f"run: {shown}"
    assert unescape(tags.text_of("li")[0]).strip() == shown
    assert about(tags)["title"] == f"run: {shown}"
    (arguments,) = parse_qs(about(tags)["ui"].partition("?")[2])["startupCommands"]
    assert json.loads(arguments) == [{"id": "dev.perfetto.AddDebugSliceTrack", "args": [f"SELECT '{name}'", name]}]


@pytest.mark.parametrize(("offline", "root", "frames"), [
    (False, "https://ui.perfetto.dev/", "https://ui.perfetto.dev"), (True, "ui/", "'self'")])
def test_it_may_show_perfetto_alone_and_runs_its_own_script_alone(offline, root, frames):
    made = page("trace.json.gz", "run", Place(), offline=offline)
    assert about(Tags(made.content.decode()))["ui"] == f"{root}#!/viewer?"
    policy = dict(part.strip().split(" ", 1) for part in made.policy.split(";"))
    assert policy["frame-src"] == frames and policy["connect-src"] == "'self'" and policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    (nonce,) = re.findall(r"'nonce-(.+)'", policy["script-src"])
    assert set(re.findall(r'nonce="(.*?)"', made.content.decode())) == {nonce}
    again = page("trace.json.gz", "run", Place(), offline=offline)
    assert nonce not in again.policy
    assert "http" not in made.content.decode().replace("https://ui.perfetto.dev", "")


def test_a_place_is_what_perfetto_takes_as_arguments_of_its_address():
    place = Place(ranks=(2,), span_ns=(10, 90), selected_ns=(30, 50), marked=(("step 8", "SELECT 1"),))
    arguments = place.arguments()
    assert {name: value for name, value in arguments.items() if name != "startupCommands"} == {
        "ts": "30", "dur": "20", "visStart": "10", "visEnd": "90"}
    assert json.loads(arguments["startupCommands"]) == [
        {"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^rank 2( |$)"]},
        {"id": "dev.perfetto.AddDebugSliceTrack", "args": ["SELECT 1", "step 8"]}]
    assert Place().arguments() == {}
