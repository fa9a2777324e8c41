"""Reports of runs that lack something: the document comes all the same, and names what is not there."""

from __future__ import annotations

import json
import os
import shutil
import threading
from contextlib import nullcontext
from functools import cached_property

import msgspec
import pytest

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON, STUCK_JSON, rank_folder
from distprof.contract.rank_json import RankFailure, RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.stuck import StackFrame, Stuck, StuckCollective, StuckGroup, StuckThread
from distprof.contract.tables import COLLECTIVES, EVENTS
from distprof.merge.operators.run_operators import run_operators
from distprof.merge.report import model, sources
from distprof.merge.report.document import SECTIONS as BUILT
from distprof.merge.text.rates import exposed
from support.hostile import FILE_NAME, NAME, judge
from support.jobs import EXAMPLES, called, record_run
from support.kineto_files import DLRM, needs_shared
from support.made_up_traces import folder, op
from support.rank_traces import slice_of, strict, write_run
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

SECTIONS = {*BUILT, "totals", "communication"}


def document(*arguments):
    """The JSON of a report, as a strict reader takes it; what is null says why."""
    done = called("report", "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    found = strict(done.stdout.encode())
    assert {name for name in SECTIONS if found[name] is None} == set(found["absent"])
    assert all(found["absent"].values())
    assert 0 < len(found["findings"]) <= 12
    assert {one["section"] for one in found["findings"]} <= {*SECTIONS, "missing", "topology"}
    return found


def simulated(path, *plants, ranks=4, steps=6, name="ddp"):
    return Recorder().write(Simulation(programs(SHAPES[name], ranks, steps, 1, plants=plants, jitter=0.01), lanes=1),
                            path / "run")


def change(run, rank, **fields):
    path = run / rank_folder(rank) / RANK_JSON
    known = rank_json.read(path, RankJson)
    rank_json.write(path, msgspec.structs.replace(known, **fields))


def texts(found):
    return [one["text"] for one in found["findings"]]


@pytest.mark.long
def test_a_run_without_timeline(tmp_path):
    run = simulated(tmp_path)
    for events in run.glob(f"rank*/{EVENTS.file}"):
        events.unlink()
    found = document(run)
    assert found["step_parts"] is None and "trace=6" in found["absent"]["step_parts"]
    assert "trace=6" in found["absent"]["operators"]
    assert len(found["collectives"]["steps"]) == 6
    assert set(found["heat_map"]["by"]["waiting_ns"]) == {None}


@pytest.mark.long
def test_a_run_without_time_pass(tmp_path):
    found = document(simulated(tmp_path))
    assert found["step"]["passes"] == ["trace"] and found["step"]["mfu"] is None
    assert any("with the profiler on" in text for text in texts(found))


@pytest.mark.job
def test_a_run_with_a_time_pass_alone(tmp_path):
    record_run(tmp_path / "run", 1, EXAMPLES / "train_ddp.py", "--steps", 4,
               flags=("--steps", "wait=0,count=1,time=3,trace=0"))
    found = document(tmp_path / "run")
    assert found["step_parts"]["source"] == "time"
    assert set(found["heat_map"]["by"]["pass"]) == {"time"}
    row = {name: values[0] for name, values in found["step_parts"]["by_rank"].items()}
    assert sum(row[name] for name in found["step_parts"]["parts"]) == pytest.approx(row["duration_ns"])
    assert row["duration_ns"] == pytest.approx(found["step"]["time_ns"])
    assert found["collectives"] is None and found["modules"]["tree"]["path"][0] == ""


@pytest.mark.long
def test_one_rank_alone(tmp_path):
    found = document(simulated(tmp_path, ranks=1))
    assert found["ranks"] == [0]
    assert found["blame"]["blind"] == "one rank: nobody waits"
    assert not any(one["severity"] in ("bad", "good") for one in found["findings"])
    assert not any("communication" in text for text in texts(found))


@pytest.mark.long
def test_ranks_that_are_missing(tmp_path):
    run = simulated(tmp_path)
    shutil.rmtree(run / rank_folder(3))
    found = document(run)
    assert found["missing_ranks"] == [3]
    assert found["findings"][0]["severity"] == "bad"
    assert texts(found)[0] == "Rank 3 of 4 missing."
    assert "rank 3 of 4 missing" in found["missing"]
    assert not any("moving data" in text for text in texts(found)), "what others waited for it seems moving"


@pytest.mark.long
def test_where_no_collective_is_known_from_two_ranks_waiting_is_unknown_and_not_0(tmp_path):
    step = slice_of("ProfilerStep#1", 0, 1000, cat="user_annotation")
    compute, reduce = (slice_of(name, ts, 400, cat="kernel", tid=9, device=0) for name, ts in (
        ("gemm", 10), ("ncclDevKernel_AllReduce_Sum_f32", 500)))
    for rank, events in enumerate(([step, compute, reduce], [step, compute])):
        about = {"distributedInfo": {"rank": rank, "world_size": 2}, "host_name": "a"}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({**about, "traceEvents": events}))
    found = document(tmp_path)
    assert found["communication"]["waiting_ratio"] is None and found["communication"]["exposed_ratio"] > 0.1
    shown = called("report", "--markdown", tmp_path).stdout
    assert "waiting for other ranks |" not in shown and " 0.0 %" not in shown
    assert "is unknown, as no collective is known from all of its ranks" in exposed(
        found["communication"] | {"blind": "no collective"})


@pytest.mark.long
def test_collectives_that_a_device_ends_in_the_next_step_of_its_host_are_shown_whole(tmp_path):
    for rank, arrives_us in enumerate((900, 950)):
        events = [slice_of(f"ProfilerStep#{number}", 1000 * number, 1000, cat="user_annotation") for number in (0, 1)]
        events += [slice_of("cudaLaunchKernelExC", 800, 5, cat="cuda_runtime", correlation=7),
                   slice_of("ncclDevKernel_AllReduce_Sum_f32", arrives_us, 1900 - arrives_us, cat="kernel", tid=9,
                            device=0, correlation=7)]
        about = {"distributedInfo": {"rank": rank, "world_size": 2}, "host_name": "a"}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({**about, "traceEvents": events}))
    (step,) = document(tmp_path)["collectives"]["steps"]
    assert (step["step"], step["duration_ns"], step["shown_ns"]) == (0, 1_000_000, 1_900_000)


@pytest.mark.long
def test_what_the_one_rank_that_is_left_waits_for_is_unknown(tmp_path):
    run = simulated(tmp_path, ranks=2)
    shutil.rmtree(run / rank_folder(1))
    found = document(run)
    assert found["communication"]["waiting_ratio"] is None and found["communication"]["exposed_ratio"] > 0
    assert "one rank is left" in found["blame"]["blind"]
    assert any("waiting for other ranks is unknown because ranks are missing" in text for text in texts(found))
    shown = called("stats", run).stdout
    assert "how much of it is waiting for other ranks is unknown, as ranks are missing" in " ".join(shown.split())
    assert "one rank is left" in shown and "nobody waits" not in shown and "0.0 % of a step waiting" not in shown
    assert "counts as moving" in " ".join(called("comms", run).stdout.split())


def test_a_run_without_collectives(tmp_path):
    run = simulated(tmp_path)
    for table in run.glob(f"rank*/{COLLECTIVES.file}"):
        table.unlink()
    found = document(run)
    assert all("no collective was recorded" in found["absent"][name] for name in (
        "collectives", "collective_kinds", "bandwidths", "blame", "communication"))
    assert found["heat_map"] is not None


def test_nothing_but_timelines(tmp_path):
    found = document(write_run(tmp_path / "run", [slice_of("aten::mm", 1, 5, cat="cpu_op")], []))
    assert [row[0] for row in found["operators"]["rows"]] == ["aten::mm"]
    assert found["step_parts"] is None and found["heat_map"] is None


def test_a_damaged_timeline_is_named(tmp_path):
    run = write_run(tmp_path / "run", [slice_of("aten::mm", 1, 5, cat="cpu_op")], "no trace")
    found = document(run)
    assert [row[0] for row in found["operators"]["rows"]] == ["aten::mm"]
    assert any(text.startswith("rank 1: ") for text in found["missing"])


@pytest.mark.long
def test_a_damaged_rank_is_called_damaged_and_not_only_missing(tmp_path):
    run = simulated(tmp_path)
    about = run / rank_folder(2) / RANK_JSON
    about.write_bytes(about.read_bytes()[:40])
    found = document(run)
    bad = [one["text"] for one in found["findings"] if one["severity"] == "bad"]
    assert any(text.startswith("Damaged: rank00002") and "rank.json" in text for text in bad)
    assert any(text.startswith("Rank 2 of 4 missing") for text in bad)


@pytest.mark.long
def test_traces_of_another_program_get_no_flags_of_recording_as_advice(tmp_path):
    found = document(folder(tmp_path, [op("aten::mm", 10, 400)], [op("aten::mm", 10, 400)]))
    said = json.dumps([found["absent"], found["findings"], found["missing"]])
    assert found["absent"]["memory"] and "--steps" not in said and "--topics" not in said
    ours = document(simulated(tmp_path))
    assert "--steps" in json.dumps(ours["absent"])


def stuck(rank, number, *, over):
    call = StuckCollective(number=number, name="gloo:all_reduce", op="all_reduce", point_to_point=False,
                           state="scheduled", completed=over, input_sizes=[[3]], input_dtypes=["Float"],
                           output_sizes=[[3]], output_dtypes=["Float"], called_ns=88 * 10**9)
    group = StuckGroup(name="1", description="mesh_dp", backend="gloo", ranks=[0, 1], last_started=None,
                       last_called=number, last_completed=number if over else None, collectives=[call])
    frame = StackFrame(file="/home/me/train.py", line=57, function="load_batch")
    thread = StuckThread(name="MainThread", native_id=1, main=True, frames=[frame])
    return Stuck(format=1, rank=rank, world_size=2, time_ns=100 * 10**9, cause="signal", why="signal SIGTERM",
                 waiting=not over, recording=True, step=5, pass_name="trace", phase=None, module_path=None,
                 since_ns=None, groups=[group], open_calls=[], threads=[thread])


@pytest.mark.long
def test_a_hang(tmp_path):
    run = simulated(tmp_path, ranks=2)
    for rank, call in enumerate((stuck(0, 42, over=False), stuck(1, 41, over=True))):
        (run / rank_folder(rank) / STUCK_JSON).write_bytes(msgspec.json.encode(call))
    found = document(run)
    first = found["findings"][0]
    assert (first["severity"], first["section"], first["rank"]) == ("bad", "hang", 1)
    assert first["text"] == ("Stuck: rank 0 waits in all_reduce #42 of mesh_dp (0-1) for 12 s; rank 1 never entered: "
                             "it is at train.py:57 in load_batch.")
    comms = json.loads(called("comms", "--json", run).stdout)["stuck"]
    assert {name: found["hang"][name] for name in comms} == comms


@pytest.mark.long
def test_a_rank_that_was_killed(tmp_path):
    run = simulated(tmp_path, ranks=2)
    change(run, 1, status="recording")
    rank_json.write(run / RUN_JSON, RunJson(run_id="simulated", world_size=2, exit_code=1, failed_rank=1,
                                            failed_with=-9))
    found = document(run)
    assert texts(found)[0] == "Rank 1 failed first: killed by signal 9."
    assert found["findings"][0]["rank"] == 1


@pytest.mark.long
def test_a_rank_that_lost_its_connection_to_a_host_that_died_did_not_fail_first(tmp_path):
    run = simulated(tmp_path, ranks=4)
    lost = RankFailure(what="DistBackendError: Connection reset by peer", at_ns=5, of_communication=True)
    for rank in (0, 1):
        change(run, rank, status="failed", why="it failed", failure=lost)
    for rank in (2, 3):
        change(run, rank, status="recording")
    rank_json.write(run / RUN_JSON, RunJson(run_id="simulated", world_size=4, exit_code=1, failed_rank=0,
                                            failed_with=1))
    first = document(run)["findings"][0]
    assert first["text"].startswith("Rank 2 ") and "killed" in first["text"] and "rank 3 " in first["detail"], first
    said = called("comms", run).stdout
    assert "failed first" not in said and "Connection reset" not in said.split("op  ")[0]


@pytest.mark.long
def test_the_exception_of_the_rank_that_failed_first(tmp_path):
    run = simulated(tmp_path, ranks=2)
    what = "ValueError in the script: bad sample 17 (train.py:9)"
    change(run, 1, status="failed", why=f"{what} after 3 steps",
           failure=RankFailure(what=what, at_ns=5, of_communication=False))
    found = document(run)
    assert found["findings"][0]["severity"] == "bad" and what in texts(found)[0]


def test_traces_of_another_program(tmp_path):
    run = folder(tmp_path / "traces" if (tmp_path / "traces").mkdir() is None else tmp_path,
                 *([op("aten::mm", 10, 5), op("aten::add", 20 + rank, 5)] for rank in range(2)))
    found = document(run)
    assert found["run"]["foreign"] and found["totals"] is None and found["topology"] is None
    assert {row[0] for row in found["operators"]["rows"]} == {"aten::mm", "aten::add"}
    assert "profile_memory=True" in found["absent"]["memory"]


@pytest.mark.long
def test_traces_that_mark_no_steps_are_not_called_a_step(tmp_path):
    call = op("c10d::allreduce_", 20, 30), op("gloo:all_reduce", 25, 20, tid=2)
    found = document(folder(tmp_path, *([op("aten::mm", 10, 400), *call] for _ in range(2))))
    assert found["step_parts"]["mean"]["duration_ns"] == 400_000
    said, = (text for text in texts(found) if "400.00 us" in text)
    assert said.startswith("The traces mark no steps; they take 400.00 us")
    assert not any("step is" in text or "A step" in text for text in texts(found))


def test_marked_steps_of_one_gpu_count_though_nothing_communicates(tmp_path):
    events = [one for step in range(4) for one in (
        op(f"ProfilerStep#{step}", 1000 * step, 1000, cat="user_annotation"),
        op("cudaLaunchKernel", 1000 * step + 10, 5, cat="cuda_runtime", correlation=step + 1),
        op("kernel", 1000 * step + 20, 100, tid=7, cat="kernel", correlation=step + 1))]
    idle, whole, *_ = texts(document(folder(tmp_path, events)))
    assert idle.startswith("For 89.5 % of its step, with the profiler on, the device waits for the host")
    assert whole.startswith("A step takes 1.00 ms")


@pytest.mark.job
def test_real_traces_of_another_program(profiled):
    found = document(profiled)
    assert found["run"]["foreign"] and len(found["ranks"]) == 4
    assert [one["op"] for one in found["collective_kinds"]] == ["all_reduce"]
    comms = json.loads(called("comms", "--json", profiled).stdout)
    assert [one["collective"] for one in comms["collectives"]] == [
        call for step in found["collectives"]["steps"] for call in step["calls"]["collective"]]


@pytest.mark.long
@needs_shared
def test_traces_of_eight_gpus():
    found = document(DLRM)
    assert len(found["ranks"]) == 8 and found["operators"]["totals"]["self_device_ns"]
    assert found["step_parts"]["source"] == "device"


def test_a_folder_without_a_run(tmp_path):
    done = called("report", tmp_path)
    assert done.returncode == 1 and "hint" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.skipif(os.sep != "/", reason="file names of other systems")
@pytest.mark.parametrize("form", ["--json", "--markdown"])
def test_hostile_names_are_text(tmp_path, form):
    run = tmp_path / FILE_NAME
    simulated(tmp_path, Plant(1, "forward", "layers.2", ns=30_000_000), steps=9).rename(run)
    change(run, 0, device_name=NAME, host="<script>alert(1)</script>", topology_source=NAME)
    change(run, 1, notes=[f"{NAME} | <img src=x>"])
    done = called("report", form, run)
    assert done.returncode == 0, done.stderr
    done.stdout.encode()  # no half of a pair
    if form == "--json":
        found = strict(done.stdout.encode())
        assert found["run"]["hosts"][0]["name"] == "<script>alert(1)</script>"
        assert found["topology_source"] == NAME
        json.dumps(found, ensure_ascii=False).encode()
        assert "\\udcff" in found["run"]["title"]
    else:
        assert "<" not in done.stdout
        judge(done.stdout.encode())


def test_timelines_are_read_once_if_a_section_needs_them_meanwhile(tmp_path, monkeypatch):
    needed, again, readers = threading.Event(), threading.Event(), list[str]()

    def read(*arguments, **options):
        readers.append(threading.current_thread().name)
        if len(readers) > 1:
            again.set()
        needed.wait(60)
        again.wait(0.3)
        return run_operators(*arguments, **options)

    def operators(*arguments):
        needed.set()
        return model.operators(*arguments)

    monkeypatch.setattr(sources, "run_operators", read)
    monkeypatch.setitem(BUILT, "operators", operators)
    for one in vars(sources.Sources).values():
        if isinstance(one, cached_property):
            monkeypatch.setattr(one, "lock", nullcontext(), raising=False)  # there is none from Python 3.12 on
    found = document(write_run(tmp_path / "run", [slice_of("aten::mm", 1, 5, cat="cpu_op")]))
    assert found["operators"] is not None and len(readers) == 1 and readers[0] != threading.main_thread().name


def test_an_error_while_timelines_are_read_ends_the_report_and_they_are_not_read_again(tmp_path, monkeypatch):
    readers = []

    def read(*_, **__):
        readers.append(threading.current_thread().name)
        raise MemoryError("no more")

    monkeypatch.setattr(sources, "run_operators", read)
    done = called("report", "--json", write_run(tmp_path / "run", [slice_of("aten::mm", 1, 5, cat="cpu_op")]))
    assert done.returncode == 1 and done.stdout == "" and len(readers) == 1
