"""`distprof diff` on the command line: what it finds and prints, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from distprof.merge.difference.limits import limit_of
from distprof.merge.text.difference.document import Document, Section
from distprof.merge.text.difference.formats import markdown
from support.differing_runs import simulated
from support.jobs import called
from support.simulator.engine import Simulation
from support.simulator.run_folder import BEGAN_NS, Recorder
from support.simulator.shapes import SHAPES, Plant, programs

SLOW = "layers.3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def base(folder) -> Path:
    return simulated(folder / "base", 1)


@pytest.fixture(scope="module")
def same(folder) -> Path:
    """The same job once more."""
    return simulated(folder / "same", 2)


@pytest.fixture(scope="module")
def slow(folder) -> Path:
    """Forward of one of six layers, and the step, take 3 ms longer."""
    return simulated(folder / "slow", 3, slow=SLOW, ns=3_000_000)


@cache
def diff(*arguments: object) -> dict:
    """Nobody changes it."""
    done = called("diff", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_what_became_slower_is_named_first(base, slow):
    found = diff(base, slow)
    assert found["step_time"]["verdict"] == "changed"
    assert found["step_time"]["low"] < 3e6 < found["step_time"]["high"]
    assert found["parts"]["rows"][0]["part"] == "forward"
    assert found["modules"]["rows"][0]["module"] == SLOW
    assert found["modules"]["rows"][0]["sides"]["forward"] == pytest.approx(3e6, rel=0.05)
    assert [row["module"] for row in found["modules"]["rows"] if row["change"]["verdict"] == "changed"] == [SLOW]


@pytest.mark.parametrize(("text", "value"), [
    ("step_time > 500 us", 500e3), ("step_time > 2 ms", 2e6), ("step_time > 0.5 s", 0.5e9), ("step_time > 7 ns", 7),
    ("memory > 3 B", 3), ("memory > 3 KB", 3e3), ("memory > 1 MB", 1e6), ("memory > 2 GB", 2e9),
    ("memory > 1 TB", 1e12), ("memory > 1 KiB", 1024), ("memory > 1 MiB", 1 << 20), ("memory > 1 GiB", 1 << 30),
    ("flops > 3", 3), ("flops > 3 K", 3e3), ("params > 3 M", 3e6), ("flops > 3 G", 3e9), ("flops > 3 T", 3e12),
    ("step_time > 5 %", 0.05)])
def test_a_limit_is_read_in_its_unit(text, value):
    assert limit_of(text).value == value


@pytest.mark.long
@pytest.mark.parametrize("seed", [20, pytest.param(range(21, 30), marks=pytest.mark.stress)])
def test_a_module_that_takes_a_fifth_longer_is_named_first(tmp_path, seed):
    """By its time alone: nothing is counted here."""
    for number in [seed] if isinstance(seed, int) else seed:
        other = simulated(tmp_path / f"slow{number}", 100 + number, slow=SLOW, factor=1.2,
                          kinds=("forward", "backward"))
        found = diff(simulated(tmp_path / f"base{number}", number), other)
        assert found["modules"]["rows"][0]["module"] == SLOW
        assert found["modules"]["rows"][0]["change"]["ratio"] == pytest.approx(0.2, abs=0.05)
        assert found["modules"]["rows"][0]["beyond_common"]["verdict"] == "changed"
        assert {row["beyond_common"]["verdict"] for row in found["modules"]["rows"][1:]} == {"noise"}


@pytest.mark.long
def test_the_same_job_did_not_change(base, same):
    found = diff(base, same)
    assert found["step_time"]["verdict"] == "noise"
    assert {row["beyond_common"]["verdict"] for what in ("parts", "modules", "collectives")
            for row in found[what]["rows"]} <= {"noise", "same"}
    assert "no difference beyond noise" in called("diff", base, same).stdout


@pytest.mark.parametrize("other", ["same", "slow"])
def test_parts_add_up_to_the_change_of_the_step(base, other, request):
    found = diff(base, request.getfixturevalue(other))
    for table in ("parts", "modules", "collectives"):
        rows = found[table]["rows"]
        assert sum(row["change"]["difference"] for row in rows) + found[table]["rest_ns"] == pytest.approx(
            found[table]["difference_ns"], abs=1)
    assert found["parts"]["difference_ns"] == found["step_time"]["difference"]
    assert abs(found["parts"]["rest_ns"]) < 1  # parts and steps are of one pass here
    of_modules = sum(row["change"]["difference"] for row in found["parts"]["rows"]
                     if row["part"] in ("forward", "backward"))
    assert found["modules"]["difference_ns"] == pytest.approx(of_modules)


@pytest.mark.long
def test_both_directions_agree(base, slow):
    there, back = diff(base, slow), diff(slow, base)
    assert there["step_time"]["difference"] == pytest.approx(-back["step_time"]["difference"])
    assert "faster: -" in called("diff", slow, base).stdout and "slower: +" in called("diff", base, slow).stdout


@pytest.mark.long
def test_what_all_modules_have_in_common_is_told_apart(folder, base):
    """A machine on which all takes a quarter longer."""
    other = simulated(folder / "elsewhere", 4)
    _stretch(other, 1.25)
    found = diff(base, other)
    assert found["modules"]["common"] == pytest.approx(1.25, rel=0.02)
    assert {row["beyond_common"]["verdict"] for row in found["modules"]["rows"]} == {"noise"}
    assert found["step_time"]["verdict"] == "changed"


def _stretch(run: Path, factor: float) -> None:
    """All times of a run since its begin."""
    for file in run.glob("rank*/*.parquet"):
        table = pl.read_parquet(file)
        names = [name for name in table.columns if name.endswith("_ns")]
        later = {name: pl.col(name) - pl.when(pl.col(name) > BEGAN_NS // 2).then(BEGAN_NS).otherwise(0)
                 for name in names}
        table.with_columns((pl.col(name) + (ns * (factor - 1)).cast(pl.Int64)).alias(name)
                           for name, ns in later.items()).write_parquet(file)


@pytest.mark.long
def test_several_runs_a_side_measure_the_noise(folder, base, same, slow):
    more = simulated(folder / "slow2", 5, slow=SLOW, ns=3_000_000)
    found = diff("--base", base, same, "--new", slow, more)
    assert found["noise"]["measured"] and [len(found[side]) for side in ("base", "new")] == [2, 2]
    assert found["step_time"]["verdict"] == "changed" and found["modules"]["rows"][0]["module"] == SLOW
    text = called("diff", "--base", base, same, "--new", slow, more).stdout
    assert "the 2 + 2 runs differ within each side" in text


@pytest.mark.long
@pytest.mark.parametrize(("code", "limits"), [
    (1, {"step_time > 5 %": "step_time changed by +14", "step_time > 2 ms": "step_time changed by +2.98 ms [+2.",
         "forward > 40 %": "forward changed by +50 % [+4", "backward > 20 %": "",
         "step_time>5%": "exceeding the limit step_time>5%", "modules.layers.3 > 20 %": "modules.layers.3 changed by",
         "step_time > 0.1 %": "exceeding the limit step_time > 0.1 %", "memory > 1 B": ""}),
    (0, {"step_time > 30 %": "within the limit step_time > 30 %",
         "modules.layers.2 > 20 %": "modules.layers.2 changed by",
         "step_time < -5 %": "within the limit step_time < -5 %",
         "kinds.0.calls_per_step > 0": "within the limit kinds.0.calls_per_step > 0",
         "coverage.num_collectives > 10 %": "within the limit coverage.num_collectives > 10 %"}),
    (3, {"mfu < -5 %": "mfu < -5 %: cannot tell: mfu is unknown on at least one side",
         "memory > 5 %": "memory is unknown on at least one side",
         "kinds.0.wait_ns > 1 ms": "kinds.0.wait_ns > 1 ms: cannot tell: kinds.0.wait_ns changed by -0.047 ms: one run "
                                   "per side does not show",
         "communication.waiting_ratio > 50 %": "communication.waiting_ratio > 50 %: cannot tell"})])
def test_limits(base, slow, code, limits):
    """What is beyond its limit comes before what one cannot tell, which comes before what is within."""
    form = ["--json"] if code else []  # standard error is the same
    done = called("diff", *form, *(word for limit in limits for word in ("--fail-if", limit)), base, slow)
    said = done.stderr if code else done.stdout
    assert done.returncode == code, (done.stdout, done.stderr)
    assert [words for words in limits.values() if words not in said] == []
    assert len(done.stderr.splitlines()) == bool(code)
    if code:
        outcomes = {one["text"]: one["outcome"] for one in json.loads(done.stdout)["limits"]}
        assert {limit for limit, words in limits.items() if words} == {
            limit for limit, outcome in outcomes.items() if (outcome == "beyond") == (code == 1)}


@pytest.mark.long
def test_an_interval_that_is_too_wide_is_not_judged(base, same):
    """With 1 % between runs, nobody can tell a tenth of a percent."""
    done = called("diff", "--fail-if", "step_time > 0.1 %", base, same)
    assert done.returncode == 3 and "half the interval is wider than the limit" in done.stderr
    assert called("diff", "--noise", "0.01", "--fail-if", "step_time > 5 %", base, same).returncode == 0


@pytest.mark.parametrize(("arguments", "words"), [
    (["A"], "diff takes two runs, or one or more each for --base and --new"),
    (["A", "B", "A"], "found 3 runs"),
    (["--base", "A"], "1 for --base and 0 for --new"),
    (["A", "B", "--fail-if", "step_time"], "takes a limit like 'step_time > 5 %'"),
    (["A", "B", "--fail-if", "step_time > 5 parsecs"], "takes a limit like"),
    (["A", "B", "--fail-if", "step_time > 5 MB"], "takes a change of step_time in % or in ns, us, ms or s"),
    (["A", "B", "--fail-if", "memory > 5 s"], "in B, KB, MB or GB"),
    (["A", "B", "--fail-if", "speed > 5 %"], "unknown quantity 'speed' for --fail-if"),
    (["A", "B", "--fail-if", "step > 5 %"], "unknown quantity 'step' for --fail-if"),
    (["A", "B", "--noise", "much"], "--noise must be a percentage"),
    (["A", "B", "--noise", "-1"], "--noise must be 0 % or more, not -1 %"),
    (["A", "B", "--noise", "inf"], "--noise must be 0 % or more, not inf %"),
    (["A", "B", "--peak", "0"], "--peak must be positive, not 0"),
    (["--base", "A", "--new", "B", "B"], "--new has"),
    (["A", "B", "--json", "--markdown"], "--markdown and --json cannot be combined")])
def test_what_is_asked_wrongly_is_one_line(base, same, arguments, words):
    done = called("diff", *({"A": base, "B": same}.get(word, word) for word in arguments))
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_what_is_no_run_is_one_line(base, tmp_path):
    done = called("diff", base, tmp_path / "nothing")
    assert done.returncode == 2 and "nothing" in done.stderr and len(done.stderr.splitlines()) == 1


class Cells(HTMLParser):
    """Tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.said, self.links = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data):
        self.said.append(data)


@pytest.fixture(scope="module")
def hostile(folder) -> list[Path]:
    """Runs whose folders are called like an attack."""
    return [simulated(folder / f"<script>alert({seed})</script>|`@all`\u202e_*[x](y)", seed, ranks=2)
            for seed in (7, 8)]


@pytest.mark.long
def test_the_page_needs_nothing_else_and_escapes_names(hostile, tmp_path):
    done = called("diff", "--html", tmp_path / "page.html", "--fail-if", "step_time > 50 %", *hostile)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Cells(text)
    assert "script" not in page.tags and not page.links and "url(" not in text and "\u202e" not in text
    assert "<script>alert(7)" in "".join(page.said)
    assert "within the limit step_time > 50 %" in "".join(page.said) and len(text) < 50_000
    assert page.tags.count("table") >= 3


@pytest.mark.long
def test_markdown_escapes_names(hostile):
    done = called("diff", "--markdown", *hostile)
    assert done.returncode == 0, done.stderr
    body = re.sub(r"</?(details|summary)>", "", done.stdout)
    assert not re.search(r"[<>@`\u202e]", body) and "[x]" not in body and "&#60;script&#62;alert(7)" in body
    tables = [line for line in done.stdout.splitlines() if line.startswith("|")]
    header = next(line for line in tables if line.startswith("| part of a step"))
    assert len(tables) > 10 and header.count("|") == 7 == tables[tables.index(header) + 1].count("|")


def test_markdown_has_no_table_without_rows():
    said = markdown(Document(title="base a, new b", headlines=[], notes=[], sections=[
        Section(title="counted", header=("base", "new", "change"), rows=[], remarks=["equal: parameters"]),
        Section(title="run properties", header=("base", "new"), rows=[("ranks", "2", "3")])]))
    assert "equal: parameters" in said and "counted" not in said and "| ranks | 2 | 3 |" in said


@pytest.mark.long
def test_names_of_modules_are_text(folder, tmp_path):
    runs = [simulated(folder / f"named{seed}", seed, ranks=2) for seed in (9, 10)]
    for file in (file for run in runs for file in run.glob("rank*/events.parquet")):
        table = pl.read_parquet(file)
        table.with_columns(pl.col("name").cast(pl.String).str.replace(
            "layers.2 [", "<img src=x onerror=y>|\u202e [", literal=True)).write_parquet(file)
    text = called("diff", "--html", tmp_path / "page.html", *runs).stdout
    assert "<img src=x onerror=y>|\\u202e" in text and "\u202e" not in text
    page = Cells((tmp_path / "page.html").read_text())
    assert "img" not in page.tags and "<img src=x onerror=y>|\\u202e" in "".join(page.said)
    assert "&#60;img src=x onerror=y&#62;&#124;" in called("diff", "--markdown", *runs).stdout


@pytest.mark.long
def test_a_run_and_itself(base):
    done = called("diff", base, base)
    assert done.stdout.splitlines()[2] == "both sides are the same run, so no change to the job can show here"
    assert called("diff", base, base, "--fail-if", "step_time > 5 %").returncode == 0


@pytest.mark.long
def test_another_folder_and_plan_of_recording_are_no_difference_of_the_job(base, same, tmp_path):
    command = "distprof run --out {} --steps trace=6,time=3 --no-merge --nproc-per-node 4 train.py --out mine --lr {}"
    sides = [_launched(run, tmp_path / run.name, command.format(run, lr)) for run, lr in ((base, 1), (same, 2))]
    assert {"name": "arguments", "base": "--nproc-per-node 4 train.py --out mine --lr 1",
            "new": "--nproc-per-node 4 train.py --out mine --lr 2"} in diff(*sides)["facts"]


def _launched(run: Path, folder: Path, command: str) -> Path:
    shutil.copytree(run, folder)
    about = json.loads((folder / "run.json").read_text()) if (folder / "run.json").is_file() else {
        "format": 1, "run_id": run.name}
    (folder / "run.json").write_text(json.dumps(about | {"argv": command.split()}))
    return folder


@pytest.mark.long
def test_modules_that_changed_alike_are_named_together(base, tmp_path):
    other = tmp_path / "both"
    plants = [Plant(rank, "forward", f"layers.{layer}", 3_000_000) for rank in range(4) for layer in (1, 3)]
    Recorder().write(Simulation(programs(SHAPES["ddp"], 4, 15, 7, plants=plants)), other)
    line = next(line for line in called("diff", base, other).stdout.splitlines() if line.startswith("2 modules"))
    found = re.fullmatch(r"2 modules changed by about the same amount, \+(.*) ms to \+(.*) ms per step each: "
                         r"layers.[13], layers.[13]", line)
    assert found is not None and 2.7 < float(found[1]) < float(found[2]) < 3.3


@pytest.mark.long
@pytest.mark.parametrize(("queued", "verdict"), [((0.10, 0.12), "changed"), ((0.10, 0.30), "unknown")])
def test_time_on_a_processor_is_not_judged_where_processors_were_short_to_different_degrees(base, same, tmp_path,
                                                                                          queued, verdict):
    sides = [_sharing(run, tmp_path / run.name, part, cpu) for run, part, cpu in zip(
        (base, same), queued, (0.7, 0.5), strict=True)]
    found = diff(*sides)
    assert found["cpu_time"]["verdict"] == verdict and found["cpu_time"]["ratio"] == pytest.approx(-2 / 7, abs=0.05)
    done = called("diff", "--fail-if", "cpu_time < -5 %", *sides)
    line = next(line for line in done.stdout.splitlines() if line.startswith("CPU time of the thread"))
    if verdict == "changed":
        assert done.returncode == 1 and "faster" in line
    else:
        assert done.returncode == 3 and "short of CPU time to different degrees" in done.stderr
        assert "faster" not in line and "not judged" in line and "10.0 %" in line and "30.0 %" in line


def _sharing(run: Path, folder: Path, queued: float, cpu: float) -> Path:
    """The run as if its threads had waited for a processor for so much of a step, and had it for so much."""
    shutil.copytree(run, folder)
    for file in folder.glob("rank*/steps.parquet"):
        table = pl.read_parquet(file)
        table.with_columns(run_queue_ns=(queued * pl.col("duration_ns")).cast(pl.Int64),
                           cpu_ns=(cpu * pl.col("duration_ns")).cast(pl.Int64)).write_parquet(file)
    return folder
