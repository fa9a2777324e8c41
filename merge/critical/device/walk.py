"""Walks back along the critical path of a device step, through streams, launches and the host.

A device step ends where the first command of the next one begins. From there, the path goes back to what that command
waited for last: another command, or its launch; from a launch, along the thread that made it, to where the thread had
waited for a command. Each moment of the step is in exactly one link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distprof.merge.activity.device.commands import COMMUNICATION, COMPUTE, COPY, Commands
from distprof.merge.activity.device.steps import HANDOVER_NS, LATENCY_NS, Span
from distprof.merge.critical.device.dependencies import EVENT, LAUNCH, NOTHING, Dependencies

HOST, KERNELS, EXCHANGE, COPIES, LATENCY, GAPS, WAKING, UNSHOWN = (
    "host", "kernels", "communication", "copies", "latency", "gaps", "waking", "unshown")
KINDS = (HOST, KERNELS, EXCHANGE, COPIES, LATENCY, GAPS, WAKING, UNSHOWN)
"""Kinds of links. latency: from a launch to the start of its command. gaps: from the end of a command to the start of
the one that waited for it. waking: from the end of a command to the return of the call that waited for it. unshown:
longer than any of these should take, for a reason that the timeline does not show."""
WAKES_NS = 100_000
"""A call that returns later than this after a command waited for something else as well."""
RUNNING = (KERNELS, EXCHANGE, COPIES)
"""Kinds of commands that run."""
OF_COMMANDS = {COMPUTE: KERNELS, COMMUNICATION: EXCHANGE, COPY: COPIES}


class Link(NamedTuple):
    """A piece of a path."""

    kind: str
    start_ns: int
    end_ns: int
    command: int
    """The command that runs, begins or was waited for; -1 for the host."""


class Walk:
    """Walks back along paths of a rank."""

    def __init__(self, commands: Commands, found: Dependencies) -> None:
        self._commands, self._found = commands, found
        waits = found.waits
        self._returns = {thread: np.flatnonzero((waits.thread == thread) & waits.blocked)
                         for thread in np.unique(waits.thread).tolist()}

    def back(self, command: int, start_ns: int) -> list[Link]:
        """Returns the path from the start of a command back to a time, where it is cut; latest link first."""
        links, commands, found, passed = list[Link](), self._commands, self._found, set[int]()
        while int(commands.start_ns[command]) > start_ns:
            begins, bound = int(commands.start_ns[command]), found.bound[command]
            if bound == NOTHING or command in passed:  # commands without duration may seem to wait for themselves
                links.append(Link(UNSHOWN, start_ns, begins, command))
                break
            passed.add(command)
            if bound == LAUNCH:
                issued = int(found.issued_ns[command])
                late = begins - issued > LATENCY_NS + max(found.usual_ns[LAUNCH], 0)
                links.append(Link(UNSHOWN if late else LATENCY, issued, begins, command))
                thread = int(commands.calls.thread[commands.call[command]])
                ahead = self._host(links, thread, issued, start_ns)
            else:
                ahead = found.ahead(command)
                over = int(commands.end_ns[ahead])
                late = begins - over > (HANDOVER_NS if bound == EVENT else LATENCY_NS)
                links.append(Link(UNSHOWN if late else GAPS, over, begins, command))
            if ahead < 0:
                break
            links.append(Link(OF_COMMANDS[int(commands.kind[ahead])], int(commands.start_ns[ahead]),
                              int(commands.end_ns[ahead]), ahead))
            command = ahead
        return self._cut(links, start_ns)

    def of_host(self, at_ns: int, start_ns: int) -> list[Link]:
        """Returns the path from a time in the thread that launches most commands back to another time; latest link
        first."""
        calls, links = self._commands.calls, list[Link]()
        threads = calls.thread[self._commands.call[self._commands.call >= 0]]
        ahead = self._host(links, int(np.bincount(threads).argmax()), at_ns, start_ns)
        return self._cut(links, start_ns) + self._command(ahead, start_ns)

    def of_end(self, command: int, start_ns: int) -> list[Link]:
        """Returns the path from the end of a command back to a time; latest link first."""
        return self._command(command, start_ns)

    def _command(self, command: int, start_ns: int) -> list[Link]:
        if command < 0 or int(self._commands.end_ns[command]) <= start_ns:
            return []
        ran = Link(OF_COMMANDS[int(self._commands.kind[command])], int(self._commands.start_ns[command]),
                   int(self._commands.end_ns[command]), command)
        return [*self._cut([ran], start_ns), *self.back(command, start_ns)]

    def _host(self, links: list[Link], thread: int, at_ns: int, start_ns: int) -> int:
        """Adds what a thread did until a time, and the wait before. Returns the command that it waited for, or -1."""
        waits, rows = self._found.waits, self._returns.get(thread)
        place = -1 if rows is None else int(np.searchsorted(waits.ended_ns[rows], at_ns, "right")) - 1
        wait = -1 if rows is None or place < 0 else int(rows[place])
        since = start_ns if wait < 0 else max(int(waits.ended_ns[wait]), start_ns)
        links.append(Link(HOST, since, at_ns, -1))
        if wait < 0 or since == start_ns:
            return -1
        command = int(waits.command[wait])
        over = int(self._commands.end_ns[command])
        links.append(Link(WAKING if since - over <= WAKES_NS else UNSHOWN, over, since, command))
        return command

    def _cut(self, links: Sequence[Link], start_ns: int) -> list[Link]:
        return [one._replace(start_ns=max(one.start_ns, start_ns)) for one in links
                if one.end_ns > max(one.start_ns, start_ns)]


def chain_of(walk: Walk, commands: Commands, span: Span, last: int) -> list[Link]:
    """Returns the path of a step, in order of time.

    Args:
        walk: The walk over all commands of the rank.
        commands: These commands.
        span: The step.
        last: The command with whose start the step ends; if that is unknown, the command of the step that ended last.
    """
    _, start, end, is_whole = span
    if is_whole:
        return walk.back(last, start)[::-1]
    ended = walk.of_end(last, start) if int(commands.end_ns[last]) >= end else walk.of_host(end, start)
    return ended[::-1]
