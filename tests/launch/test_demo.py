"""`distprof demo`: it records a job whose late rank and layer are known, and ends with the sentence that names both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.errors import DataError
from distprof.launch.commands.demo import show_answer
from support import forked
from support.jobs import PATIENCE_S, ROOT, called, clean_environ
from support.pages import consoles, differences
from support.shown_demo import DEMO, OUT, PRINTED, demo, printed

FINDING = (r"Rank (\d+) delays (?:every step|\d+ of \d+ steps) by [\d.]+ ms \(.*? %\): "
           r"`layers\.1\.mlp` forward takes ([\d.]+) ms against [\d.]+ ms on its peers, "
           r"[\d.]+ ms more at demo\.py:\d+ MLP\.forward; p [=<] [\d.e-]+\n")
GAIN = r"  Fixing it would cut the step from ([\d.]+) to ([\d.]+) ms \(± [\d.]+ [mu]?s\)\.\n"
END = r"report: (\S+)\nNext: distprof run --nproc-per-node 4 train\.py\n"


def named(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    """The rank that the demo ends with, and the report."""
    assert done.returncode == 0, done.stderr + done.stdout
    found = re.fullmatch(FINDING + GAIN + END, done.stdout)
    assert found is not None, done.stdout
    rank, takes, before, after, report = found.groups()
    assert float(after) < float(before) and float(takes) >= 90, "it sleeps 90 ms"
    return int(rank), report


@pytest.fixture
def environ() -> Iterator[None]:
    """Puts back what a command called in this process changes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.core
@pytest.mark.job
def test_the_demo_names_rank_and_layer_whatever_another_job_left_in_the_shell(shown_demo, capsys):
    done = printed(shown_demo)
    rank, report = named(done)
    assert (rank, report) == (2, f"{OUT}/merged/report.html")
    page = (shown_demo / report).read_text()
    assert "Rank 2 delays every step" in page and "distprof demo" in page
    assert {path.name for path in shown_demo.iterdir()} == {"runs", PRINTED}
    assert [path.name for path in (shown_demo / "runs").iterdir()] == ["demo"]
    said = [line for line in done.stderr.splitlines() if re.match("distprof: |demo: ", line)]
    assert said[1] == ("demo: 4 ranks train a small transformer; layers.1.mlp of rank 2 sleeps 90 ms in every step")
    assert [line.split(": ", 1)[1].split()[0] for line in said] == ["recording", "4", "4", "merged"], done.stderr
    shown = next(one for one in consoles((ROOT / "README.md").read_text()) if one.command.startswith("distprof demo"))
    lines = [re.sub(r"\bruns/demo-\d{8}-\d{6}\b", OUT, line) for line in shown.lines]
    assert differences(lines, done.stderr + done.stdout) == [] and len(lines) == 8
    with pytest.raises(DataError, match=r"the answer should name rank 3 and layers\.1\.mlp, and no other rank"):
        show_answer(shown_demo / OUT, 3)
    assert capsys.readouterr().out.startswith("Rank 2 delays")


@pytest.mark.job
@pytest.mark.usefixtures("environ")
def test_a_demo_that_is_interrupted_leaves_nothing_running_and_is_not_overwritten(tmp_path, monkeypatch):
    with forked.popen([*DEMO, "--ranks", "2"], cwd=tmp_path, env=clean_environ(), text=True,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as started:
        assert started.stderr is not None
        assert any("demo: 2 ranks train" in line for line in started.stderr)
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does
        out, said = started.communicate(timeout=PATIENCE_S)
    assert (started.returncode, out) == (130, "")
    assert re.fullmatch(r"distprof: [0-2] of 2 ranks recorded(, [12] unfinished)?\.\n", said)
    there, (run,) = contents(tmp_path), (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"demo-\d{8}-\d{6}", run.name) and [*tmp_path.iterdir()] == [tmp_path / "runs"]
    monkeypatch.chdir(tmp_path)
    refused = called("demo", "--ranks", 2, "--out", f"runs/{run.name}")
    assert refused.returncode == 1 and not refused.stdout and contents(tmp_path) == there != {}
    assert refused.stderr.startswith(f"distprof: runs/{run.name} is not empty  hint: ")
    assert len(refused.stderr.splitlines()) == 1


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("words", "said"), [
    (("--ranks", "1"), "--ranks must be from 2 to 64, not 1  hint: a rank is late only compared with others: --ranks "
                       "4"),
    (("--ranks", "65"), "--ranks must be from 2 to 64, not 65  hint: --ranks 4"),
    (("--ranks", "two"), "Invalid value for '--ranks': 'two' is not a valid integer."),
    (("--out", "s3://bucket/a"), "--out must be a local folder, not s3://bucket/a  hint: use distprof upload RUN URL "
                                 "to send a run elsewhere"),
    (("train.py",), "Got unexpected extra argument (train.py)"),
])
def test_wrong_arguments_are_one_line(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    done = called("demo", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"distprof: {said}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("environ")
def test_what_is_there_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    for more in ((), ("--force",)):
        done = called("demo", "--out", "notes", *more)
        assert done.returncode == 1 and not done.stdout
        assert done.stderr.startswith("distprof: notes ") and len(done.stderr.splitlines()) == 1
    (tmp_path / "file").write_text("mine")
    assert "file is a file, not a directory" in called("demo", "--out", "file").stderr
    assert [path.read_text() for path in (tmp_path / "notes" / "mine.txt", tmp_path / "file")] == ["mine"] * 2


@pytest.fixture
def busy() -> Iterator[None]:
    """Keeps one processor at work."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        try:
            yield
        finally:
            loop.kill()


def _ten_times(folder: Path) -> list[float]:
    took = []
    for number in range(10):
        began = time.monotonic()
        assert named(demo(folder, "--out", f"run{number}")) == (2, f"run{number}/merged/report.html")
        took.append(time.monotonic() - began)
    sys.stderr.write(f"demo: {', '.join(f'{seconds:.1f}' for seconds in took)} s\n")
    return took


@pytest.mark.stress
def test_the_right_rank_and_layer_ten_times_out_of_ten(tmp_path):
    assert len(_ten_times(tmp_path)) == 10


@pytest.mark.stress
@pytest.mark.usefixtures("busy")
def test_the_same_while_a_processor_is_kept_busy(tmp_path):
    assert len(_ten_times(tmp_path)) == 10


@pytest.mark.stress
def test_more_ranks_than_processors_and_two(tmp_path):
    assert named(demo(tmp_path, "--ranks", 8, "--out", "eight")) == (2, "eight/merged/report.html")
    assert named(demo(tmp_path, "--ranks", 2, "--out", "two")) == (1, "two/merged/report.html")
    assert named(demo(tmp_path, "--ranks", 2, "--out", "two", "--force")) == (1, "two/merged/report.html")


def test_make_demo_is_this_command():
    target = re.search(r"^demo:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert target is not None and target[1].split()[:2] == ["$(BIN)/distprof", "demo"]
