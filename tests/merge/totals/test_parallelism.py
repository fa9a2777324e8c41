"""Jobs made parallel by hand: what docs/parallelism.md says of them, against the unsharded model of FlopCounterMode."""

from __future__ import annotations

import json
import sys
from math import prod

import pytest

from support import forked
from support.jobs import PATIENCE_S, ROOT, clean_environ, distprof, record_run

PAGE = (ROOT / "docs" / "parallelism.md").read_text()
SHORT = ("--steps", "wait=1,count=1,time=1,trace=2,arrivals=0")
QUICK = {"by_hand": ("tp 2", "pp 2", "cp 2", "ep 2", "gather 2"),
         "by_framework": ("fsdp1 2", "sp 2", "1f1b 2 recompute")}


def made(*arguments: str) -> str:
    done = forked.run([sys.executable, ROOT / "docs" / "parallelism.py", *arguments], capture_output=True,
                      text=True, timeout=PATIENCE_S, env=clean_environ(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(text: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines if cells[1] != "found"}


HAND, FRAMEWORK = (rows(part) for part in PAGE.split("## With torch's own wrappers"))


@pytest.mark.job
@pytest.mark.parametrize(("example", "written"), [
    ("by_hand", HAND), pytest.param("by_framework", FRAMEWORK, marks=pytest.mark.stress)])
def test_jobs_give_what_the_page_says(example, written):
    assert rows(made(example, *QUICK[example])) == {job: written[job] for job in QUICK[example]}


@pytest.mark.stress
@pytest.mark.job
def test_the_page_is_what_its_program_makes():
    assert made() == PAGE


@pytest.mark.parametrize("job", [*HAND.items(), *FRAMEWORK.items()], ids=lambda job: job[0])
def test_the_page_shows_totals_of_the_unsharded_model_or_a_doubt(job):
    name, (sizes, _, _, once, params, _, _, *flops, _) = job
    assert once == params
    if name.startswith("gather"):
        assert "not certain" in sizes and flops[0] != flops[1]
    else:
        assert flops[::2] == flops[1::2] and "not certain" not in sizes
    assert (flops[-1] != "0") == name.endswith("recompute")


@pytest.mark.parametrize("job", HAND)
def test_ranks_that_divide_a_model_or_a_sequence_work_on_the_same_samples(job):
    words = job.removesuffix(" recompute").split()
    batches = prod(int(size) for kind, size in zip(words[::2], words[1::2], strict=True) if kind in ("dp", "ep"))
    assert HAND[job][-1] == ("unknown" if "gather" in job else str(2 * batches))


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
    assert summary["model"]["fwd_flops"] == int(HAND["gather 2"][8].replace(",", ""))
    assert json.loads(distprof("stats", "--json", "--dp", 2, out).stdout)["topology"] == {"dp": 2}
    assert "but cp 3 = 3" in distprof("comms", out, "--cp", 3).stderr
