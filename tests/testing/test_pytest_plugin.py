"""The fixture `distprof_regression` in a project that uses it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.differing_runs import simulated
from support.jobs import ROOT, clean_environ

PLUGIN = "distprof.testing.pytest_plugin"
TESTS = '''
import pytest

def test_fails(distprof_regression):
    distprof_regression("slow", baseline="base", fail_if=["step_time > 5 %"])

def test_passes(distprof_regression):
    answer = distprof_regression("slow", baseline="base", fail_if=["step_time > 50 %", "backward > 20 %"])
    assert "layers.3" in answer.text and [one.outcome for one in answer.limits] == ["within", "within"]

def test_cannot_tell(distprof_regression):
    distprof_regression("slow", baseline="base", fail_if=["memory > 5 %"])

def test_fails_where_it_cannot_tell(distprof_regression):
    distprof_regression("slow", baseline="base", fail_if=["memory > 5 %"], unsure="fail")

def test_passes_where_it_cannot_tell(distprof_regression):
    distprof_regression("slow", baseline=["base"], fail_if=["memory > 5 %"], unsure="pass")

def test_beyond_comes_first(distprof_regression):
    distprof_regression("slow", baseline="base", fail_if=["memory > 5 %", "forward > 5 %"])

def test_several_runs(distprof_regression):
    distprof_regression(["slow", "slow"], baseline=["base", "base"])

def test_is_asked_wrongly(distprof_regression):
    with pytest.raises(ValueError, match="must be skip, fail or pass"):
        distprof_regression("slow", baseline="base", unsure="perhaps")
'''


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-q", "-rA", "-p", "no:cacheprovider", *arguments], cwd=folder,
        capture_output=True, text=True, check=False,
        env=clean_environ() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)})


@pytest.mark.long
def test_the_fixture_fails_skips_and_passes(tmp_path):
    simulated(tmp_path / "base", 1)
    simulated(tmp_path / "slow", 2, ns=3_000_000)
    (tmp_path / "test_speed.py").write_text(TESTS)
    done = run_pytest(tmp_path, "--junit-xml=report.xml", "-W", "error")
    said = done.stdout
    assert done.returncode == 1 and "4 failed, 3 passed, 1 skipped" in said, said
    assert "step_time changed by +1" in said and "exceeding the limit step_time > 5 %" in said
    assert said.count("def compare") == 0  # the line, not our code
    skipped = next(line for line in said.splitlines() if line.startswith("SKIPPED"))
    assert "memory is unknown on at least one side; record it with --steps memory=1" in skipped
    assert "FAILED test_speed.py::test_beyond_comes_first - Failed: forward changed by" in said
    assert 'name="distprof" value="step_time changed by' in (tmp_path / "report.xml").read_text()


@pytest.mark.long
def test_unused_it_imports_nothing(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "def test_other():\n    import sys\n"
        "    assert not {'torch', 'polars', 'pyarrow', 'msgspec', 'click', 'rich'} & set(sys.modules)\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "distprof_regression" in run_pytest(tmp_path, "--fixtures").stdout


def test_pytest_finds_it_by_its_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"distprof": PLUGIN}
