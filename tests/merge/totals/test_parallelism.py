"""Jobs made parallel by hand: what docs/parallelism.md says of them, against the unsharded model of FlopCounterMode."""

from __future__ import annotations

import json
import subprocess
import sys
from math import prod

import pytest

from support.jobs import PATIENCE_S, ROOT, clean_environ, distprof, record_run

PAGE = (ROOT / "docs" / "parallelism.md").read_text()
SHORT = ("--steps", "wait=1,count=1,time=1,trace=2,arrivals=0")


def made(*jobs: str) -> str:
    done = subprocess.run([sys.executable, ROOT / "docs" / "parallelism.py", *jobs], capture_output=True, text=True,
                          timeout=PATIENCE_S, env=clean_environ(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(page: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines if cells[1] != "found"}


@pytest.mark.job
def test_sizes_are_inferred_or_doubted_as_the_page_says():
    jobs = ("tp 2", "pp 2", "cp 2", "ep 2", "gather 2")
    found, written = rows(made(*jobs)), rows(PAGE)
    assert found == {job: written[job] for job in jobs}


@pytest.mark.stress
def test_the_page_is_what_its_program_makes():
    assert made() == PAGE


@pytest.mark.parametrize("job", rows(PAGE))
def test_the_page_shows_totals_of_the_unsharded_model_or_a_doubt(job):
    sizes, _, _, once, params, _, _, forward, alone, backward, alone_backward, samples = rows(PAGE)[job]
    assert once == params
    words = job.split()
    batches = prod(int(size) for kind, size in zip(words[::2], words[1::2], strict=True) if kind in ("dp", "ep"))
    assert samples == ("unknown" if "gather" in job else str(2 * batches))
    if job.startswith("gather"):
        assert "not certain" in sizes and forward != alone
    else:
        assert (forward, backward) == (alone, alone_backward) and "not certain" not in sizes


@pytest.mark.job
def test_a_flag_settles_what_is_doubtful(tmp_path):
    out = tmp_path / "run"
    record_run(out, 2, ROOT / "examples" / "by_hand.py", "gather", 2, flags=SHORT)
    doubtful = distprof("stats", out, "--strict")
    assert doubtful.returncode == 3 and "give --cp or --tp if they share" in doubtful.stderr
    assert "model = per GPU x 1, not certain" in distprof("stats", out).stdout
    for command in ("stats", "merge"):
        done = distprof(command, out, "--cp", 2, "--strict")
        assert done.returncode == 0, done.stderr
    summary = json.loads(distprof("stats", "--json", out).stdout)
    assert (summary["topology"], summary["topology_certain"]) == ({"dp": 1, "cp": 2}, True)
    assert summary["model"]["fwd_flops"] == int(rows(PAGE)["gather 2"][8].replace(",", ""))
    assert json.loads(distprof("stats", "--json", "--dp", 2, out).stdout)["topology"] == {"dp": 2}
    assert "found cp 3" in distprof("comms", out, "--cp", 3).stderr
