"""Pages of docs/ that are made from the code say what the code says."""

from __future__ import annotations

import runpy

import pytest

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
