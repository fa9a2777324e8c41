"""docs/ci.md: its workflows are YAML, and what they run works."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support import forked
from support.jobs import ROOT, SCRIPTS, clean_environ

PAGE = (ROOT / "docs" / "ci.md").read_text()
SHELL = ("Record", "Compare")


def workflows() -> list[dict]:
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the workflows")
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def steps() -> list[dict]:
    return [step for flow in workflows() for job in flow["jobs"].values() for step in job["steps"]]


def test_workflows_are_complete():
    flows = workflows()
    assert [flow["name"] for flow in flows] == ["speed of main", "speed"]
    assert all({"name", "jobs", True} <= set(flow) for flow in flows)  # YAML takes `on` for a truth value
    assert all(("run" in step) != ("uses" in step) for step in steps())
    kept, restored = (step["with"] for step in steps() if "actions/cache" in step.get("uses", ""))
    assert kept["path"] == restored["path"] == "runs" and kept["key"].startswith(restored["restore-keys"])
    comment = next(step for step in steps() if step.get("name") == "Comment")
    assert "--body-file diff.md" in comment["run"] and "always()" in comment["if"]
    assert [step["name"] for step in steps() if "distprof" in step.get("run", "")] == ["Record", "Record", "Compare"]


@pytest.mark.job
def test_what_workflows_run_works(tmp_path):
    """Once in place of three times, with a small model."""
    script = (SCRIPTS / "alike.py").read_text().replace("else 40", "else 62", 1)
    smaller = script.replace("WIDTH, BATCH, USUAL = 256, 32, 10", "WIDTH, BATCH, USUAL = 8, 4, 2")
    assert smaller != script
    (tmp_path / "train.py").write_text(smaller)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    forked.write_program(bin_folder / "distprof", "-m", "distprof")
    environ = clean_environ() | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    codes = []
    for step in steps():
        if step.get("name") in SHELL:
            script = step["run"].replace("for run in 1 2 3", "for run in 1")
            done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environ, capture_output=True,
                                  text=True, check=False)
            codes.append(done.returncode)
    assert codes[:2] == [0, 0] and codes[2] in (0, 1, 3), done.stderr  # how fast this machine is, nobody knows
    assert "| part of a step |" in (tmp_path / "diff.md").read_text()
    assert "<table>" in (tmp_path / "diff.html").read_text()
    assert bool(done.stderr) == bool(codes[2]) and "flops changed" not in done.stderr


def test_the_page_names_what_the_fixture_takes():
    import inspect

    from distprof.testing import pytest_plugin

    source = inspect.getsource(pytest_plugin)
    names = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert names == ["baseline", "fail_if", "noise", "unsure"]
    assert all(re.search(rf"\b{name}: ", source) for name in names)


def test_the_example_of_the_page_is_python():
    for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        compile(text, str(Path("docs/ci.md")), "exec")
