"""Which timeline each execution trace of other programs belongs to, and what is said of those that belong to none."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distprof.errors import DataError
from distprof.merge.execution.rank_execution import sources_of
from distprof.merge.run.open_run import open_run
from support.execution_traces import call, file_of, pair, read_et, slices
from support.jobs import SCRIPTS, called, started
from support.kineto_files import DLRM, needs_shared
from support.ports import free_port


def recorded(folder: Path, script: str, *arguments: object) -> Path:
    folder.mkdir(exist_ok=True)
    done = started(SCRIPTS / script, folder, *arguments)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """What two programs leave in one folder: one process without a rank, and two ranks."""
    folder = recorded(tmp_path_factory.mktemp("demos"), "own_observer.py")
    return recorded(folder, "two_observers.py", free_port())


def exported(source, folder, *options):
    done = called("export", source, "--out", folder / "out", "--prefix", "job", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.job
def test_each_rank_gets_its_own_and_the_odd_file_is_named_alone(demos, tmp_path):
    said = exported(demos, tmp_path)
    assert said.count("100.0 %") == 2 and "--execution-trace" not in said
    named = [line for line in said.splitlines() if "nn_demo" in line]
    assert len(named) == 2 and named[1] == (
        "incomplete: nn_demo_trace.json was skipped: neither its contents nor its name give its rank"), said
    assert named[0] == ("note: nn_demo_et.json skipped: an execution trace of nn_demo_trace.json, whose rank is "
                        "unknown. distprof export nn_demo_et.json nn_demo_trace.json joins the two")
    for rank in (0, 1):
        names = Counter(node["name"] for node in read_et(tmp_path / "out" / f"job.{rank}.et")[1])
        written = json.loads((demos / f"demo_et_r{rank}.json").read_text())
        assert not Counter(one["name"] for one in written["nodes"] if "profiler" not in one["name"]) - names


@pytest.mark.job
def test_the_two_files_that_the_note_names_are_joined(demos, tmp_path):
    done = called("export", demos / "nn_demo_et.json", demos / "nn_demo_trace.json", "--out", tmp_path, "--prefix", "x")
    assert done.returncode == 0 and "100.0 %" in done.stdout, done.stderr


@pytest.mark.job
def test_process_numbers_tell_ranks_whose_calls_are_the_same(demos, tmp_path):
    for name in ("demo_trace_r0.json", "demo_trace_r1.json"):
        shutil.copy(demos / name, tmp_path)
    for rank, name in ((0, "second.json"), (1, "first.json")):
        shutil.copy(demos / f"demo_et_r{rank}.json", tmp_path / name)
    found = {one.number: one.execution_trace.name for one in sources_of(open_run(tmp_path)).ranks}
    assert found == {0: "second.json", 1: "first.json"}


@pytest.mark.job
@pytest.mark.parametrize("names", [
    ("nn_demo_et.json", "demo_trace_r1.json"), ("demo_et_r0.json", "nn_demo_trace.json")])
def test_files_of_different_processes_are_refused(demos, tmp_path, names):
    done = called("export", *(demos / name for name in names), "--out", tmp_path / "out")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "of different processes" in done.stderr
    assert "hint: pass files that one process recorded" in done.stderr and not list((tmp_path / "out").glob("*"))


@pytest.mark.job
def test_execution_traces_that_are_all_odd_end_the_export(demos, tmp_path):
    for name in ("nn_demo_et.json", "demo_trace_r0.json", "demo_trace_r1.json"):
        shutil.copy(demos / name, tmp_path)
    done = called("export", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1 and "timeline's process: nn_demo_et.json" in done.stderr
    assert "hint: pass the execution trace and the timeline of one process" in done.stderr


@pytest.mark.long
@needs_shared
@pytest.mark.parametrize("other", ["a100_nccl_data", "a100_negative_queue", "b200_eager_vllm",
                                   "mi300_resnet_act_checkpoint"])
def test_public_files_of_different_jobs_are_refused(tmp_path, other):
    done = called("export", DLRM / "et" / "dlrm_eg_0.json.gz", DLRM.parent / "gpu" / f"{other}.json.gz",
                  "--out", tmp_path / "out")
    assert done.returncode == 1 and "of different processes" in done.stderr


RANKS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=2, max_size=4)
"""For each rank whether its execution trace is there, has its number in the name, and has calls of its own."""


@pytest.mark.long
@given(RANKS, st.booleans(), st.integers(1, 30), st.integers(0, 2), st.booleans())
@example([(True, True, False)] * 3, False, 20, 1, True)
@example([(True, False, False)] * 2, False, 20, 0, True)
@example([(True, False, False)] * 2, True, 20, 1, False)
def test_an_execution_trace_is_paired_with_its_own_timeline_or_with_none(
        ranks, has_process, num_calls, strays, numbered):
    with TemporaryDirectory() as folder:
        path = Path(folder)
        told = {_write(path, rank, one, has_process=has_process, num_calls=num_calls, numbered=numbered)
                for rank, one in enumerate(ranks)} - {None}
        for number in range(strays):
            nodes = [call(at + 2, f"elsewhere {number} {at}", rf_id=at + 5) for at in range(num_calls)]
            (path / f"stray_{'xy'[number]}.json").write_text(file_of(*nodes, pid=7))
        run = open_run(path)
        if not run.unpaired.execution_traces:
            return
        try:
            sources = sources_of(run)
        except DataError as error:
            assert not any(is_told for _, is_told in told), error
            return
        of_rank = {one.number: one.execution_trace.path.name for one in sources.ranks if one.execution_trace}
        assert all(_rank_in(name) == rank for rank, name in of_rank.items()), of_rank
        named = {one.file for one in sources.remarks}
        assert named == {one.name for one in path.glob("*.json")} - {*of_rank.values()} - {
            f"rank{rank}.json" for rank in range(len(ranks))}
        assert {rank for rank, is_told in told if is_told} <= of_rank.keys()


def _rank_in(name):
    return "dcba".index(name[0])


def _write(path, rank, one, *, has_process, num_calls, numbered):
    """The files of a rank; its number, and whether anything tells that they belong together."""
    is_there, has_number, has_own = one
    begin, process = (100 * rank if has_own else 10), 40 + rank if has_process else 1
    names = [f"call {at} of {rank if has_own else 'all'}" for at in range(num_calls)]
    events = [event | {"pid": process} for event in slices(
        *((name, at + begin + 1) for at, name in enumerate(names)))]
    for event in events:
        event["args"] |= {} if numbered else {"Record function id": 0}
    (path / f"rank{rank}.json").write_text(json.dumps({
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 4}, "traceEvents": events}))
    if not is_there:
        return None
    nodes = [call(at + 2, name, rf_id=at + begin + 1) for at, name in enumerate(names)]
    (path / f"{'dcba'[rank]}_of_job{rank if has_number else ''}.json").write_text(file_of(*nodes, pid=process))
    return rank, has_process or has_number or has_own


@pytest.mark.parametrize(("process", "is_said"), [(1, False), (7, True)])
def test_a_line_says_where_both_files_are_of_different_processes(tmp_path, process, is_said):
    nodes = [call(number, f"op{number}") for number in range(2, 12)]
    events = slices(*((f"op{number}", number) for number in range(2, 12)))
    run = pair(tmp_path / "run", file_of(*nodes).replace('"pid": 1', f'"pid": {process}', 1), events)
    done = called("export", run, "--out", tmp_path / "out")
    assert done.returncode == 0 and ("of rank 0 have different process numbers" in done.stdout) == is_said
