"""The list of planted faults fits the tree, and the script that plants them finds what a test finds."""

from __future__ import annotations

import ast
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from mutants.plant import ROOT, Fault, NotApplicable, copy_of, failing, planted, read_faults

FAULTS = read_faults()
TEST = "def test_sum():\n    from rooms.sums import add\n    assert add(2, 3) == 5\n"


@cache
def functions_of(file: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_each_fault_can_be_planted_and_names_tests_that_are_there(fault):
    found = fault.planted_in((ROOT / fault.file).read_text())
    if fault.file.endswith(".py"):
        compile(found, fault.file, "exec")
    assert fault.found_by and fault.near and all((ROOT / file).is_file() for file in fault.near)
    for test in fault.found_by:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_of(file)


def test_the_list_has_forty_faults_or_more_in_most_rooms():
    assert len({fault.id for fault in FAULTS}) == len(FAULTS) >= 40
    assert len({fault.room for fault in FAULTS}) >= 25


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one function, and a test of it."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed, which lists the files that are copied")
    for name, text in {"rooms/sums.py": "def add(a, b):\n    return a + b\n", "tests/test_sums.py": TEST,
                       "pytest.ini": "[pytest]\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


@pytest.mark.long
def test_a_planted_fault_fails_its_test_and_is_gone_afterwards(tree):
    fault = Fault(id="sign", room="sums", file="rooms/sums.py", before="a + b", after="a - b", shows="", near=())
    with copy_of(tree) as copied:
        assert failing(["tests"], copied) == []
        with planted(fault, copied):
            assert failing(["tests"], copied) == ["tests/test_sums.py::test_sum"]
        assert failing(["tests"], copied) == []
        with pytest.raises(RuntimeError, match="exit code 4"):
            failing(["tests/test_sums.py::test_gone"], copied)
    assert (tree / "rooms" / "sums.py").read_text() == "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize("before", ["a * b", "a"])
def test_what_is_not_there_or_several_times_is_refused(tree, before):
    fault = Fault(id="sign", room="sums", file="rooms/sums.py", before=before, after="b", shows="", near=())
    with pytest.raises(NotApplicable, match="once in rooms"), planted(fault, tree):
        pass
