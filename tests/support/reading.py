"""All commands that read runs, with arguments."""

from __future__ import annotations

from pathlib import Path

RECORDING = frozenset(("run", "bench", "count", "profile", "reconcile", "demo", "selftest"))
"""Commands that need torch."""
APART = frozenset(("view", "split", "upload", "doctor", "watch", "trigger", "mcp"))
"""Other commands: those that talk to a browser, an agent, a running job or a storage, those that read no run, and
`doctor`."""


def reading_commands(run: Path, other: Path, out: Path) -> list[list[str]]:
    """Returns the arguments of each command; `run` must have all passes, and output goes to `out`."""
    return [[*map(str, words)] for words in (
        ("merge", "--force", run), ("merge", "--force", other), ("stats", run), ("stats", "--json", run),
        ("stats", "--modules", run), ("comms", run), ("comms", "--json", other), ("ops", run),
        ("ops", "--by", "op", "--by", "shape", "--by", "module", run), ("waits", run), ("critical-path", run),
        ("whatif", "--no-stragglers", run), ("memory", run), ("memory", "--by", "module", run),
        ("diff", run, other, "--html", out / "difference.html"), ("diff", run, other),
        ("report", run), ("report", "--markdown", run), ("findings", run), ("export", "--out", out / "chakra", run),
        ("export", "--out", out / "drawn", "--format", "dot", run))]
