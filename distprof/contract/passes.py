"""The passes of a recording, one row each, in the order in which they are recorded, each once.

Topics name what to record as MegEngine does; `RECORDED_BY` lists the passes that record each of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag

from distprof.errors import UsageError

WAIT = "wait"
"""The pass that only waits for the job to warm up."""
COUNT = "count"
"""The pass that counts operators."""
TIME = "time"
"""The pass that times modules."""
TRACE = "trace"
"""The pass that records a timeline."""
MEMORY = "memory"
"""The pass that records a timeline of allocations."""
EXECUTION = "execution"
"""The pass that runs torch's execution trace observer."""
SYNC = "sync"
"""The pass that records what blocks a rank."""
ARRIVALS = "arrivals"
"""The pass that labels collectives, without a timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """One pass; its code is in distprof/recording/passes/ under the same name."""

    name: str
    steps: int
    """Default number of steps."""
    doc: str
    with_few_ranks: tuple[tuple[int, int], ...] = ()
    """Other defaults for jobs of few ranks: (largest number of ranks, number of steps), ascending."""
    optional: bool = False
    """True if the recording is complete even if the job ends during this pass."""

    def steps_of(self, num_ranks: int) -> int:
        """Returns the default number of steps for a job of this many ranks."""
        return next((steps for most, steps in self.with_few_ranks if num_ranks <= most), self.steps)


PASSES = (
    PassRow(name=WAIT, steps=2, doc="Warm-up: nothing is recorded."),
    PassRow(name=COUNT, steps=1, doc="The FLOP counter runs."),
    PassRow(name=TIME, steps=3, doc="Only module timers run."),
    PassRow(name=SYNC, steps=0, doc="Calls that may block the rank are recorded with their line of the script; only "
                                    "on request."),
    PassRow(name=EXECUTION, steps=0, doc="The profiler and torch's execution trace observer run."),
    # the profiler warms up in the first step; fewer steps cannot distinguish a regular delay from chance
    PassRow(name=TRACE, steps=6, doc="The profiler runs, and every collective is labelled."),
    PassRow(name=MEMORY, steps=0, doc="The profiler runs, and every allocation is recorded."),
    # a single rank cannot be late for others: a few undisturbed steps suffice
    # what happens in every third step can be distinguished from chance if ranks x steps is large enough
    PassRow(name=ARRIVALS, steps=20, with_few_ranks=((1, 8), (3, 32)), optional=True,
            doc="Collectives are labelled; nothing else runs."),
)
PASS_NAMES = tuple(row.name for row in PASSES)
USUAL = tuple(row for row in PASSES if row.steps)
"""Passes that are recorded by default."""


class Topic(IntFlag):
    """What to record, combined with `|`. The first six have the same bits as in MegEngine."""

    COMMAND = 1
    """Calls of the device runtime, which enqueue work on a device."""
    OPERATOR = 2
    """Operators on the host with their arguments, and what they launch on a device."""
    TENSOR_LIFETIME = 4
    """From the allocation of a tensor's memory until it is freed."""
    TENSOR_PROP = 8
    """Tensor values that the script reads."""
    SYNC = 16
    """What blocks the host until a device, or a value on it, is ready."""
    SCOPE = 32
    """Calls of modules, and `scope`."""
    MEMORY = 64
    """Bytes allocated on each device."""
    SHAPE_INFER = 128
    """Tracing and compiling by torch.compile, which infer shapes; eager operators infer them internally."""
    ALL = 255


RECORDED_BY = {
    Topic.COMMAND: (TRACE,), Topic.OPERATOR: ("count", TRACE), Topic.TENSOR_LIFETIME: (MEMORY,),
    Topic.TENSOR_PROP: (SYNC,), Topic.SYNC: (SYNC,), Topic.SCOPE: ("time", TRACE), Topic.MEMORY: (MEMORY,),
    # compilations are recorded in every step: this pass is long and disturbs little
    Topic.SHAPE_INFER: (ARRIVALS,)}
"""Topic -> the passes that record it."""
STEPS_IF_ASKED = {SYNC: 2, MEMORY: 1}
"""Numbers of steps, if a topic needs them, of passes that are not recorded by default."""
TOPIC_NAMES = tuple((topic.name or "").lower() for topic in RECORDED_BY)
TOPICS_EXAMPLE = "--topics operator,sync"


def parse_topics(text: str) -> Topic:
    """Reads `operator,sync`, or MegEngine's `OPERATOR | SYNC`.

    Raises:
        UsageError: A topic is unknown, or there is none.
    """
    found = Topic(0)
    for word in filter(None, re.split(r"[,|\s]+", text.lower())):
        if word not in (*TOPIC_NAMES, "all"):
            import difflib  # needed only if the user mistyped a topic

            near = difflib.get_close_matches(word, (*TOPIC_NAMES, "all"), n=1)
            raise UsageError(f"unknown topic {word!r} in --topics; choose from {', '.join(TOPIC_NAMES)} or all",
                             hint=f"did you mean {near[0]!r}?" if near else TOPICS_EXAMPLE)
        found |= Topic[word.upper()]
    if not found:
        raise UsageError(f"no topics in --topics {text!r}; choose from {', '.join(TOPIC_NAMES)} or all",
                         hint=TOPICS_EXAMPLE)
    return found


def steps_of(topics: Topic) -> dict[str, int]:
    """Returns the number of steps of each pass except the wait pass; 0 if these topics do not need the pass."""
    needed = {name for topic, names in RECORDED_BY.items() if topic & topics for name in names}
    return {row.name: STEPS_IF_ASKED.get(row.name, row.steps) if row.name in needed else 0 for row in PASSES[1:]}


def needing(topics: Topic, name: str) -> list[str]:
    """Returns the names of those topics that need a pass."""
    return [(topic.name or "").lower() for topic, names in RECORDED_BY.items() if topic & topics and name in names]
