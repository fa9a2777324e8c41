"""Topics: what is to be recorded, in MegEngine's words, and the passes that record it."""

from __future__ import annotations

import difflib
import re
from enum import IntFlag

from distprof.contract.passes import ARRIVALS, MEMORY, PASSES, SYNC, TRACE
from distprof.errors import UsageError


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
NAMES = tuple((topic.name or "").lower() for topic in RECORDED_BY)
EXAMPLE = "--topics operator,sync"


def parse_topics(text: str) -> Topic:
    """Reads `operator,sync`, or MegEngine's `OPERATOR | SYNC`.

    Raises:
        UsageError: There is no such topic.
    """
    found = Topic(0)
    for word in filter(None, re.split(r"[,|\s]+", text.lower())):
        if word not in (*NAMES, "all"):
            near = difflib.get_close_matches(word, (*NAMES, "all"), n=1)
            raise UsageError(f"unknown topic {word!r} in --topics; choose from {', '.join(NAMES)} or all",
                             hint=f"did you mean {near[0]!r}?" if near else EXAMPLE)
        found |= Topic[word.upper()]
    if not found:
        raise UsageError(f"no topics in --topics {text!r}; choose from {', '.join(NAMES)} or all", hint=EXAMPLE)
    return found


def steps_of(topics: Topic) -> dict[str, int]:
    """Steps of the passes that these topics need, and 0 for the other ones but the wait pass."""
    needed = {name for topic, names in RECORDED_BY.items() if topic & topics for name in names}
    return {row.name: STEPS_IF_ASKED.get(row.name, row.steps) if row.name in needed else 0 for row in PASSES[1:]}


def needing(topics: Topic, name: str) -> list[str]:
    """Those of the topics that need a pass, by name."""
    return [(topic.name or "").lower() for topic, names in RECORDED_BY.items() if topic & topics and name in names]
