"""docs/compat.md has a row for each flag, column, topic and key, and each of them exists."""

from __future__ import annotations

import inspect
import json
import re

import pytest
import torch

from distprof.compat.megengine import Profiler, profile_analyze, profiler, trace
from distprof.compat.megengine.regions import OPTIONS
from distprof.contract.passes import Topic
from support.jobs import ROOT

SECTION = (ROOT / "docs" / "compat.md").read_text().split("\n### MegEngine\n")[1]
VERDICTS = ("the same", "better: ", "not possible: ", "as above")


def rows(title: str) -> list[tuple[list[str], list[str]]]:
    """Names in the first cell of each row below a heading, and the other cells."""
    part = SECTION.split(f"\n#### {title}\n")[1].split("\n#### ")[0]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in part.splitlines()
             if line.startswith("|") and not line.startswith("|---")]
    return [(re.findall(r"`([^`]+)`", first), others) for first, *others in cells if "`" in first]


def names(title: str) -> set[str]:
    found = [name for cell, _ in rows(title) for name in cell]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.parametrize("title", ["profile_analyze: flags", "profile_analyze: columns", "Profiler", "Topics",
                                   "The launcher: flags", "trace and get_profile"])
def test_every_row_says_how_it_is_met(title):
    found = rows(title)
    assert len(found) > 5
    for cell, others in found:
        assert others[-1].lower().startswith(VERDICTS), (cell, others[-1])


@pytest.mark.parametrize(("title", "module"), [("profile_analyze: flags", profile_analyze),
                                               ("The launcher: flags", profiler)])
def test_flags(title, module):
    actions = {action.dest: action for action in module.parser()._actions}
    options = {option for action in actions.values() for option in action.option_strings}
    positional = {name for name, action in actions.items() if not action.option_strings} - {"script", "arguments"}
    assert names(title) == options | positional
    for cell, (default, _) in rows(title):
        if re.fullmatch(r"\d+|end|time|profile", default):
            (action,) = (one for one in actions.values() if set(one.option_strings) & set(cell))
            assert str(action.default) == default, cell


def header(text: str, separator: str) -> set[str]:
    line = next(line for line in text.splitlines() if "cumulative" in line or "cum-time" in line)
    return {cell.strip() for cell in line.strip(separator).split(separator)}


def test_columns(dump):
    only = [str(dump), "--print-only"]
    boxed = header(profile_analyze.analyze([*only, "device"]), "│") | header(
        profile_analyze.analyze([*only, "host"]), "│")
    found = rows("profile_analyze: columns")
    behind = next(number for number, (cell, _) in enumerate(found) if "#" in cell)
    assert {name for cell, _ in found[:behind] for name in cell} == boxed
    wiki = header(profile_analyze.analyze([*only, "device", "--wiki"]), "|")
    assert {name for cell, _ in found[behind:] for name in cell} == wiki


def test_topics():
    assert names("Topics") == {*Topic.__members__}
    assert all(getattr(Profiler, name) == Topic[name] for name in names("Topics"))


def test_arguments_of_the_profiler():
    parameters = inspect.signature(Profiler).parameters
    assert names("Profiler") == (parameters.keys() - {"options"}) | OPTIONS.keys()
    for cell, (default, _) in rows("Profiler"):
        name = cell[0]
        if name != "topic":
            assert str(OPTIONS[name] if name in OPTIONS else parameters[name].default) == default, name


def keys(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    return {key for key in value if not key.isdecimal()} | set().union(*map(keys, value.values()))


@pytest.mark.long
def test_keys_of_the_dump():
    @trace(profiling=True)
    def function(x):
        return torch.mm(x.t(), x)

    function(torch.ones(2, 3))
    profile = function.get_profile()
    for one in profile["profiler"]["opr_footprint"].values():
        one["param"] = {}
    found = {key for key in keys(json.loads(json.dumps(profile))) if not key.startswith(("thread ", "cpu"))}
    assert names("trace and get_profile") == found - {"shape"}
