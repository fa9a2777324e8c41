"""Jobs that hang: which collective, who waits in it, who never entered it and where that rank is; in words."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from distprof.contract.paths import STUCK_JSON
from distprof.contract.stuck import OpenCall, StackFrame, Stuck, StuckCollective, StuckGroup, StuckThread
from distprof.merge.blame.hang import hangs, hangs_of
from distprof.merge.text.communication.hang import hang_lines
from support import forked
from support.drawn_rows import run_of
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, distprof, wait_for

SECOND = 1_000_000_000
USER = StackFrame(file="/home/me/train.py", line=57, function="load_batch")
TORCH = StackFrame(file="/usr/lib/python3.11/site-packages/torch/x.py", line=1, function="wait")


def called(number: int, *, op: str = "all_reduce", over: bool = False, size: int = 3,
           ago: float = 12.0) -> StuckCollective:
    return StuckCollective(
        number=number, name=f"gloo:{op}", op=op, point_to_point=False, state="scheduled", completed=over,
        input_sizes=[[size]], input_dtypes=["Float"], output_sizes=[[size]], output_dtypes=["Float"],
        called_ns=round((100 - ago) * SECOND))


def group(*collectives: StuckCollective, ranks: int = 4, name: str = "1", description: str = "mesh_dp") -> StuckGroup:
    return StuckGroup(name=name, description=description, backend="gloo", ranks=list(range(ranks)), last_started=None,
                      last_called=max((one.number for one in collectives), default=None),
                      last_completed=max((one.number for one in collectives if one.completed), default=None),
                      collectives=list(collectives))


def stuck(rank: int, *groups: StuckGroup, frames: tuple[StackFrame, ...] = (USER, TORCH), cause: str = "signal",
          calls: tuple[OpenCall, ...] = ()) -> Stuck:
    thread = StuckThread(name="MainThread", native_id=1, main=True, frames=list(frames))
    waiting = any(not one.completed for some in groups for one in some.collectives)
    return Stuck(format=1, rank=rank, world_size=4, time_ns=100 * SECOND, cause=cause, why="signal SIGTERM",
                 waiting=waiting, recording=True, step=5, pass_name="trace", phase=None, module_path=None,
                 since_ns=None, groups=list(groups), open_calls=list(calls), threads=[thread])


def told(*ranks: Stuck) -> list[str]:
    return list(hang_lines(hangs({one.rank: one for one in ranks})))


def test_who_waits_and_who_never_entered():
    waits = group(called(41, over=True), called(42))
    absent = stuck(2, group(called(41, over=True)))
    assert told(stuck(0, waits), stuck(1, waits), absent, stuck(3, waits)) == [
        "stuck: ranks 0, 1 and 3 wait in all_reduce #42 of mesh_dp (0-3) for 12 s; rank 2 never entered: it is at "
        "train.py:57 in load_batch"]


def test_ranks_that_call_different_things():
    waits, differs = group(called(42)), group(called(42, op="all_gather"))
    assert told(stuck(0, waits), stuck(1, waits), stuck(2, differs), stuck(3, waits)) == [
        "stuck: ranks 0, 1, 2 and 3 wait in all_reduce #42 of mesh_dp (0-3) for 12 s; called differently: rank 2 "
        "called all_gather where ranks 0, 1 and 3 called all_reduce"]


def test_inputs_that_differ_where_some_got_through():
    lines = told(stuck(0, group(called(7, over=True), ranks=2)), stuck(1, group(called(7, size=5), ranks=2)))
    assert lines[:1] == ["stuck: rank 1 waits in all_reduce #7 of mesh_dp (0-1) for 12 s; inputs differ: rank 1 "
                         "passed 5 Float where rank 0 passed 3 Float; it has finished on rank 0"]
    assert lines[1:] == ["ended: rank 0 was at train.py:57 in load_batch, not in a collective (signal SIGTERM)"]
    gathered = told(*(stuck(rank, group(called(7, op="all_gather", size=rank + 1), ranks=2)) for rank in range(2)))
    assert "inputs differ" not in gathered[0] and "all ranks have entered it" in gathered[0]


def test_the_group_in_which_nobody_else_waits_comes_first():
    """Rank 3 is absent from both groups; rank 1 is absent from one because it waits in the other."""
    first = group(called(1, ago=30.0), description="mesh_tp", name="2", ranks=2)
    second = group(called(5, ago=20.0))
    lines = told(stuck(0, first, group(called(4, over=True))), stuck(1, group(description="mesh_tp", name="2", ranks=2),
                                                                  second),
                 stuck(2, second), stuck(3, group(called(4, over=True))))
    assert lines[0].startswith("stuck: ranks 1 and 2 wait in all_reduce #5 of mesh_dp (0-3) for 20 s; ranks 0 and 3")
    assert "rank 1 never entered: it is at train.py:57 in load_batch, in all_reduce #5 of mesh_dp (0-3)" in lines[1]


def test_a_rank_of_which_nothing_is_known_and_one_that_waits_for_a_message():
    call = OpenCall(op="recv", group="0", group_ranks=[0, 1], sequence=0, group_sequence=1, num_elements=3,
                    size_bytes=12, dtype="float32", peer=0, tag=0, asynchronous=False, module_path=None, phase=None,
                    step=5, enqueue_ns=0)
    assert told(stuck(1, calls=(call,))) == [
        "ended: rank 1 waits in recv from rank 0, at train.py:57 in load_batch (signal SIGTERM)"]
    assert "ranks 1, 2 and 3 left no report" in told(stuck(0, group(called(3))))[0]


def test_ended_in_the_midst_of_work_is_not_called_stuck():
    line = told(*(stuck(rank, group(called(9, ago=0.01), ranks=2)) for rank in range(2)))[0]
    assert line.startswith("when it was stopped: ranks 0 and 1 wait in all_reduce #9")


def test_a_damaged_file_is_a_problem_and_no_end(tmp_path):
    run = run_of(2, folder=tmp_path)
    for rank in range(2):
        (tmp_path / f"rank{rank:05d}").mkdir()
    (tmp_path / "rank00000" / STUCK_JSON).write_bytes(b"{")
    (tmp_path / "rank00001" / STUCK_JSON).write_bytes(msgspec.json.encode(stuck(1, group(called(3), ranks=2))))
    found, problems = hangs_of(run)
    assert found is not None and found.hangs[0].unknown == [0]
    assert [(one.rank, one.file) for one in problems] == [(0, "stuck.json")]


@pytest.mark.job
@pytest.mark.parametrize(("how", "words"), [
    ("absent", "rank 1 never entered: it is at stuck.py:"),
    pytest.param("ops", "called differently: rank 1 called barrier where ranks 0 and 2 called all_reduce",
                 marks=pytest.mark.stress)])
def test_comms_says_first_what_a_real_job_hangs_in(tmp_path, how, words):
    out, mark = tmp_path / "run", tmp_path / "mark"
    job = forked.popen(
        [sys.executable, "-m", "distprof", "run", "--out", out, "--nproc-per-node", "3", "--steps",
         "wait=0,count=0,time=0,trace=3", SCRIPTS / "stuck.py", how, "1", mark], env=clean_environ(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(job, *(Path(f"{mark}.{rank}") for rank in range(3)))
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=PATIENCE_S)
    line = distprof("comms", out).stdout.splitlines()[1]
    assert line.startswith("stuck: ranks 0") and words in line and "of checks (0-2)" in line, line
    data = json.loads(distprof("comms", "--json", out).stdout)["stuck"]
    assert [one["rank"] for one in data["ranks"]] == [0, 1, 2] and data["hangs"][0]["group"] == "checks (0-2)"
