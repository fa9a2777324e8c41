"""A job that hangs, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distprof.contract.stuck import StackFrame, Stuck
from distprof.merge.blame.hang import LIBRARY
from distprof.merge.blame.standstill import Doing, Standstill, same_stacks
from distprof.merge.text.communication.hang import hang_lines
from distprof.merge.text.phrases import brief, rank_list
from distprof.merge.text.script_lines import file_name

SHOWN_GROUPS = 4
WITHOUT_REPORT: dict[Doing, str] = {
    "gone": "ended", "stopped": "was stopped by a signal", "idle": "is idle", "busy": "is busy",
    "unknown": "left no report"}


def standstill_lines(found: Standstill, stuck: Mapping[int, Stuck], doing: Mapping[int, Doing],
                     since_ns: int) -> list[str]:
    """First what the job hangs in, then where all ranks are.

    Args:
        found: That it hangs.
        stuck: Where ranks are, of those that told.
        doing: What each rank does.
        since_ns: How long no step has ended.
    """
    told = list(hang_lines(found.hangs)) if found.hangs.hangs else []
    said = {rank for one in found.hangs.hangs for rank in one.unknown}  # that they left no report
    missing = [f"rank {rank} {WITHOUT_REPORT[doing[rank]]}" for rank in sorted(doing)
               if rank not in stuck and not (rank in said and doing[rank] == "unknown")]
    if told:
        first = "; ".join([told[0], *missing])
    else:
        places = [f"{rank_list(ranks)} {'is' if len(ranks) == 1 else 'are'} at {_place(frames)}"
                  for ranks, frames in same_stacks(stuck)[:SHOWN_GROUPS]]
        first = "; ".join([f"stuck: no step has ended for {brief(since_ns, 2)}", *missing, *places])
    return [first, *told[1:], *_groups(stuck)]


def _groups(stuck: Mapping[int, Stuck]) -> list[str]:
    return [f"{rank_list(ranks)}: {_calls(frames)}" for ranks, frames in same_stacks(stuck)[:SHOWN_GROUPS]]


def _calls(frames: Sequence[StackFrame]) -> str:
    return " > ".join(f"{frame.function} ({file_name(frame.file)}:{frame.line})" for frame in frames) or "no stack"


def _place(frames: Sequence[StackFrame]) -> str:
    own = [frame for frame in frames if not any(part in frame.file for part in LIBRARY)]
    frame = next(reversed(own or list(frames)), None)
    return "an unknown line" if frame is None else f"{file_name(frame.file)}:{frame.line} in {frame.function}"
