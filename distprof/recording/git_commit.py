"""The commit that is checked out in a folder. No program is run: in the process of a rank, the script would see it."""

from __future__ import annotations

import re
from pathlib import Path

from distprof.files import read_small

MOST_BYTES = 1 << 24
_HASH = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")


def git_commit(folder: Path) -> str:
    """The commit, as gitrepository-layout(5) describes it; '' where the folder is in no repository or it is unclear."""
    try:
        git = next((place / ".git" for place in (folder, *folder.parents) if (place / ".git").exists()), None)
        return "" if git is None else _head(git)
    except (OSError, ValueError):
        return ""


def _head(git: Path) -> str:
    if git.is_file():  # of a worktree or a submodule
        git = git.parent / _text(git).removeprefix("gitdir: ")
    head = _text(git / "HEAD")
    name = head.removeprefix("ref: ")
    if name != head:
        common = git / _text(git / "commondir") if (git / "commondir").is_file() else git
        loose = common / name
        head = _text(loose) if loose.is_file() else _packed(common / "packed-refs", name)
    return head if _HASH.fullmatch(head) else ""


def _packed(file: Path, name: str) -> str:
    lines = _text(file).splitlines() if file.is_file() else []
    return next((line.split(" ")[0] for line in lines if line.endswith(f" {name}")), "")


def _text(file: Path) -> str:
    return read_small(file, MOST_BYTES).decode(errors="replace").strip()
