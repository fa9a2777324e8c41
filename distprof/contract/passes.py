"""The passes of a recording, one row each: steps are recorded in this order, each pass once.

Topics say what is to be recorded in MegEngine's words; here are the passes that record them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag

from distprof.errors import UsageError

WAIT = "wait"
"""The pass in which nothing is measured."""
COUNT = "count"
"""The pass in which operators are counted."""
TIME = "time"
"""The pass with timers of modules."""
TRACE = "trace"
"""The pass with a timeline."""
MEMORY = "memory"
"""The pass with a timeline of allocations."""
EXECUTION = "execution"
"""The pass in which torch's observer of execution traces is on."""
SYNC = "sync"
"""The pass that looks for what blocks a rank."""
ARRIVALS = "arrivals"
"""The pass without a timeline in which collectives are labelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """A way to record steps; distprof/recording/passes/ has the code under the same name."""

    name: str
    steps: int
    """Number of steps if the user gives none."""
    doc: str
    with_few_ranks: tuple[tuple[int, int], ...] = ()
    """(ranks, steps), ascending: so many steps for at most so many ranks."""
    optional: bool = False
    """True where a job may end at any step of it and is recorded completely."""

    def steps_of(self, num_ranks: int) -> int:
        """Number of steps if the user gives none."""
        return next((steps for most, steps in self.with_few_ranks if num_ranks <= most), self.steps)


PASSES = (
    PassRow(name=WAIT, steps=2, doc="Warm-up: nothing is recorded."),
    PassRow(name=COUNT, steps=1, doc="The FLOP counter runs."),
    PassRow(name=TIME, steps=3, doc="Only module timers run."),
    PassRow(name=SYNC, steps=0, doc="Calls that may block the rank are recorded with their line of the script; only "
                                    "on request."),
    PassRow(name=EXECUTION, steps=0, doc="The profiler and torch's execution trace observer run."),
    # the profiler warms up in the first step; fewer do not suffice to tell habit from chance
    PassRow(name=TRACE, steps=6, doc="The profiler runs, and every collective is labelled."),
    PassRow(name=MEMORY, steps=0, doc="The profiler runs, and every allocation is recorded."),
    # one rank has nobody to be late for: a few steps that nothing slows down
    # what happens in every third step is told from chance by the product of ranks and steps
    PassRow(name=ARRIVALS, steps=20, with_few_ranks=((1, 8), (3, 32)), optional=True,
            doc="Collectives are labelled; nothing else runs."),
)
PASS_NAMES = tuple(row.name for row in PASSES)
USUAL = tuple(row for row in PASSES if row.steps)
"""Those that are recorded without being asked for."""


class Topic(IntFlag):
    """Topics, combined with `|`. The first six have the bits that they have in MegEngine."""

    COMMAND = 1
    """Calls of the runtime, which put work on the queue of a device."""
    OPERATOR = 2
    """Operators on the host with their arguments, and what they run on a device."""
    TENSOR_LIFETIME = 4
    """From the allocation of a tensor's memory until it is freed."""
    TENSOR_PROP = 8
    """Values that the script reads of tensors."""
    SYNC = 16
    """What blocks the host until a device, or a value on it, is ready."""
    SCOPE = 32
    """Calls of modules, and `scope`."""
    MEMORY = 64
    """Bytes allocated on each device."""
    SHAPE_INFER = 128
    """Tracing and compiling by torch.compile, which infer shapes; eager operators do that inside."""
    ALL = 255


RECORDED_BY = {
    Topic.COMMAND: (TRACE,), Topic.OPERATOR: ("count", TRACE), Topic.TENSOR_LIFETIME: (MEMORY,),
    Topic.TENSOR_PROP: (SYNC,), Topic.SYNC: (SYNC,), Topic.SCOPE: ("time", TRACE), Topic.MEMORY: (MEMORY,),
    # what torch.compile does is noted in every step: this pass is long, and disturbs little
    Topic.SHAPE_INFER: (ARRIVALS,)}
"""Passes of each topic."""
STEPS_IF_ASKED = {SYNC: 2, MEMORY: 1}
"""Of the passes that the usual plan leaves out."""
TOPIC_NAMES = tuple((topic.name or "").lower() for topic in RECORDED_BY)
TOPICS_EXAMPLE = "--topics operator,sync"


def parse_topics(text: str) -> Topic:
    """Reads `operator,sync`, or MegEngine's `OPERATOR | SYNC`.

    Raises:
        UsageError: There is no such topic.
    """
    found = Topic(0)
    for word in filter(None, re.split(r"[,|\s]+", text.lower())):
        if word not in (*TOPIC_NAMES, "all"):
            import difflib  # only where the user has mistyped it

            near = difflib.get_close_matches(word, (*TOPIC_NAMES, "all"), n=1)
            raise UsageError(f"unknown topic {word!r} in --topics; choose from {', '.join(TOPIC_NAMES)} or all",
                             hint=f"did you mean {near[0]!r}?" if near else TOPICS_EXAMPLE)
        found |= Topic[word.upper()]
    if not found:
        raise UsageError(f"no topics in --topics {text!r}; choose from {', '.join(TOPIC_NAMES)} or all",
                         hint=TOPICS_EXAMPLE)
    return found


def steps_of(topics: Topic) -> dict[str, int]:
    """Steps of the passes that these topics need, and 0 for the other ones but the wait pass."""
    needed = {name for topic, names in RECORDED_BY.items() if topic & topics for name in names}
    return {row.name: STEPS_IF_ASKED.get(row.name, row.steps) if row.name in needed else 0 for row in PASSES[1:]}


def needing(topics: Topic, name: str) -> list[str]:
    """Those of the topics that need a pass, by name."""
    return [(topic.name or "").lower() for topic, names in RECORDED_BY.items() if topic & topics and name in names]
