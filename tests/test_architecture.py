"""docs/architecture.md shows the tree as it is: every room, and only files that exist."""

from __future__ import annotations

import re

from support.jobs import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
TOP = ("distprof", "merge", "launch")


def test_every_room_is_on_the_page():
    for top in TOP:
        rooms = [path.parent.relative_to(ROOT / top) for path in (ROOT / top).rglob("__init__.py")
                 if not path.is_relative_to(ROOT / "distprof" / "merge")
                 and not path.is_relative_to(ROOT / "distprof" / "launch")]
        section = PAGE.split(f"\n## {top}/\n")[1].split("\n## ")[0]
        missing = [str(room) for room in rooms if room.parts and f"`{room.as_posix()}/`" not in section
                   and f"`{room.name}/`" not in section and room.as_posix() != "compat"]
        assert not missing, (top, missing)


def test_every_stop_of_the_walks_is_a_file():
    walks = PAGE.split("\n## Four walks through the code\n")[1].split("\n## ")[0]
    stops = re.findall(r"^\d+\. `([a-z_/0-9]+\.py)`", walks, re.MULTILINE)
    assert len(stops) > 20 and not [stop for stop in stops if not (ROOT / stop).is_file()]
    for walk, most in zip(re.split(r"^\*\*", walks, flags=re.MULTILINE)[1:], (8, 10, 10, 10), strict=True):
        assert 5 < len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) <= most
