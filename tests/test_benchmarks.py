"""Every benchmark runs in its smallest form, and prints a table; what is recorded of one is found again."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support import forked
from support.jobs import PATIENCE_S, READING, ROOT, called, clean_environ

BENCHMARKS = ROOT / "benchmarks"
TABLE = re.compile(r"^\| .+\|\n\| -[-:| ]+ \|\n\| .*\d", re.MULTILINE)
"""With a row in which something was measured."""
RECORDS_ITSELF = ("compiling", "overhead")
"""They record steps, and set threads of torch, in their own process."""
FORKS = """
import runpy, subprocess, sys
from support import forked
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv.pop(0))
if "--peers" not in sys.argv:  # TraceML starts three Pythons, which import torch
    from measuring import beside_peers
    beside_peers.has_traceml = lambda: False
subprocess.Popen = forked.popen
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Programs that a benchmark starts are forked."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Inputs that several benchmarks need are made in it once."""
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture
def imported(monkeypatch):
    """Their modules, as a benchmark finds them."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def cheap(imported, monkeypatch):
    """Commands that read are called, and other Pythons forked, as nobody looks at what they cost here."""
    from measuring import contenders, processes, turns

    really_timed = processes.timed

    def timed(command: Sequence[str], look: Callable[[int], int] | None = None) -> processes.Cost:
        python, *words = command
        if python != sys.executable:
            return really_timed(command, look)
        # clients of storages keep the address of the server that they met first
        is_here = words[:2] == ["-m", "distprof"] and words[2] in READING and not any("://" in word for word in words)
        done = called(*words[2:]) if is_here else forked.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environ())
        assert not done.returncode, done.stderr
        return processes.Cost(wall_s=1.5, cpu_s=2.5, max_rss_bytes=1 << 20, sampled_bytes=1 << 20, others_cores=0.1,
                              printed=done.stderr + done.stdout)

    for module in (contenders, processes, turns):
        monkeypatch.setattr(module, "timed", timed)
    monkeypatch.setattr(subprocess, "Popen", forked.popen)  # of what is started beside a measured command
    monkeypatch.setattr(processes, "apart", lambda work, *arguments: work(*arguments))
    monkeypatch.setenv("DISTPROF_DEBUG", "1")  # a command that fails shows where


@pytest.mark.job
@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_the_smallest_form_prints_a_table(path, folder, cheap, monkeypatch, capfd):
    words = [str(path), "--smallest", "--in", str(folder)]
    if path.stem in RECORDS_ITSELF:
        recorded(*words)
    else:
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(str(path), run_name="__main__")
    assert TABLE.search(capfd.readouterr().out)
    assert not [*folder.glob("while-*")]


def recorded(*words: str) -> None:
    done = forked.run([sys.executable, "-c", FORKS, str(BENCHMARKS), *words], timeout=PATIENCE_S, env=clean_environ())
    assert not done.returncode


@pytest.mark.stress
def test_the_watch_of_others_is_measured_beside_ours(tmp_path, capfd):
    recorded(str(BENCHMARKS / "overhead.py"), "--smallest", "--in", str(tmp_path), "--modes", "watch", "--peers",
             "traceml")
    assert re.search(r"\| +TraceML \| +50 \|", capfd.readouterr().out)


def test_a_ratio_is_compared_with_the_recorded_one(tmp_path, imported, monkeypatch, capsys):
    from measuring import benchmark

    results = tmp_path / "RESULTS.md"
    results.write_text("# Results\n\n## one.py\n\nof old\n\n## two.py\n\nkept\n")
    monkeypatch.setattr(benchmark, "RESULTS", results)
    ratios = {"CPU / peer": 2.0}

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["one.py", "--in", str(tmp_path), *words])
        found = {name: benchmark.Ratio(value=value, factor=1.2) for name, value in ratios.items()}
        benchmark.run(lambda args: benchmark.Found(text=[f"{args.rows} rows"], ratios=found), "",
                      rows=benchmark.Option(default=7, smallest=1))
        return capsys.readouterr().out

    assert "CPU / peer: 2.000, none recorded" in run()
    run("--record")
    assert results.read_text().count("## ") == 3 and "of old" not in results.read_text()
    assert "\n\n7 rows\n\n" in results.read_text() and "## two.py\n\nkept\n\n## Ratios by" in results.read_text()
    ratios["CPU / peer"] = 2.3
    assert "CPU / peer: 2.300, 1.15 times the recorded 2.000\n" in run()
    ratios["CPU / peer"] = 2.5
    with pytest.raises(SystemExit, match="1"):
        run()
    assert "1.25 times the recorded 2.000, TOO HIGH" in capsys.readouterr().out
    assert "## one.py --rows 8\n" in run("--rows", "8")  # another form has a section of its own
    assert "recorded" not in run("--smallest")


def test_ratios_of_earlier_commits_are_kept(tmp_path, imported, monkeypatch):
    from measuring import benchmark

    results = tmp_path / "RESULTS.md"
    results.write_text("# Results\n\n## one.py\n\nkept\n")
    monkeypatch.setattr(benchmark, "RESULTS", results)
    for name, value in (("aaa", 2.0), ("bbb", 1.0), ("bbb", 1.5)):
        monkeypatch.setattr(benchmark, "commit", lambda name=name: f"commit {name}")
        benchmark.record_of_commit("## one.py", {"CPU / peer": benchmark.Ratio(value=value)})
    rows = [line.split() for line in results.read_text().splitlines() if "one.py:" in line]
    assert [(row[-4], row[-2]) for row in rows] == [("aaa", "2.000"), ("bbb", "1.500")]
    assert "## one.py\n\nkept\n\n## Ratios by commit\n" in results.read_text()


@pytest.mark.job
def test_ratios_are_printed_once_more_at_the_end(tmp_path, imported, monkeypatch, capfd):
    from measuring import check

    monkeypatch.setattr(check, "HERE", tmp_path)
    (tmp_path / "good.py").write_text("import sys; print(sys.argv[1:]); print('ratio good.py: CPU / peer: 1.0')")
    (tmp_path / "bad.py").write_text("raise SystemExit(1)")
    assert check.main(["good", "--record"]) == 0
    assert capfd.readouterr().out == "['--record']\nratio good.py: CPU / peer: 1.0\n\ngood.py: CPU / peer: 1.0\n"
    assert check.main(["good", "bad"]) == 1
    assert capfd.readouterr().out.endswith("\n\ngood.py: CPU / peer: 1.0\nbad: failed, or a ratio is too high\n")
