"""`Profiler` and `profile` as in MegEngine 1.3 to 1.4, and as in 1.5 to 1.13 (the newer constructor)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from distprof.compat.megengine.chrome_timeline import DEFAULT, Look
from distprof.compat.megengine.session import CHROME_TIMELINE, FORMATS, MEMORY_FLOW, Output, Session
from distprof.contract.passes import Topic
from distprof.errors import UsageError
from distprof.terminal import say

OPTIONS = {"sample_rate": 0, "profile_device": 1, "num_tensor_watch": 10, "enable_cupti": 0}
"""Options of the newer constructor, and their defaults. `num_tensor_watch` and `enable_cupti` have no effect: torch
does not limit the number of tensors, and its profiler always uses CUPTI."""
_active: list[Profiler] = []


class Profiler(ContextDecorator):
    """Records a region of code: as a context manager, as a decorator, or between `start` and `stop`.

    Each region is recorded separately, and the file contains the last one: the first is written when it ends, later
    ones by `dump`, when the profiler is deleted, or at the end of the process.
    """

    COMMAND, OPERATOR, TENSOR_LIFETIME = Topic.COMMAND, Topic.OPERATOR, Topic.TENSOR_LIFETIME
    TENSOR_PROP, SYNC, SCOPE = Topic.TENSOR_PROP, Topic.SYNC, Topic.SCOPE
    MEMORY, SHAPE_INFER, ALL = Topic.MEMORY, Topic.SHAPE_INFER, Topic.ALL
    CHROME_TIMELINE, MEMORY_FLOW = CHROME_TIMELINE, MEMORY_FLOW

    def __init__(self, path: str = "profile", format: str = CHROME_TIMELINE,  # noqa: A002 (MegEngine's name)
                 formats: Sequence[str] | None = None, with_backtrace: bool = False,  # noqa: FBT001 (its order)
                 with_scopes: bool = False, *, topic: int | None = None,  # noqa: FBT001
                 align_time: bool = True, show_operator_name: bool = True, **options: int) -> None:
        """Begins without recording.

        Args:
            path: Files are `<path>.<format>` (`<path>.rank<N>.<format>` if there are several ranks). If an argument
                that only the newer constructor has is given, or `path` is a folder or ends in `/`: a folder with files
                `<pid>.<format>`.
            format: chrome_timeline.json or memory_flow.svg.
            formats: Several formats.
            with_backtrace: Whether to also record the Python functions that run.
            with_scopes: Whether to add a slice for each call of a torch function or tensor method.
            topic: Topics, combined with `|`; by default OPERATOR and SCOPE, or ALL with the newer constructor.
            align_time: Whether times are since the epoch, so that files can be compared, rather than since the start of
                the region.
            show_operator_name: False to call each operator `Operator`.
            **options: Integers, see `OPTIONS`.

        Raises:
            UsageError: A format, topic or option is unknown.
        """
        newer = formats is not None or with_backtrace or with_scopes or bool(options)
        wanted = tuple(dict.fromkeys([format] if formats is None else formats))
        for one in wanted:
            _check(one, FORMATS, "format")
        for name in options:
            _check(name, tuple(OPTIONS), "option")
        self._topic = _topic(topic, Topic.ALL if newer else DEFAULT)
        self._options = OPTIONS | options
        self._functions = with_scopes
        self._look = Look(topic=self._topic, align_time=align_time, show_operator_name=show_operator_name,
                          with_backtrace=with_backtrace, sample_rate=self._options["sample_rate"])
        self._needs_memory = bool(self._topic & (Topic.TENSOR_LIFETIME | Topic.MEMORY) or MEMORY_FLOW in wanted
                                  or self._options["sample_rate"])
        self._output = Output(Path(path), wanted, self._look,
                              folder=newer or str(path).endswith("/") or Path(path).is_dir())
        self._session: Session | None = None
        self._depth = 0
        weakref.finalize(self, self._output.write)

    def start(self) -> Profiler:
        """Begins a region. If another profiler is on, nothing is recorded, and a line on stderr says so."""
        self._depth += 1
        if self._depth > 1:
            return self
        if _active or torch._C._autograd._profiler_enabled():
            say("another profiler is running: this region is not profiled")
            return self
        try:
            self._session = Session(self._topic, device=bool(self._options["profile_device"]),
                                    memory=self._needs_memory, backtrace=self._look.with_backtrace,
                                    functions=self._functions)
            _active.append(self)
        except Exception as error:  # noqa: BLE001 (the training goes on)
            say(f"this region is not profiled: {error}")
        return self

    def stop(self) -> None:
        """Ends the region; does nothing without a `start`."""
        self._depth = max(self._depth - 1, 0)
        if self._depth or self._session is None:
            return
        session, self._session = self._session, None
        _active.remove(self)
        try:
            session.stop()
        except Exception as error:  # noqa: BLE001 (the training goes on)
            say(f"the profile is lost: {error}")
            return
        self._output.keep(session)

    def step(self) -> None:
        """Marks the end of a step."""
        with torch.autograd.profiler.record_function("StopStep"):
            pass

    def dump(self) -> None:
        """Writes the last region that has ended."""
        self._output.write()

    def __enter__(self) -> Profiler:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()


def profile(*args: Any, **kwargs: Any) -> Any:
    """Decorates a function with `@profile` or `@profile(...)`: each call is a region of a `Profiler` with these
    arguments."""
    if len(args) == 1 and not kwargs and callable(args[0]):
        function: Callable[..., Any] = args[0]
        return Profiler()(function)
    return Profiler(*args, **kwargs)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """A context whose body becomes a slice with this name."""
    with torch.autograd.profiler.record_function(name):
        yield


def is_profiling() -> bool:
    """Returns whether a `Profiler` is recording."""
    return bool(_active)


def _topic(topic: int | None, default: Topic) -> Topic:
    if topic is None:
        return default
    if isinstance(topic, bool) or not isinstance(topic, int) or not 0 <= topic <= Topic.ALL:
        raise UsageError(f"unknown topic {topic!r}; choose from {', '.join(one.name or '' for one in Topic)}",
                         hint="Profiler.OPERATOR | Profiler.SCOPE")
    return Topic(topic)


def _check(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        near = get_close_matches(str(name), known, n=1)
        raise UsageError(f"unknown {what} {name!r}; choose from {', '.join(known)}",
                         hint=f"did you mean {near[0]}?" if near else None)
