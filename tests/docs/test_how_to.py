"""Python in docs/how-to/ runs."""

from __future__ import annotations

import ast
import re
import shutil
import sys

import polars as pl

from support.jobs import EXAMPLES, ROOT


def _python(page: str, index: int = 0) -> str:
    text = (ROOT / "docs" / "how-to" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[index]


def test_the_notebook(ddp, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "late").symlink_to(ddp)
    monkeypatch.chdir(tmp_path)
    names, shown = {}, []
    for statement in ast.parse(_python("notebook.md")).body:
        if isinstance(statement, ast.Expr):
            shown.append(eval(ast.unparse(statement), names))
        else:
            exec(ast.unparse(statement), names)
    assert shown[0] == [0, 1, 2, 3] and shown[1] > 0
    assert [frame.height > 0 for frame in shown if isinstance(frame, pl.DataFrame)] == [True] * 4
    assert len(shown) == 6


def test_the_cost_of_a_model_in_ci(tmp_path, monkeypatch):
    shutil.copy(EXAMPLES / "train_ddp.py", tmp_path)
    (tmp_path / "models.py").write_text("from train_ddp import Transformer as build\n")
    monkeypatch.syspath_prepend(tmp_path)
    names: dict = {}
    try:
        exec(_python("ci-gate.md"), names)
        names["test_cost_of_the_model"]()
    finally:
        for name in ("models", "train_ddp"):
            sys.modules.pop(name, None)
