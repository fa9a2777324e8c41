"""Call stacks, each stored once, and the frame of a stack that is in the user's code."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Any

Frame = tuple[str, int, str]
"""File, line and function."""
LIBRARY = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python\d|[/\\]torch[/\\](?!.*\bexamples\b)"
                     r"|^[A-Za-z]:.*[/\\]([Pp]ython3?\d*|envs[/\\][^/\\]+|\w*conda\d?)[/\\][Ll]ib[/\\]"
                     r"|^<frozen |^<__array_function__|^<eval_with_key>|^<string>$")
"""Files that the user did not write."""
PYTHON = re.compile(r"\.py$|^<|[/\\]ipykernel_|^/?tmp/ipy")
"""Python files; others are C++ or unknown (`??`)."""


class FrameRef:
    """Reference to a frame, by number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class StackRef:
    """Reference to a stack, by number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class CallStacks:
    """All stacks of a snapshot by number; 0 is the empty stack."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._frames: dict[Frame, FrameRef] = {}
        self._stacks: list[bytes] = []
        self._refs: dict[bytes, StackRef] = {}
        self._ref(b"")

    def __len__(self) -> int:
        return len(self._stacks)

    def frame(self, found: dict[Any, Any]) -> FrameRef:
        """Stores a frame as torch writes it."""
        frame = found["filename"], found["line"], found["name"]
        if not (isinstance(frame[0], str) and isinstance(frame[1], int) and isinstance(frame[2], str)):
            raise TypeError  # lists that contain each other repeatedly have endless texts
        known = self._frames.get(frame)
        if known is None:
            known = self._frames[frame] = FrameRef(len(self.frames))
            self.frames.append(frame)
        return known

    def stack(self, frames: Sequence[Any]) -> StackRef | None:
        """Stores a list of frames, innermost first; returns None if it contains anything else."""
        if not all(frame.__class__ is FrameRef for frame in frames):
            return None
        return self._ref(array("I", [frame.number for frame in frames]).tobytes())

    def _ref(self, key: bytes) -> StackRef:
        known = self._refs.get(key)
        if known is None:
            known = self._refs[key] = StackRef(len(self._stacks))
            self._stacks.append(key)
        return known

    def of(self, number: int) -> list[Frame]:
        """Returns the frames of a stack, innermost first."""
        return [self.frames[frame] for frame in array("I", self._stacks[number])]

    @cached_property
    def lines(self) -> list[str | None]:
        """For each stack the innermost line of the user's code, like `train.py:12 forward`; None without frames.

        If all frames are in libraries, this is the innermost Python frame, else the innermost frame.
        """
        ranks = array("b", [_rank(frame) for frame in self.frames])
        texts = [_text(frame) for frame in self.frames]
        return [_line(array("I", key), ranks, texts) for key in self._stacks]


def _rank(frame: Frame) -> int:
    if not PYTHON.search(frame[0]):
        return 2
    return 1 if LIBRARY.search(frame[0]) else 0


def _text(frame: Frame) -> str:
    file, line, name = frame
    return f"{file}:{line} {name}"


def _line(frames: Sequence[int], ranks: Sequence[int], texts: Sequence[str]) -> str | None:
    for wanted in (0, 1, 2):
        found = next((frame for frame in frames if ranks[frame] == wanted), None)
        if found is not None:
            return texts[found]
    return None
