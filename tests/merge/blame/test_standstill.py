"""Jobs in which no step ends: those that hang, and those that are slow."""

from __future__ import annotations

import pytest

from distprof.contract.stuck import StackFrame, Stuck, StuckCollective, StuckGroup, StuckThread
from distprof.merge.blame.hang import same_stacks, standstill
from distprof.merge.text.communication.hang import standstill_lines

SECOND = 1_000_000_000
USER = StackFrame(file="/home/me/train.py", line=57, function="load_batch")
TORCH = StackFrame(file="/usr/lib/python3.11/site-packages/torch/x.py", line=1, function="wait")


def collective(number: int, *, op: str = "all_reduce", over: bool = False) -> StuckCollective:
    return StuckCollective(
        number=number, name=f"gloo:{op}", op=op, point_to_point=False, state="scheduled", completed=over,
        input_sizes=[[3]], input_dtypes=["Float"], output_sizes=[[3]], output_dtypes=["Float"], called_ns=88 * SECOND)


def rank(number: int, *collectives: StuckCollective, frames: tuple[StackFrame, ...] = (USER, TORCH)) -> Stuck:
    group = StuckGroup(name="1", description="dp", backend="gloo", ranks=[0, 1, 2], last_started=None,
                       last_called=max((one.number for one in collectives), default=None), last_completed=None,
                       collectives=list(collectives))
    thread = StuckThread(name="MainThread", native_id=1, main=True, frames=list(frames))
    return Stuck(format=1, rank=number, world_size=3, time_ns=100 * SECOND, cause="asked", why="asked for",
                 waiting=any(not one.completed for one in collectives), recording=False, step=5, pass_name=None,
                 phase=None, module_path=None, since_ns=None, groups=[group], open_calls=[], threads=[thread])


WAIT, OVER = collective(7), collective(6, over=True)
IDLE = dict.fromkeys(range(3), "idle")


def of(*ranks: Stuck) -> dict[int, Stuck]:
    return {one.rank: one for one in ranks}


def test_who_is_missing_and_idle_keeps_the_others():
    told = of(rank(0, OVER, WAIT), rank(1, OVER, frames=(USER,)), rank(2, OVER, WAIT))
    found = standstill(told, IDLE, moving=True)
    assert found.culprits == [1]
    assert found.sure
    lines = standstill_lines(found, told, IDLE, 15 * SECOND)
    assert lines == [
        "stuck: ranks 0 and 2 wait in all_reduce #7 of dp (0-2) for 12 s; rank 1 never entered: it is at train.py:57 "
        "in load_batch",
        "ranks 0 and 2: load_batch (train.py:57) > wait (x.py:1)", "rank 1: load_batch (train.py:57)"]


def test_who_is_missing_and_busy_is_slow():
    told = of(rank(0, OVER, WAIT), rank(1, OVER), rank(2, OVER, WAIT))
    assert standstill(told, IDLE | {1: "busy"}, moving=False) is None


def test_that_those_who_wait_use_their_processors_means_nothing():
    told = of(rank(0, OVER, WAIT), rank(1, OVER), rank(2, OVER, WAIT))
    assert standstill(told, IDLE | {0: "busy", 2: "busy"}, moving=False).culprits == [1]


def test_where_nobody_waits_for_another_all_have_to_be_idle():
    told = of(rank(0, OVER), rank(1, OVER), rank(2, OVER))
    assert standstill(told, IDLE | {2: "busy"}, moving=False) is None
    found = standstill(told, IDLE, moving=False)
    assert found.culprits == [0, 1, 2]
    assert standstill_lines(found, told, IDLE, 15 * SECOND)[0] == (
        "stuck: no step has ended for 15 s; ranks 0, 1 and 2 are at train.py:57 in load_batch")


@pytest.mark.parametrize(("doing", "words"), [
    ("gone", "rank 1 ended"), ("stopped", "rank 1 was stopped by a signal"),
    ("idle", "rank 1 is idle")])
def test_a_rank_that_told_nothing(doing, words):
    told, all_do = of(rank(0, OVER, WAIT), rank(2, OVER, WAIT)), IDLE | {1: doing}
    found = standstill(told, all_do, moving=False)
    assert found.culprits == [1]
    assert standstill_lines(found, told, all_do, 15 * SECOND)[0].endswith(words)


def test_a_rank_that_nobody_sees_may_be_busy():
    told = of(rank(0, OVER, WAIT), rank(1, OVER), rank(2, OVER, WAIT))
    assert not standstill(told, IDLE | {1: "unknown"}, moving=False).sure


PYTHON = "/usr/lib/python3.12"


@pytest.mark.parametrize(("frames", "debugged"), [
    ([USER, StackFrame(file=f"{PYTHON}/bdb.py", line=115, function="dispatch_line"),
      StackFrame(file=f"{PYTHON}/pdb.py", line=420, function="interaction"),
      StackFrame(file=f"{PYTHON}/cmd.py", line=126, function="cmdloop")], True),
    ([USER, StackFrame(file="/opt/pycharm/helpers/pydev/pydevd.py", line=1, function="PyDB.do_wait_suspend"),
      StackFrame(file="/opt/pycharm/helpers/pydev/pydevd.py", line=9, function="PyDB._do_wait_suspend")], True),
    ([StackFrame(file=f"{PYTHON}/pdb.py", line=1600, function="run"), USER], False),
    ([StackFrame(file="/home/me/.vscode/debugpy/__main__.py", line=9, function="<module>"), TORCH, TORCH], False),
    ([StackFrame(file=f"{PYTHON}/site-packages/IPython/core/interactiveshell.py", line=3, function="run_code"), USER,
      TORCH], False)])
def test_a_rank_in_a_debugger_waits_for_the_user(frames, debugged):
    """A script that runs in a debugger or a notebook is not stopped in it."""
    told = of(rank(0, OVER, WAIT), rank(1, OVER, frames=(*frames,)), rank(2, OVER, WAIT))
    assert (standstill(told, IDLE, moving=False) is None) == debugged


def test_all_are_in_one_collective():
    told = of(*(rank(number, OVER, WAIT) for number in range(3)))
    assert standstill(told, IDLE, moving=True) is None
    assert standstill(told, IDLE, moving=False).culprits == [0, 1, 2]


def test_ranks_that_wait_for_each_other_hang_whatever_moves():
    told = of(rank(0, OVER, WAIT), rank(1, OVER), rank(2, OVER, WAIT))
    for number, one in told.items():
        second = rank(number, *([collective(1)] if number == 1 else [])).groups[0]
        second.name = "2"
        one.groups.append(second)
    assert standstill(told, IDLE, moving=True).culprits == [0, 1, 2]


def test_ranks_that_call_different_things_hang_whatever_they_do():
    told = of(rank(0, OVER, WAIT), rank(1, OVER, collective(7, op="broadcast")), rank(2, OVER, WAIT))
    assert standstill(told, IDLE | {1: "busy"}, moving=True).culprits == [1]


def test_stacks_that_are_the_same_are_shown_once():
    told = of(rank(0, frames=(USER,)), rank(1, frames=(USER, TORCH)), rank(2, frames=(USER, TORCH)))
    assert same_stacks(told) == [([1, 2], [USER, TORCH]), ([0], [USER])]


def test_what_started_the_script_is_not_where_a_rank_is():
    started = StackFrame(file="/usr/lib/python3.11/site-packages/distprof/launch/worker.py", line=62, function="run")
    told = of(rank(0, frames=(started, USER, TORCH)), rank(1, frames=(TORCH,)))
    assert same_stacks(told) == [([0], [USER, TORCH]), ([1], [TORCH])]  # a stack without the user's files is whole
