"""`distprof bench`: two ways to run a job, recorded in turns and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.differing_runs import simulated
from support.jobs import called


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """What is started; in place of a job, simulated runs are written, slower ones where the script is `slow.py`."""
    found: list[list[str]] = []

    def call(words: list[str]) -> int:
        found.append(words)
        run = Path(words[words.index("--out") + 1])
        simulated(run, len(found), steps=8, ns=9_000_000 if "slow.py" in words else 0)
        return 3 if "fails.py" in words else 0

    monkeypatch.setattr("distprof.launch.commands.bench.subprocess.call", call)
    return found


@pytest.mark.long
def test_sides_take_turns_and_are_compared(started, tmp_path):
    done = called("bench", "--nproc-per-node 2 a.py", "slow.py --x '1 2'", "--rounds", 3, "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert [Path(words[words.index("--out") + 1]).name for words in started] == [
        "base1", "new1", "new2", "base2", "base3", "new3"]
    assert started[0][-3:] == ["--nproc-per-node", "2", "a.py"] and started[1][-3:] == ["slow.py", "--x", "1 2"]
    assert "slower: +" in done.stdout and "3 + 3 runs" in done.stdout


@pytest.mark.long
def test_a_limit_is_judged(started, tmp_path):
    done = called("bench", "a.py", "slow.py", "--rounds", 2, "--out", tmp_path, "--fail-if", "step_time > 10 %")
    assert done.returncode == 1 and "exceeding the limit step_time > 10 %" in done.stderr


def test_a_job_that_fails_ends_it(started, tmp_path):
    done = called("bench", "a.py", "fails.py", "--out", tmp_path)
    assert done.returncode == 3 and len(started) == 2 and "new ended with exit code 3" in done.stderr


@pytest.mark.parametrize(("words", "said"), [(("a.py", "'b.py"), "No closing quotation"),
                                             (("--out x a.py", "b.py"), "A must not have --out")])
def test_what_is_asked_wrongly_is_one_line(started, words, said):
    done = called("bench", *words)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1 and not started
