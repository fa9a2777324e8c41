"""The tests that `make test` leaves to CI: the list fits the tree, and is made of what was measured."""

from __future__ import annotations

import json

from support import costs
from support.jobs import ROOT

HERE = "tests/test_costs.py"


def test_the_list_names_functions_that_are_there():
    texts = {}
    for name, few in costs.left_to_ci():
        file, _, function = name.partition("::")
        text = texts.setdefault(file, (ROOT / file).read_text())
        assert f"\ndef {function}(" in text and few >= 0, f"{name} is not there: make costs"


class Item:
    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.marks = nodeid, [*marks]
        self.add_marker = self.marks.append

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def test_forms_behind_those_that_stay_are_marked(monkeypatch, tmp_path):
    (tmp_path / "list").write_text(f"1 {HERE}::test_some\n0 {HERE}::test_none\n")
    monkeypatch.setattr(costs, "LEFT_TO_CI", tmp_path / "list")
    items = [Item(f"{HERE}::test_some[a]", "stress"), Item(f"{HERE}::test_some[b]"), Item(f"{HERE}::test_some[c]"),
             Item(f"{HERE}::test_none"), Item(f"{HERE}::test_all[a]")]
    costs.leave_to_ci(items)
    assert [one.marks for one in items] == [["stress"], [], ["thorough"], ["thorough"], []]


def test_what_costs_more_than_there_is_for_it_is_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(costs, "BUDGET_S", 0.8)
    monkeypatch.setattr(costs, "FORM_S", 2.4)
    found = next(one for one in costs.needed() if one.startswith("tests/"))
    rows = [("few[a]", 0.3), ("few[b]", 0.3), ("few[c]", 0.1), ("few[c]", 0.5), ("cheap", 0.7), ("dear", 1.0),
            ("one_of[a]", 2.0), ("one_of[b]", 2.0), ("none_of[a]", 5.0), ("none_of[b]", 5.0), ("core", 9.0),
            ("core", None)]
    for number, row in enumerate(rows):
        with (tmp_path / f"{number % 2}.jsonl").open("a") as file:
            file.write(json.dumps((f"{HERE}::test_{row[0]}", row[1])) + "\n")
    (tmp_path / "2.jsonl").write_text(json.dumps([found, 9.0]) + "\n")
    assert list(costs.chosen(tmp_path)) == [
        f"0 {HERE}::test_dear", f"2 {HERE}::test_few", f"0 {HERE}::test_none_of", f"1 {HERE}::test_one_of"]
