"""What torch.compile does in a job is recorded from begin to end, as torch itself counts it, and disturbs nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import polars as pl
import pytest
import torch

import distprof
from distprof.recording import compile_log
from support.jobs import PATIENCE_S, SCRIPTS, called, clean_environ, merged, record_run

SCRIPT = SCRIPTS / "recompiles.py"
RECOMPILING = re.compile(r"Recompiling function (\S+) in (.+):(\d+)\n.*failure\(s\):\n\s*- (.+)")
MICROSECONDS = 40_000
"""torch gives whole ones, of each compilation."""
ROWS = {0: (4, 4, 6, 6, 4, 7, 7, 4), 1: (4, 4, 6, 6, 4, 6, 6, 4)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Six of eight steps are recorded; what torch says of all lies beside the run."""
    folder = tmp_path_factory.mktemp("recompiles")
    record_run(folder / "run", 2, SCRIPT, folder, 8, "aot_eager", flags=("--topics", "sync,shape_infer", "--steps",
                                                         "wait=1,sync=2,arrivals=3"))
    return folder / "run"


def rows_of(run, rank: int) -> pl.DataFrame:
    return pl.read_parquet(run / f"rank{rank:05}" / "compilations.parquet")


def truth(run, rank: int) -> dict:
    return json.loads((run.parent / f"{rank}.json").read_text())


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.mark.job
@pytest.mark.parametrize("rank", [0, 1])
def test_compilations_and_their_times_are_those_that_torch_counts(run, rank):
    rows, told = rows_of(run, rank), truth(run, rank)
    forward = rows.filter(pl.col("event").is_in(["compile", "recompile"]))
    assert forward["duration_ns"].to_list() == pytest.approx([1e9 * one for one in told["times_s"]], abs=1000)
    backward = rows.filter(pl.col("event") == "backward")
    assert len(backward) == told["backward"] > 0
    assert forward["backend_ns"].sum() == pytest.approx(told["spent_ns"]["backend_compile"], abs=MICROSECONDS)
    assert backward["duration_ns"].sum() == pytest.approx(told["spent_ns"]["entire_backward_compile"], abs=MICROSECONDS)
    for column, names in (("guards_ns", ["build_guards"]),
                          ("fake_ns", ["get_fake_value", "wrap_to_fake_tensor_and_record"])):
        noted = [told["noted_s"][name] for name in names if name in told["noted_s"]]
        assert forward[column].drop_nulls().sum() == pytest.approx(1e9 * sum(noted), rel=1e-6)
        assert forward[column].null_count() == (0 if noted else len(forward))


@pytest.mark.job
@pytest.mark.stress
def test_times_of_inductor_are_those_that_torch_counts(tmp_path):
    record_run(tmp_path / "run", 1, SCRIPT, tmp_path, 3, "inductor", flags=("--topics", "shape_infer"),
               TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    rows, spent = rows_of(tmp_path / "run", 0), truth(tmp_path / "run", 0)["spent_ns"]
    assert rows["inductor_ns"].sum() == pytest.approx(spent["inductor_compile"], abs=MICROSECONDS)
    assert set(rows.filter(pl.col("inductor_ns").is_not_null())["event"]) == {"compile", "recompile", "backward"}
    assert rows.filter(pl.col("inductor_ns") > pl.col("backend_ns")).is_empty()


@pytest.mark.job
@pytest.mark.parametrize("rank", [0, 1])
def test_reasons_are_those_that_torch_logs(run, rank):
    rows, told = rows_of(run, rank), truth(run, rank)
    logged = [RECOMPILING.match(line).groups() for line in told["recompiles"]]
    found = rows.filter(pl.col("event") == "recompile").select("function", "file", "line", "reason").rows()
    assert [(name, file, str(line), reason) for name, file, line, reason in found] == logged
    assert len(found) == 4 * (len(set(ROWS[rank])) - 1), "four functions, at each new shape"
    breaks = rows.filter(pl.col("event") == "graph_break")
    assert dict(breaks["reason"].value_counts().iter_rows()) == told["breaks"]
    assert set(breaks["line"]) == {line_of("breaks")} and set(breaks["function"]) == {"forward"}


@pytest.mark.job
@pytest.mark.parametrize("rank", [0, 1])
def test_steps_lines_and_modules(run, rank):
    rows = rows_of(run, rank)
    new = [step for step, shape in enumerate(ROWS[rank]) if shape not in ROWS[rank][:step]]
    assert rows["step"].unique(maintain_order=True).to_list() == [*new, None], "the last is behind the recorded steps"
    callers = dict(rows.filter(pl.col("function") != "<lambda>").group_by("function", "module_path").agg(
        pl.col("caller_line").unique()).select(pl.concat_str("function", "module_path", separator=" of "),
                                               "caller_line").iter_rows())
    assert line_of("calls") in callers["forward of "] and set(callers) >= {"forward of ", "forward of head"}
    assert rows.filter(pl.col("function") != "<lambda>")["module_path"].null_count() == 0, "those of late steps as well"
    late = rows.filter(pl.col("function") == "<lambda>")
    assert late.select("event", "caller_line", "module_path").rows() == [("compile", line_of("late"), None)]
    joined = rows.filter(pl.col("event") == "backward").join(
        rows.filter(pl.col("event") != "backward"), on=("compile_id", "file", "line", "function", "module_path"))
    assert len(joined) == (rows["event"] == "backward").sum(), "a graph of backward has what its forward has"
    about = json.loads((run / f"rank{rank:05}" / "rank.json").read_text())
    assert about["files"]["compilations.parquet"] == len(rows) and about["status"] == "complete"


@pytest.mark.job
def test_waits_show_what_was_compiled_in_the_job_and_in_their_steps(run):
    rows = pl.concat([rows_of(run, rank) for rank in (0, 1)])
    found = json.loads(called("waits", "--json", run).stdout)
    totals, groups = found["compilations"]["totals"], found["compilations"]["rows"]
    assert totals["duration_ns"] == rows["duration_ns"].sum() == sum(one["duration_ns"] for one in groups)
    assert {name: totals[name] for name in ("compile", "recompile", "backward", "graph_break")} == dict(
        rows["event"].value_counts().iter_rows())
    again = next(one for one in groups if one["event"] == "recompile" and one["module"] == "head"
                 and one["function"] == "forward")
    assert (again["times"], again["module"], again["num_ranks"], again["steps"]) == (3, "head", 2, [2, 5])
    assert again["reasons"][0] == "tensor 'x' size mismatch at index 0. expected 4, actual 6"
    mine = rows.filter(pl.col("step").is_in([1, 2]))
    waits = [one for one in found["waits"] if one["op"] == "torch.compile"]
    assert sum(one["blocked_ns"] for one in waits) == mine["duration_ns"].sum() > 0
    assert {one["waits_for"] for one in waits} == {"compiler"} and line_of("calls") in {one["line"] for one in waits}
    text = called("waits", run).stdout
    assert f"{totals['recompile']} of them recompilations after guard failures" in text
    assert "User-inserted graph break" in text
    assert "no timeline shows them" in called("waits", "--queues", run).stdout
    assert "queues" not in text and found["queues"] is None
    only = json.loads(called("waits", "--json", "--rank", 1, "--step", 2, run).stdout)["compilations"]["totals"]
    assert only["recompile"] == 4 and only["compile"] == 0
    frame = distprof.read_run(run).compilations()
    assert frame.drop("rank", "mp_size", "dp_size").equals(rows.drop("rank", "mp_size", "dp_size").cast(
        {name: kind for name, kind in frame.schema.items() if name in rows.columns and name[1:] != "ank"
         and name not in ("mp_size", "dp_size")}))
    merged(run)
    assert pl.read_parquet(run / "merged" / "compilations.parquet").height == len(rows)


def copied(run, copy, *, without: tuple[str, ...] = ()):
    for path in (*run.glob("rank*/*"), run / "run.json"):
        if path.name not in without:
            place = copy / path.relative_to(run)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return copy


@pytest.mark.job
def test_a_damaged_table_is_named_and_that_of_the_other_rank_is_shown(run, tmp_path):
    copy = copied(run, tmp_path / "run")
    (copy / "rank00001" / "compilations.parquet").write_bytes(b"PAR1")
    done = called("waits", copy)
    assert done.returncode == 0 and "compilations.parquet" in done.stdout and "in the whole job, 1 rank:" in done.stdout
    assert called("waits", "--strict", copy).returncode == 3


@pytest.mark.job
def test_a_run_without_waits_and_timelines_shows_its_compilations(run, tmp_path):
    copy = copied(run, tmp_path / "run", without=("waits.parquet", "trace.json.gz"))
    text = called("waits", copy).stdout
    assert "neither waiting lines nor a timeline were recorded" in text and "torch.compile in the whole job" in text
    assert json.loads(called("waits", "--json", copy).stdout)["source"] is None


UNTOUCHED = """
import sys, torch, distprof
before = list(sys.meta_path)
with distprof.record(sys.argv[1], steps="wait=0,count=0,time=2,trace=0,arrivals=0") as recorder:
    net = torch.nn.Linear(2, 2)
    for _ in range(3):
        net(torch.ones(2, 2)).sum().backward()
        recorder.step()
assert sys.meta_path == before, sys.meta_path
assert "torch._dynamo.utils" not in sys.modules
"""


@pytest.mark.job
def test_a_script_without_compiler_is_not_touched(tmp_path):
    done = subprocess.run([sys.executable, "-c", UNTOUCHED, str(tmp_path / "run")], capture_output=True, text=True,
                          timeout=PATIENCE_S, env=clean_environ(), check=False)
    assert done.returncode == 0, done.stderr
    assert not [*tmp_path.glob("run/*/compilations.parquet")] and [*tmp_path.glob("run/*/steps.parquet")]


def loop(run, function, inputs):
    import torch._dynamo.utils as utils

    torch._dynamo.reset()
    own = utils.log_compilation_event
    with distprof.record(run, steps="wait=0,count=0,time=2,trace=0,arrivals=0") as recorder:
        results = []
        for one in inputs:
            results.append(function(one))
            recorder.step()
    assert utils.log_compilation_event is own, "it is taken away at the end of the recording"
    return results


@pytest.mark.long
def test_an_error_of_ours_ends_the_log_and_nothing_else(tmp_path, monkeypatch, capsys):
    def fails(*_):
        raise KeyError("metrics")

    monkeypatch.setattr(compile_log, "metrics_row", fails)
    doubled = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    results = loop(tmp_path / "run", doubled, [torch.ones(size) for size in (2, 3, 4)])
    assert [len(one) for one in results] == [2, 3, 4]
    about = json.loads(next(tmp_path.glob("run/*/rank.json")).read_text())
    assert about["status"] == "complete" and not [*tmp_path.glob("run/*/compilations.parquet")]
    assert capsys.readouterr().err.count("torch.compile is no longer recorded from here on: KeyError") == 1


@pytest.mark.long
def test_a_function_that_is_compiled_too_often_is_said_to_have_failed(tmp_path):
    doubled = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        loop(tmp_path / "run", doubled, [torch.ones(size) for size in (2, 3, 4, 5)])
    rows = pl.read_parquet(next(tmp_path.glob("run/*/compilations.parquet")))
    assert rows["event"].to_list() == ["compile", "recompile", "recompile"]
    assert rows["error"].is_null().to_list() == [True, True, False]
    assert rows["reason"][2].endswith("size mismatch at index 0. expected 3, actual 4") or "expected 2" in rows[
        "reason"][2]


@pytest.mark.long
def test_rows_beyond_the_most_are_counted_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compile_log, "MOST_ROWS", 2)
    doubled = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    loop(tmp_path / "run", doubled, [torch.ones(size) for size in (2, 3, 4, 5)])
    assert len(pl.read_parquet(next(tmp_path.glob("run/*/compilations.parquet")))) == 2
    assert "more than 2 compilations and graph breaks: later ones are not recorded" in capsys.readouterr().err


@pytest.mark.long
def test_a_layer_that_is_compiled_in_place_has_its_path_and_the_line_that_calls_it(tmp_path):
    class Layer(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).relu()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer(2, 2)

        def forward(self, x):
            return self.layer(x).sum()

    torch._dynamo.reset()
    net = Net()
    net.layer.compile(backend="eager", dynamic=False)
    with distprof.record(tmp_path / "run", steps="wait=0,count=0,time=4,trace=0,arrivals=0") as recorder:
        for size in (2, 2, 3, 3):
            net(torch.ones(size, 2)).backward()
            recorder.step()
    rows = pl.read_parquet(next(tmp_path.glob("run/*/compilations.parquet")))
    # torch 2.15 compiles such a layer once more where there are hooks
    assert {"compile", "recompile"} == set(rows["event"]) and {0, 2} <= set(rows["step"])
    assert set(rows["module_path"]) == {"layer"} and set(rows["caller_file"]) == {__file__}
    assert all(one.endswith("Net.forward") for one in rows["caller_function"])


@pytest.mark.long
def test_alone_the_topic_numbers_steps_and_records_nothing_else(tmp_path):
    doubled = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    torch._dynamo.reset()
    with distprof.record(tmp_path / "run", topics="shape_infer") as recorder:
        for size in (2, 2, 3, 3):
            doubled(torch.ones(size))
            recorder.step()
    folder = next(tmp_path.glob("run/rank*"))
    assert pl.read_parquet(folder / "compilations.parquet")["step"].to_list() == [0, 2]
    assert json.loads((folder / "rank.json").read_text())["status"] == "complete"
    assert pl.read_parquet(folder / "steps.parquet")["pass"].to_list() == ["wait", "wait", "arrivals", "arrivals"]


@pytest.mark.long
def test_a_reset_of_the_compiler_is_no_end_of_the_log(tmp_path):
    def break_in(x):
        torch._dynamo.graph_break()
        return 2 * x

    compiled = torch.compile(break_in, backend="eager", dynamic=False)

    def call(x):
        torch._dynamo.reset()
        torch._dynamo.utils.compilation_time_metrics.clear()
        return compiled(x)

    loop(tmp_path / "run", call, [torch.ones(2)] * 3)
    rows = pl.read_parquet(next(tmp_path.glob("run/*/compilations.parquet")))
    assert (rows["event"] == "graph_break").sum() == 3 and (rows["step"].drop_nulls().unique().to_list() == [0, 1])
    assert (rows["guards_ns"].drop_nulls() > 0).all()
