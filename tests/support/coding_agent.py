"""A minimal coding agent: it calls the tools of a run, and trusts their documented fields."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client import Transport
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer

from distprof.launch.agents.server import server
from support.processes import clean_environ

Question = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a tool."""

    is_error: bool
    text: str

    @property
    def content(self) -> dict[str, Any]:
        """The parsed JSON of the answer."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The explanation of why a job is slow."""

    kind: str | None
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    phase: str | None
    module: str | None
    line: str | None
    since_step: int | None


def ask(run: Path, questions: Sequence[Question]) -> list[Answer]:
    """Asks questions, one after the other, of a server of a run in this process."""
    return anyio.run(_ask, run, questions)


def started(run: Path) -> Transport:
    """Returns the server of a run as an agent would start it."""
    return stdio_client(StdioServerParameters(
        command=sys.executable, args=["-m", "distprof", "mcp", str(run)], env=clean_environ()))


async def _ask(run: Path, questions: Sequence[Question]) -> list[Answer]:
    async with Client(server(run)) as client:
        return [await _answer(client, *one) for one in questions]


async def _answer(client: Client, name: str, arguments: dict[str, Any]) -> Answer:
    found = await client.call_tool(name, arguments)
    return Answer(is_error=bool(found.is_error), text=found.content[0].text)


async def _tools(run: Path) -> dict[str, Any]:
    async with Client(started(run)) as client:
        return {one.name: one for one in (await client.list_tools()).tools}


def tools(run: Path) -> dict[str, Any]:
    """Returns the descriptions of tools that the server of a run gives to an agent that starts it."""
    return anyio.run(_tools, run)


def explain_run(run: Path, of: Callable[[Path], Transport | MCPServer] = server) -> Explained | None:
    """Returns the explanation that the tools give for a run; `of` returns its server."""
    return anyio.run(_explain_run, of(run))


async def _explain_run(asked: Transport | MCPServer) -> Explained | None:
    """Asks for findings; if the module is unknown, also asks the later recordings, from the last to the first."""
    async with Client(asked) as client:
        found = await _answer(client, "findings", {})
        assert not found.is_error, found.text
        first = explain(found.content)
        if first is None or first.module is not None or first.kind not in ("slow_rank", "intermittent"):
            return first
        for window in reversed(found.content.get("windows", ())):
            later = explain((await _answer(client, "findings", {"window": window})).content)
            if later is not None and later.ranks == first.ranks:
                return replace(first, module=later.module, line=later.line, phase=later.phase or first.phase)
        return first


def explain(findings: dict[str, Any]) -> Explained | None:
    """Returns the first finding with severity bad; None if there is none."""
    one = next((one for one in findings.get("findings", ()) if one["severity"] == "bad"), None)
    return None if one is None else Explained(
        kind=one.get("kind"), ranks=tuple(one.get("ranks", ())), hosts=tuple(one.get("hosts", ())),
        phase=one.get("phase"), module=one.get("module"), line=one.get("line"), since_step=one.get("since_step"))
