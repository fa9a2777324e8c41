"""`--log-to tensorboard`: writes series and findings of a job to a TensorBoard event file in `watch/tensorboard/`.

The watcher writes it, with those classes of the package tensorboard that import neither TensorFlow nor torch.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.contract.watch_series import EVERY_S, SHARE, Family, by_step
from distprof.contract.watch_state import WATCH, WatchFinding, WatchState

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

FOLDER = "tensorboard"
VERSION = "brain.Event:2"
"""File version in the first event of every event file."""


class EventFile:
    """Appends to an event file, which is created at the first write.

    Args:
        run: The run directory.
        complain: Called with a line once if the file cannot be written; after that, nothing is written.
    """

    def __init__(self, run: Path, complain: Callable[[str], object]) -> None:
        self._folder, self._complain = run / WATCH / FOLDER, complain
        self._path: Path | None = None
        self._works, self._began_s, self._due_s, self._last = True, time.monotonic(), 0.0, -1

    def show(self, state: WatchState, *, at_end: bool = False) -> None:
        """Writes a point of each series, if one is due and a step has ended since the last one."""
        now, step = time.monotonic(), state.num_steps - 1
        if step > self._last and (at_end or now >= self._due_s):
            self._due_s, self._last = now + max(EVERY_S, (now - self._began_s) * SHARE), step
            self._write(step, state.time_ns / 1e9, lambda: scalars(state))

    def tell(self, event: str, finding: WatchFinding) -> None:
        """Writes a finding as text, at the step where it began or, if it has ended, where it ended."""
        step = finding.onset_step if finding.until_step is None else finding.until_step
        self._write(step, time.time(), lambda: [_text(f"distprof findings/{finding.kind}", f"{event}: {finding.text}")])

    def _write(self, step: int, wall_s: float, values: Callable[[], Iterable[Summary.Value]]) -> None:
        if not self._works:
            return
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary

            if self._path is None:
                self._append(self._made(), Event(wall_time=wall_s, file_version=VERSION).SerializeToString())
            assert self._path is not None
            self._append(self._path, Event(wall_time=wall_s, step=step, summary=Summary(value=values())
                                           ).SerializeToString())
        except Exception as error:  # noqa: BLE001 (a full disk, a folder that was removed, another version of tensorboard)
            self._works = False
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._complain(f"--log-to tensorboard: logging has stopped: {why}")

    def _made(self) -> Path:
        """Returns the path of the file and creates its folders; not the run directory, which may have been removed."""
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(exist_ok=True)
        number = f"{time.time_ns() // 10**9:010d}"  # TensorBoard reads files in the order of their names
        self._path = self._folder / f"events.out.tfevents.{number}.{socket.gethostname()}.distprof"
        return self._path

    def _append(self, path: Path, content: bytes) -> None:
        """Appends a record; the file is open only during that, as others read it while it grows."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        with path.open("ab") as file:
            RecordWriter(file).write(content)


def scalars(state: WatchState) -> list[Summary.Value]:
    """Returns a point of each series, with tags such as `distprof step (s)/rank 1`."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return [Summary.Value(tag=f"{_name(family)}/{of}", simple_value=value) for family, of, value in by_step(state)]


def _name(family: Family) -> str:
    return family.name.replace(".", " ") + (f" ({family.unit})" if family.unit not in ("", "1") else "")


def _text(tag: str, text: str) -> Summary.Value:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=tag, metadata=about, tensor=TensorProto(
        dtype="DT_STRING", string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])))
