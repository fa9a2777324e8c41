"""The contents of stuck.json of two ranks, the first of which waits for the second."""

from __future__ import annotations

from distprof.contract.stuck import StackFrame, Stuck, StuckCollective, StuckGroup, StuckThread


def rank_stuck(rank: int, time_ns: int) -> Stuck:
    """Returns the state of a rank; rank 0 waits in an all_reduce that rank 1 never entered."""
    waits = [StuckCollective(
        number=7, name="gloo:all_reduce", op="all_reduce", point_to_point=False, state="scheduled", completed=False,
        input_sizes=[[3]], input_dtypes=["Float"], output_sizes=[[3]], output_dtypes=["Float"],
        called_ns=time_ns - 10_000_000_000)] if rank == 0 else []
    group = StuckGroup(name="1", description="dp", backend="gloo", ranks=[0, 1], last_started=None,
                       last_called=7 if waits else 6, last_completed=6, collectives=waits)
    frame = StackFrame(file="/home/me/train.py", line=57, function="load_batch")
    return Stuck(format=1, rank=rank, world_size=2, time_ns=time_ns, cause="asked", why="asked for",
                 waiting=bool(waits), recording=False, step=30, pass_name=None, phase=None, module_path=None,
                 since_ns=None, groups=[group], open_calls=[],
                 threads=[StuckThread(name="MainThread", native_id=1, main=True, frames=[frame])])
