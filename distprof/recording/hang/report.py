"""Builds and writes `stuck.json` of this rank: process groups from torch's flight recorder, and stacks of its threads.

Nothing here calls into a process group, so it works while all threads of the script hang.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch

from distprof.contract.paths import FORMAT, STUCK_JSON
from distprof.contract.stuck import Failure, StackFrame, Stuck, StuckCollective, StuckGroup, StuckThread
from distprof.files import json_text, write_whole
from distprof.hidden import hidden
from distprof.own import reentrant_lock, time
from distprof.process.identity import in_process_group
from distprof.threads import UnseenThread, is_unseen

MOST_COLLECTIVES = 50
"""Maximum number of collectives per group in the file."""
PATIENCE_S = 2.0
"""Time in seconds that the flight recorder may take to answer, and that a lock is waited for."""
BACKWARD = "_engine_run_backward"
"""torch's function that waits for autograd."""
RECORDING = Path(__file__).parents[1]
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""torch's functions that return the records of the flight recorder."""
COMMUNICATION = ("gloo", "nccl", "processgroup", "process group", "c10d", "connection closed by peer", "tcpstore")
"""Words that occur in the messages of communication errors."""


class HangReport:
    """The file of this rank. Nothing here raises or waits for long."""

    def __init__(self, folder: Callable[[], Path | None], about: Callable[[], Mapping[str, Any]]) -> None:
        """Begins without a file.

        Args:
            folder: Returns the folder for the file; None while the rank has none.
            about: Returns the fields of `Stuck` that the recorder knows.
        """
        self._folder = folder
        self._about = about
        self.lock = reentrant_lock()
        """Held while the file is written."""
        self._written = False

    def take(self, cause: str, why: str) -> Stuck:
        """Returns the current state of the rank."""
        notes: list[str] = []
        groups: list[StuckGroup] = []
        try:
            groups = process_groups(notes)
        except Exception as wrong:  # noqa: BLE001 (the stacks alone are useful)
            notes.append(f"could not read the process groups: {type(wrong).__name__}: {wrong}")
        running, about = threads(), dict(self._about())
        if about["phase"] is None and any(frame.function == BACKWARD for frame in running[0].frames):
            about["phase"] = "backward"
        if not about["recording"]:
            about["since_ns"] = max((one.called_ns for group in groups for one in group.collectives), default=None)
        waiting = any(not one.completed for group in groups for one in group.collectives)
        return Stuck(format=FORMAT, time_ns=time.time_ns(), cause=cause, why=why,  # type: ignore[arg-type]
                     waiting=waiting, groups=groups, threads=running, notes=notes, **about)

    def write(self, found: Callable[[], Stuck | None]) -> bool:
        """Writes the file, replacing an earlier one; False if that is not possible or there is nothing to write.

        Args:
            found: Returns the content; called while the lock is held.
        """
        if not self.lock.acquire(timeout=PATIENCE_S):
            return False
        try:
            folder, stuck = self._folder(), found()
            if folder is None or stuck is None:
                return False
            text = json_text(stuck)
            write_whole(folder / STUCK_JSON, lambda temporary: temporary.write_bytes(text))
            self._written = True
        except Exception:  # noqa: BLE001 (the job, or its end, continues)
            return False
        finally:
            self.lock.release()
        return True

    def remove(self) -> None:
        """Removes the file, after the job has continued."""
        if not self.lock.acquire(timeout=PATIENCE_S):
            return
        try:
            folder = self._folder()
            if self._written and folder is not None:
                (folder / STUCK_JSON).unlink(missing_ok=True)
            self._written = False
        except OSError:
            return  # writing there is no longer possible
        finally:
            self.lock.release()


def is_communication(error: BaseException) -> bool:
    """True for an error raised by a collective, according to its type, its traceback or its message."""
    if isinstance(error, torch.distributed.DistError if torch.distributed.is_available() else ()):
        return True
    if not isinstance(error, RuntimeError):
        return False
    files = [frame.filename.replace("\\", "/") for frame in traceback.extract_tb(error.__traceback__)]
    return (any(file.endswith("torch/distributed/distributed_c10d.py") for file in files)
            or any(word in str(error).lower() for word in COMMUNICATION))


def last_called() -> dict[str, tuple[int | None, int | None]]:
    """Returns, for each process group, the numbers of the last collective called and of the last one completed."""
    if not in_process_group():
        return {}
    status = _flight_recorder(collectives=False)["pg_status"]
    return {name: (_number(one.get("last_enqueued_collective")), _number(one.get("last_completed_collective")))
            for name, one in status.items()}


def process_groups(notes: list[str]) -> list[StuckGroup]:
    """Returns the process groups of this rank with their last collectives; what is missing is added to `notes`."""
    if not in_process_group():
        return []
    recorded = _flight_recorder_in_time(notes)
    of_group: dict[str, list[Any]] = {}
    for entry in recorded.get("entries", []):
        of_group.setdefault(entry["process_group"][0], []).append(entry)
    status = recorded.get("pg_status", {})
    world: Any = torch.distributed.distributed_c10d._world
    return [_group(group, list(ranks), world.pg_map.get(group, (None,))[0], status.get(group.group_name, {}),
                   of_group.get(group.group_name, []))
            for group, ranks in list(world.pg_group_ranks.items())]


def _group(group: Any, ranks: list[int], backend: str | None, status: Mapping[str, Any],
           entries: list[Any]) -> StuckGroup:
    return StuckGroup(name=group.group_name, description=group.group_desc, backend=backend, ranks=ranks,
                      last_called=_number(status.get("last_enqueued_collective")),
                      last_started=_number(status.get("last_started_collective")),
                      last_completed=_number(status.get("last_completed_collective")),
                      collectives=[_collective(entry) for entry in entries[-MOST_COLLECTIVES:]])


def _collective(entry: Mapping[str, Any]) -> StuckCollective:
    name, state = entry["profiling_name"], entry.get("state")
    return StuckCollective(
        number=entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"], name=name,
        op=name.rpartition(":")[2], point_to_point=entry["is_p2p"], state=state,
        completed=bool(entry.get("retired")) or state == "completed",
        input_sizes=entry["input_sizes"], input_dtypes=entry["input_dtypes"],
        output_sizes=entry["output_sizes"], output_dtypes=entry["output_dtypes"], called_ns=entry["time_created_ns"])


def _number(text: object) -> int | None:
    """Converts a number of the flight recorder, which is text, with -1 for none."""
    number = int(str(text)) if text is not None else -1
    return number if number >= 0 else None


def _flight_recorder_in_time(notes: list[str]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    asking = UnseenThread(lambda: found.append(_flight_recorder(collectives=True)))
    asking.start()
    asking.join(PATIENCE_S)
    if not found:
        notes.append("torch's flight recorder gave no answer")
    return found[0] if found else {}


def has_flight_recorder() -> bool:
    """False if this torch has no flight recorder."""
    return any(hasattr(getattr(torch._C, "_distributed_c10d", None), name) for name in DUMPS)


def _flight_recorder(*, collectives: bool) -> dict[str, Any]:
    """Returns the records of torch's flight recorder, joined with those of NCCL's."""
    c10d: Any = torch._C._distributed_c10d
    together: dict[str, Any] = {"entries": [], "pg_status": {}}
    for name in DUMPS:
        dump = getattr(c10d, name, None)
        found = msgspec.json.decode(dump(includeCollectives=collectives)) if dump is not None else {}
        together["entries"] += found.get("entries", [])
        together["pg_status"] |= found.get("pg_status", {})
    return together


def threads() -> list[StuckThread]:
    """Returns all threads that run Python, the main thread first, except those of distprof."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    main, here = threading.main_thread().ident, threading.get_ident()
    found = []
    for ident, frame in sys._current_frames().items():
        thread = known.get(ident)
        name = thread.name if thread is not None else ""
        if (ident != here or ident == main) and not is_unseen(ident):
            frames = [one for one in _frames(frame) if ident != here or RECORDING not in Path(one.file).parents]
            found.append(StuckThread(name=name, native_id=thread.native_id if thread is not None else None,
                                     main=ident == main, frames=frames))
    return sorted(found, key=lambda thread: not thread.main)


def _frames(innermost: FrameType) -> list[StackFrame]:
    found = [StackFrame(file=frame.f_code.co_filename, line=line or 0, function=frame.f_code.co_qualname)
             for frame, line in traceback.walk_stack(innermost)]
    return found[::-1]


def failure_of(error: BaseException) -> Failure:
    """Returns the exception that ends the script."""
    frames = [StackFrame(file=one.filename, line=one.lineno or 0, function=one.name)
              for one in traceback.extract_tb(error.__traceback__)]
    return Failure(type=type(error).__name__, message=message_of(error)[:2000], frames=frames)


def message_of(error: BaseException) -> str:
    """Returns the message of an exception of the script, with secrets among the script's arguments hidden."""
    return hidden(str(error), sys.argv)
