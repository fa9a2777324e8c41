"""Pages of docs/ that are made from the code say what the code says."""

from __future__ import annotations

import runpy

import pytest

from distprof.contract.problems import Problem, Remark
from support.jobs import ROOT

PAGES = {"run_directory.py": "run-directory.md", "command_line.py": "command-line.md", "python_api.py": "python-api.md"}


@pytest.mark.parametrize("script", PAGES)
def test_the_page_is_what_its_script_makes(script):
    made = runpy.run_path(str(ROOT / "docs" / script))["page"]()
    assert made == (ROOT / "docs" / PAGES[script]).read_text(), f"python docs/{script} writes it anew: make reference"


def test_each_command_and_each_exported_name_has_a_section():
    from distprof import __all__ as exported
    from distprof.launch.cli import ORDER

    commands = (ROOT / "docs" / "command-line.md").read_text()
    names = (ROOT / "docs" / "python-api.md").read_text()
    assert [name for name in ORDER if f"\n## {name}\n" not in commands] == []
    assert [name for name in exported if name != "__version__" and f"\n## {name}\n" not in names] == []
    assert all(f"`--{flag}" in commands for flag in ("steps PLAN", "tensors", "peak FLOP/S", "input-shape", "strict"))


class Wrapped:
    """A sentence that goes on
    in a second line. And another one.

    More, which the page leaves out.
    """


def test_the_meaning_of_each_problem_is_published_to_the_end_of_its_paragraph():
    made = runpy.run_path(str(ROOT / "docs" / "run_directory.py"))
    assert made["meaning"](Wrapped) == "A sentence that goes on in a second line. And another one."
    rows = [line for line in made["page"]().partition("### Problems and remarks")[2].partition("\n## ")[0].splitlines()
            if line.startswith("| `")]
    kinds = [*Problem.__subclasses__(), *Remark.__subclasses__()]
    assert len(rows) == len(kinds)
    for row, kind in zip(rows, kinds, strict=True):
        assert row.endswith(f"| {made['meaning'](kind)} |") and row.endswith(". |"), kind.__name__
