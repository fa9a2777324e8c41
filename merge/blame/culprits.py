"""Culprits: ranks without whose excess over their peers the steps of a job would be shorter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot
from typing import Literal

SURE = 0.01
"""Largest probability of chance with which a rank is called a culprit."""
HABIT = 3
"""Steps that a culprit is late in, at least."""
MATERIAL = 0.02
"""Smallest share of a step with which a rank is called a culprit."""
MANY_SAMPLES = 1.2
"""From this ratio to the median peer on, the size of the batch is the cause."""
AMOUNTS = {"batch": "samples", "elements": "elements"}
"""Kind of a cause -> what there is more of in the steps of its rank; the first that shows it."""
GROWTH = 1.2
"""More data explains work that grew by up to this factor more than the square of the amount, as attention grows."""
NOT_ITS_OWN = ("core", "unknown")
"""Causes that are no work of a rank which anything shows."""


Blind = Literal["one rank", "one file", "others missing", "no collective", "no wait", "no clock", "no peers", "uneven",
                "no timeline", "wrong clock"]
"""Why delays cannot be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the script in which a rank spends more time than its peers; times per step, ns, from samples."""

    file: str
    line: int
    function: str
    spent_ns: float
    of_peers_ns: float
    """Of the median peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that a rank spends more time on than its peers."""

    kind: str
    """forward, backward, recompute, data, optimizer, host, annotation, unknown, or whole: no single one; batch: it has
    more samples; elements: its input has more of them; core: its thread had to wait for a processor."""
    where: str | None
    """Module path; name of an annotation; for the host what it lies between; of what is unknown, where a trace shows
    nothing. None where that is not known."""
    gain_ns: float
    """By how much a step would be shorter without the excess of this alone."""
    spent: float
    """What the rank spends on it in a step, ns; of a batch, its samples or elements; of a core, its part of one."""
    of_peers: float
    """The same of the median peer."""
    line: Line | None = None
    """In which most of it is spent; None where no line is."""

    @property
    def ratio(self) -> float | None:
        """Its time over that of the median peer; None where that is 0."""
        return self.spent / self.of_peers if self.of_peers else None


def more_data(mine: Mapping[str, float], usual: Mapping[str, float], work: Sequence[Cause]) -> Cause | None:
    """More samples, or longer ones, as the cause of work that takes longer; None where they do not explain it.

    Args:
        mine: What the rank has in a step, by kind of `AMOUNTS`, as far as it is known.
        usual: The same of the median peer.
        work: The work that takes longer.
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
    """Ranks whose steps would be shorter: those that gain at least half of what the one that gains most does."""
    step_ns: float
    """Mean step of the ranks that it meets, directly or through others, once the culprits in front of it are fixed,
    but for those that may be chance."""
    gain_ns: float
    """By how much that would be shorter if the rank worked as its peers do."""
    last_gain_ns: float
    """The same if all other culprits were fixed already: more, where one hides behind another."""
    gain_error_ns: float | None
    """Twice the standard error of the gain over steps, what clocks may be wrong by, and what replays are wrong by; None
    of a single step."""
    p_value: float | None
    """Probability that a rank of a balanced job exceeds its peers as much; None with too few steps or peers."""
    num_peers: int
    """Ranks that it was compared with."""
    excess_ns: list[float]
    """Work beyond that of its peers in each step, of its largest cause."""
    late_steps: list[int]
    """Those in which it is late; all where it is always."""
    causes: list[Cause]
    """The largest first."""
    by_turns_ns: float = 0.0
    """By how much it may exceed its peers in a balanced job, as ranks of its host take turns on too few processors; 0
    where they have enough, and where kernels do not tell."""
    host: str | None = None
    """All of whose ranks are late, and this stands for all of them: gains are those of fixing them together."""
    together: list[int] = field(default_factory=list)
    """These ranks, ascending; none where it stands for itself."""
    alone_gain_ns: float | None = None
    """The most that fixing only one of them gains; None where it stands for itself."""

    @property
    def ranks(self) -> list[int]:
        """Those that it stands for."""
        return self.together or [self.rank]

    @property
    def share(self) -> float:
        """The gain as a part of the step."""
        return self.gain_ns / self.step_ns if self.step_ns else 0.0

    @property
    def certain(self) -> bool:
        """True where chance is an unlikely explanation, the rank is late again and again, and the gain is material, now
        or once others are fixed."""
        return self.is_habit and self.is_material

    @property
    def is_habit(self) -> bool:
        """True where it is late again and again, which is hardly chance."""
        return self.p_value is not None and self.p_value <= SURE and len(self.late_steps) >= HABIT

    @property
    def is_material(self) -> bool:
        """True where the gain is worth a verdict, less what may be due to turns on processors; of what the rank did not
        do itself, as far as is known, at the least that it may be: processors are shared now with one, now with
        another."""
        return self._is_beyond(self.by_turns_ns)

    @property
    def is_due_to_turns(self) -> bool:
        """True where it would be named if ranks of its host did not take turns on processors."""
        return self.is_habit and self._is_beyond(0.0) and not self.is_material

    @property
    def is_its_own(self) -> bool:
        """True where it does the work that makes it late itself, as far as is known."""
        return not self.causes or self.causes[0].kind not in NOT_ITS_OWN

    def _is_beyond(self, by_turns_ns: float) -> bool:
        doubt = hypot(by_turns_ns, 0.0 if self.is_its_own else self.gain_error_ns or 0.0)
        return max(self.gain_ns, self.last_gain_ns) - doubt >= MATERIAL * self.step_ns


def by_host(culprits: Sequence[Culprit], hosts: Mapping[int, str]) -> list[Culprit]:
    """Joins the ranks of a host that are all late for sure: each hides behind the others, and what is slow is the host.

    Args:
        culprits: In the order in which fixing them gains most, each given that those in front of it are fixed.
        hosts: Of all ranks; '' where it is not known.
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
    """One for all ranks of a host; what they gain one after the other adds up to what all of them do."""
    gain_ns, ranks = sum(one.gain_ns for one in every), sorted(one.rank for one in every)
    main = max(every, key=lambda one: one.gain_ns)
    most = max((cause.gain_ns for cause in main.causes), default=0.0)
    return replace(
        main, rank=ranks[0], host=host, together=ranks, alone_gain_ns=every[0].gain_ns, gain_ns=gain_ns,
        last_gain_ns=max(gain_ns, *(one.last_gain_ns for one in every)), step_ns=every[0].step_ns,
        p_value=max(one.p_value or 0.0 for one in every),
        delayed=sorted({rank for one in every for rank in one.delayed}),
        causes=[replace(cause, gain_ns=gain_ns * cause.gain_ns / most if most > 0 else 0.0) for cause in main.causes])
