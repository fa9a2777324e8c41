"""Where a call comes from: its line in the script, and the module whose work it is.

Which line of the script a call comes from: the innermost Python frame that is neither of a library nor ours.

Whose work a thread does: the module that runs, and in backward the one whose call made the node of autograd.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from distprof.model.call_paths import CallPath, RunningCall, mark_nodes, owner_of_running_node
from distprof.model.scopes import Frame, ModuleScopes, in_backward

_HOME = Path(__file__).parents[2]
_SEEN_THROUGH = tuple(str(_HOME / name) for name in (
    "recording/blocking/", "recording/steps/unhooked_steps.py", "recording/pass_switch.py", "model/compiled.py"))
"""Our files that put a function in front of one of the script's or torch's: the caller is behind them."""
_HERE = _SEEN_THROUGH[0]
KERNEL = "kernel"
"""Name of our functions that torch calls in place of an operator."""
_SHIPPED = (str(_HOME / "launch/demo/demo.py"), str(_HOME / "launch/selftest/jobs/"))
"""Scripts that we ship."""
_OWN, _TORCH = str(_HOME), str(Path(torch.__file__).parent)
_THIN = tuple(str(Path(_TORCH, name)) for name in ("functional.py", "_tensor.py", "_jit_internal.py"))
"""Files of torch in which functions do little more than call one operator."""
_GENERATED = ("torchinductor_", "<eval_with_key>", "<frozen ")
"""In names of files of torch.compile's, and of Python's own."""
_INSTALLED = ("site-packages", "dist-packages")
_STDLIB = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")})
_CALLS_OF_MODULES = ("Module._wrapped_call_impl", "Module._call_impl")
SCRIPT, LIBRARY, OURS, SEEN_THROUGH = range(4)


class Place(NamedTuple):
    """Where a call comes from."""

    file: str | None
    """None where no line of the script is on the stack of the thread."""
    line: int | None
    function: str | None
    library_call: str | None
    """The function of torch or of Python's library that the line calls; None where the line makes the call itself."""


NOWHERE = Place(None, None, None, None)


def place_of(frame: FrameType | None) -> Place | None:
    """The line that a frame was called from; None where we are what calls."""
    library_call = None
    while frame is not None:
        code = frame.f_code
        kind = _kind(code.co_filename)
        if kind == SCRIPT:
            return Place(code.co_filename, frame.f_lineno, code.co_qualname, library_call)
        if kind == OURS:
            return None
        if kind == LIBRARY and "<locals>" not in code.co_qualname and code.co_qualname not in _CALLS_OF_MODULES:
            library_call = code.co_qualname
        frame = frame.f_back
    return NOWHERE


def line_of_script(frame: FrameType | None) -> Place | None:
    """As `place_of`, but packages that are installed are libraries too, unless no other line is on the stack."""
    found = place_of(frame)
    outer, library_call = frame, None
    while found is not None and found.file is not None and outer is not None:
        code = outer.f_code
        if _kind(code.co_filename) == SCRIPT:
            if not _is_installed(code.co_filename):
                return found if library_call is None else Place(code.co_filename, outer.f_lineno, code.co_qualname,
                                                                library_call)
            library_call = code.co_qualname
        outer = outer.f_back
    return found


def caller_of_callback() -> FrameType | None:
    """The innermost frame that is not ours, for what torch has called."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and _kind(frame.f_code.co_filename) in (OURS, SEEN_THROUGH):
        frame = frame.f_back
    return frame


def is_in_kernel() -> bool:
    """True on a thread that runs a kernel of ours, as where a signal interrupted one."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == KERNEL and frame.f_code.co_filename.startswith(_HERE)):
        frame = frame.f_back
    return frame is not None


def place_of_thread(thread: int) -> Place:
    """Where another thread of the script is."""
    return place_of(sys._current_frames().get(thread)) or NOWHERE


@lru_cache(maxsize=1 << 12)
def _is_installed(file: str) -> bool:
    return any(part in file for part in _INSTALLED)


@lru_cache(maxsize=1 << 12)
def _kind(file: str) -> int:
    if file.startswith(_SEEN_THROUGH) or file in _THIN:
        return SEEN_THROUGH
    if file.startswith(_OWN):
        return SCRIPT if file.startswith(_SHIPPED) else OURS
    if file.startswith(_TORCH) or any(part in file for part in _GENERATED):
        return LIBRARY
    return LIBRARY if file.startswith(_STDLIB) and not any(part in file for part in _INSTALLED) else SCRIPT


class NodeOwners:
    """Marks nodes of autograd with the module calls that made them, while it listens."""

    def __init__(self, scopes: ModuleScopes) -> None:
        self._scopes = scopes
        self._outside = CallPath(None, None)

    def start(self) -> None:
        self._scopes.add(self)

    def stop(self) -> None:
        self._scopes.remove(self)

    def enter(self, frame: Frame) -> None:
        """Notes which nodes come next."""
        outer: RunningCall | None = frame.outer.data.get(self) if frame.outer is not None else None
        path = outer.path if outer is not None else self._outside
        frame.data[self] = RunningCall(path.child(frame.site), torch._C._autograd._get_sequence_nr(), outer)

    def exit(self, frame: Frame, _args: tuple[Any, ...], _kwargs: dict[str, Any], result: object) -> None:
        """Marks those that were made since."""
        if self in frame.data:
            mark_nodes(result, frame.data[self])

    def where(self) -> tuple[str | None, str | None]:
        """Path of the module and phase of what this thread does; None for what is unknown."""
        frame = self._scopes.current
        if frame is not None:
            return frame.site.path, frame.phase
        if not in_backward():
            return None, None
        owner = owner_of_running_node()
        return owner.site.path if owner is not None and owner.site is not None else None, "backward"
