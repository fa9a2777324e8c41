"""Records a region with torch.profiler, including slices of modules and functions, and writes its files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.profiler import ProfilerActivity

from distprof.compat.megengine.chrome_timeline import Look, Recorded
from distprof.compat.megengine.memory_flow import memory_flow
from distprof.contract.passes import Topic
from distprof.files import write_whole
from distprof.model.modules import ModuleMap
from distprof.model.scopes import Frame, ModuleScopes
from distprof.process.identity import Identity
from distprof.recording.tracing.timeline import kineto_begins
from distprof.terminal import say

PROPERTIES = ("__get__", "__set__", "__delete__")
"""Functions that only access an attribute of a tensor, which takes no time."""


class ModuleSlices:
    """Adds a slice for each call of a module."""

    def enter(self, frame: Frame) -> None:
        """Opens the slice."""
        if not frame.repeats_outer:
            frame.data[self] = scope = torch.autograd.profiler.record_function(
                frame.site.path or frame.site.class_name)
            scope.__enter__()

    def exit(self, frame: Frame, _args: tuple[Any, ...], _kwargs: dict[str, Any], _result: object) -> None:
        """Closes the slice."""
        scope = frame.data.pop(self, None)
        if scope is not None:
            scope.__exit__(None, None, None)


class FunctionSlices(TorchFunctionMode):
    """Adds a slice for each torch function and tensor method that the script calls."""

    def __torch_function__(self, func: Callable[..., Any], _types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if getattr(func, "__name__", "") in PROPERTIES:
            return func(*args, **(kwargs or {}))
        with torch.autograd.profiler.record_function(_name_of(func)):
            return func(*args, **(kwargs or {}))


class Session:
    """Records from its creation until `stop`."""

    def __init__(self, topic: Topic, *, device: bool, memory: bool, backtrace: bool, functions: bool) -> None:
        """Begins to record.

        Args:
            topic: What to record.
            device: Whether to record what runs on GPUs.
            memory: Whether to record allocations.
            backtrace: Whether to record the Python functions that run.
            functions: Whether to add a slice for each call of a torch function.
        """
        activities = [ProfilerActivity.CPU]
        if device and torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(
            activities=activities, record_shapes=Topic.OPERATOR in topic, profile_memory=memory,
            with_stack=backtrace)
        with kineto_begins():
            self._profile.start()
        self._start_ns, self._end_ns = time.time_ns(), 0
        self._open = ExitStack()
        if Topic.SCOPE in topic:
            self._open.enter_context(_module_slices())
        if functions:
            self._open.enter_context(FunctionSlices())

    def stop(self) -> None:
        """Stops recording."""
        self._open.close()
        self._end_ns = time.time_ns()
        self._profile.stop()

    def recorded(self) -> Recorded:
        """Returns the recorded trace."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            self._profile.export_chrome_trace(str(path))
            return Recorded(path.read_bytes(), self._start_ns, self._end_ns)


@lru_cache(maxsize=1 << 12)
def _name_of(func: object) -> str:
    return resolve_name(func) or str(getattr(func, "__name__", "function"))


@contextmanager
def _module_slices() -> Iterator[None]:
    scopes, listener = ModuleScopes(ModuleMap(), lambda function: function, lambda _: None), ModuleSlices()
    scopes.add(listener)
    try:
        yield
    finally:
        scopes.remove(listener)


CHROME_TIMELINE, MEMORY_FLOW = "chrome_timeline.json", "memory_flow.svg"
FORMATS = (CHROME_TIMELINE, MEMORY_FLOW)


class Output:
    """Writes the last region that has ended."""

    def __init__(self, path: Path, formats: Sequence[str], look: Look, *, folder: bool) -> None:
        """Begins with nothing to write.

        Args:
            path: A folder, or the beginning of the names of files.
            formats: Names in `FORMATS`.
            look: How to write the timeline.
            folder: Whether `path` is a folder.
        """
        self._path, self._formats, self._look, self._folder = path, formats, look, folder
        self._pending: Session | None = None
        self._has_written = False

    def keep(self, session: Session) -> None:
        """Replaces the last region; the first one is written immediately, later ones by `write`."""
        self._pending = session
        if not self._has_written:
            self.write()

    def write(self) -> None:
        """Writes the kept region. Never raises: errors are reported on stderr."""
        session, self._pending = self._pending, None
        if session is None:
            return
        try:
            recorded = session.recorded()
            for form in self._formats:
                path = self._file(form)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, partial(Path.write_bytes, data=self._text(recorded, form)))
            self._has_written = True
        except Exception as error:  # noqa: BLE001 (the training goes on)
            say(f"could not write the profile to {self._path}: {error}")

    def _file(self, form: str) -> Path:
        if self._folder:
            return self._path / f"{os.getpid()}.{form}"
        identity = Identity.read()
        rank = f".rank{identity.rank}" if identity.world_size > 1 else ""
        return self._path.with_name(f"{self._path.name}{rank}.{form}")

    def _text(self, recorded: Recorded, form: str) -> bytes:
        if form == CHROME_TIMELINE:
            return recorded.chrome_timeline(self._look)
        return memory_flow(recorded.lifetimes(), recorded.start_ns, recorded.end_ns).encode()
