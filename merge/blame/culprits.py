"""Culprits: ranks without whose excess over their peers the steps of a job would be shorter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot
from typing import Literal

SURE = 0.01
"""A rank is called a culprit only if its p-value is at most this."""
HABIT = 3
"""A culprit is late in at least this many steps."""
MATERIAL = 0.02
"""A rank is called a culprit only if fixing it gains at least this fraction of a step."""
MANY_SAMPLES = 1.2
"""The batch size is the cause only if the rank has at least this many times the samples of its median peer."""
AMOUNTS = {"batch": "samples", "elements": "elements"}
"""Kind of a cause -> what the rank has more of in its steps. The first one that applies is named."""
GROWTH = 1.2
"""More data explains work that grew by up to this factor more than the square of the amount, as attention does."""
NOT_ITS_OWN = ("core", "unknown")
"""Kinds of causes that are not known to be work of the rank itself."""


Blind = Literal["one rank", "one file", "others missing", "no collective", "no wait", "no clock", "no peers", "uneven",
                "no timeline", "wrong clock"]
"""Why delays cannot be seen. one rank: the job has no other; one file: several ranks are in one file; others missing:
only one of several ranks is known; no collective: none with several ranks and known times; no wait: no rank is known to
have waited; no clock: clocks were never compared; no peers: no two ranks run the same program; uneven: only some ranks
have a timeline; no timeline: streams of devices may wait unseen; wrong clock: collectives contradict the clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the script in which a rank spends more time than its peers. Times from samples, in ns per step."""

    file: str
    line: int
    function: str
    spent_ns: float
    of_peers_ns: float
    """Time of the median peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that a rank spends more time on than its peers."""

    kind: str
    """forward, backward, recompute, data, optimizer, host, annotation, unknown, or whole (no single kind); batch: it
    has more samples; elements: its input has more of them; core: its thread had to wait for a processor."""
    where: str | None
    """Module path; name of an annotation; for host, what it lies between; for unknown, where the trace shows nothing.
    None if not known."""
    gain_ns: float
    """How much shorter a step would be without this excess alone."""
    spent: float
    """What the rank spends on it per step, ns; for batch and elements: samples or elements; for core: the fraction of a
    processor that it got."""
    of_peers: float
    """The same of the median peer."""
    line: Line | None = None
    """The line in which most of it is spent; None if no line is known."""

    @property
    def ratio(self) -> float | None:
        """Its time over that of the median peer; None if that is 0."""
        return self.spent / self.of_peers if self.of_peers else None


def more_data(mine: Mapping[str, float], usual: Mapping[str, float], work: Sequence[Cause]) -> Cause | None:
    """Returns more or longer samples as the cause of work that takes longer; None if they do not explain it.

    Args:
        mine: What the rank has per step, by kind of `AMOUNTS`, as far as known.
        usual: The same of the median peer.
        work: The kinds of work that take longer.
    """
    for kind in AMOUNTS:
        if kind in mine and usual.get(kind, 0) > 0 and work:
            ratio = mine[kind] / usual[kind]
            if ratio >= MANY_SAMPLES and all(one.spent <= GROWTH * ratio ** 2 * one.of_peers for one in work):
                return Cause(kind=kind, where=None, gain_ns=max(one.gain_ns for one in work), spent=mine[kind],
                             of_peers=usual[kind])
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A rank that works longer than its peers, and what that costs the job."""

    rank: int
    delayed: list[int]
    """Ranks whose steps would be shorter: those that gain at least half as much as the one that gains most."""
    step_ns: float
    """Mean step of the ranks that it meets, directly or through others, once the culprits before it are fixed, except
    those that may be chance."""
    gain_ns: float
    """How much shorter that step would be if the rank worked as its peers do."""
    last_gain_ns: float
    """The same if all other culprits were already fixed; larger if one rank hides behind another."""
    gain_error_ns: float | None
    """Two standard errors of the gain over steps, combined with the clock error and the error of replays; None for a
    single step."""
    p_value: float | None
    """Probability that some rank of a balanced job exceeds its peers as much; None with too few steps or peers."""
    num_peers: int
    """Number of ranks that it was compared with."""
    excess_ns: list[float]
    """Its work beyond that of its peers in each step, in the kind of work that is its largest cause."""
    late_steps: list[int]
    """Steps in which it is late; all steps if it always is."""
    causes: list[Cause]
    """Largest first."""
    by_turns_ns: float = 0.0
    """How much it may exceed its peers in a balanced job because ranks of its host take turns on too few processors; 0
    if they have enough, or if the kernel does not report it."""
    host: str | None = None
    """The host, if all ranks of it are late and this culprit stands for all of them: gains are those of fixing all.
    None if it is a single rank."""
    together: list[int] = field(default_factory=list)
    """The ranks that it stands for, ascending; empty if only for itself."""
    alone_gain_ns: float | None = None
    """The largest gain from fixing only one of these ranks; None if it stands only for itself."""

    @property
    def ranks(self) -> list[int]:
        """All ranks that it stands for."""
        return self.together or [self.rank]

    @property
    def share(self) -> float:
        """The gain as a fraction of the step."""
        return self.gain_ns / self.step_ns if self.step_ns else 0.0

    @property
    def certain(self) -> bool:
        """True if chance is an unlikely explanation, the rank is late repeatedly, and the gain is material, either at
        once or after others are fixed."""
        return self.is_habit and self.is_material

    @property
    def is_habit(self) -> bool:
        """True if it is late repeatedly and chance is an unlikely explanation."""
        return self.p_value is not None and self.p_value <= SURE and len(self.late_steps) >= HABIT

    @property
    def is_material(self) -> bool:
        """True if the gain, less its uncertainty, is worth a verdict. The uncertainty is what turns on processors may
        explain; for what is not known to be the rank's own work also the error of the gain, because processors are
        shared with changing ranks."""
        return self._is_beyond(self.by_turns_ns)

    @property
    def is_due_to_turns(self) -> bool:
        """True if it would be named if ranks of its host did not take turns on processors."""
        return self.is_habit and self._is_beyond(0.0) and not self.is_material

    @property
    def is_its_own(self) -> bool:
        """True if, as far as known, the rank itself does the work that makes it late."""
        return not self.causes or self.causes[0].kind not in NOT_ITS_OWN

    def _is_beyond(self, by_turns_ns: float) -> bool:
        doubt = hypot(by_turns_ns, 0.0 if self.is_its_own else self.gain_error_ns or 0.0)
        return max(self.gain_ns, self.last_gain_ns) - doubt >= MATERIAL * self.step_ns


def by_host(culprits: Sequence[Culprit], hosts: Mapping[int, str]) -> list[Culprit]:
    """Joins the ranks of a host that are all certain culprits: each hides behind the others; the host is slow.

    Args:
        culprits: In the order in which fixing them gains most, each given that those before it are fixed.
        hosts: Rank -> host, for all ranks; '' if not known.
    """
    members: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        members.setdefault(host, []).append(rank)
    late = {one.rank: one for one in culprits if one.certain}
    slow = [host for host, ranks in members.items() if host and 1 < len(ranks) < len(hosts) and {*ranks} <= late.keys()]
    joined = {host: _joined([one for one in culprits if one.rank in members[host]], host) for host in slow}
    found: dict[int, Culprit] = {}
    for one in culprits:
        whole = joined.get(hosts.get(one.rank, ""), one)
        found.setdefault(whole.rank, whole)
    return list(found.values())


def _joined(every: Sequence[Culprit], host: str) -> Culprit:
    """Returns one culprit for all ranks of a host. Their gains one after the other add up to the gain of fixing all."""
    gain_ns, ranks = sum(one.gain_ns for one in every), sorted(one.rank for one in every)
    main = max(every, key=lambda one: one.gain_ns)
    most = max((cause.gain_ns for cause in main.causes), default=0.0)
    return replace(
        main, rank=ranks[0], host=host, together=ranks, alone_gain_ns=every[0].gain_ns, gain_ns=gain_ns,
        last_gain_ns=max(gain_ns, *(one.last_gain_ns for one in every)), step_ns=every[0].step_ns,
        p_value=max(one.p_value or 0.0 for one in every),
        delayed=sorted({rank for one in every for rank in one.delayed}),
        causes=[replace(cause, gain_ns=gain_ns * cause.gain_ns / most if most > 0 else 0.0) for cause in main.causes])
