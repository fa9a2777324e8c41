"""Aligns clocks by samples, for which ranks asked each other while they were recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from distprof.contract.rank_json import ClockSample
from distprof.merge.clock.fit import Fit, fit_line
from distprof.merge.clock.model import Alignment, Clock

REFERENCE = 0
"""The rank whose clock is the common one. It need not be in the run."""


NOISE_NS = 20_000
"""A clock was set if it moved by more than this: two clocks of a rank are not read at exactly the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRank:
    """One rank of a run."""

    rank: int
    host: Hashable
    """Equal for ranks that run under one kernel; None if not known."""
    samples: Sequence[ClockSample]
    """In order of time, including those without an answer."""
    set_by_ns: int = 0
    """How far its clock was set while it was recorded."""

    @property
    def answered(self) -> list[ClockSample]:
        """Samples with an offset."""
        return [sample for sample in self.samples if sample.offset_ns is not None]


Domain = Hashable
"""Identifies the ranks that read one clock."""


def clock_by_samples(ranks: Sequence[SampledRank]) -> Clock:
    """Brings every rank that a chain of samples joins with rank 0 to the clock of rank 0.

    Ranks of one host read the same clock, unless a sample between them contradicts that.
    """
    domains = _domains(ranks)
    set_by = _set_by(ranks, domains)
    edges = {(this, other): _line(members, domains, other).widened(set_by.get(this, 0) + set_by.get(other, 0))
             for (this, other), members in _pairs(ranks, domains).items()}
    root = _root(domains, edges)
    reached, excess_ns = _reached(root, edges)
    alignments = {rank.rank: reached.get(domains[rank.rank]) for rank in ranks}
    lost = sorted({domains[rank] for rank, known in alignments.items() if known is None}, key=str)
    others = {domain: number for number, domain in enumerate(lost)}
    clocks = {rank: known or Alignment(clock=len(reached) + others[domains[rank]])
              for rank, known in alignments.items()}
    return _described(ranks, clocks, excess_ns)


def _reached(root: Domain, edges: Mapping[tuple[Domain, Domain], Fit]) -> tuple[dict[Domain, Alignment], int]:
    """Joins clocks to the root as in Prim's algorithm, most certain line first.

    Returns:
        The joined clocks, and the largest contradiction between samples and these lines.
    """
    reached: dict[Domain, Alignment] = {root: Alignment(uncertainty_ns=0, drift_uncertainty_ppm=0.0)}
    asking = defaultdict[Domain, list[tuple[int, int, Domain, Fit]]](list)
    for turn, ((this, other), line) in enumerate(edges.items()):
        asking[other].append((line.uncertainty_ns, turn, this, line))
    excess_ns, left = 0, [(*one, root) for one in asking[root]]
    heapify(left)
    while left:
        *_, this, line, other = heappop(left)
        if this in reached:
            continue
        reached[this] = line.through(reached[other], number=len(reached))
        excess_ns = max(excess_ns, line.excess_ns)
        for one in asking[this]:
            heappush(left, (*one, this))
    return reached, excess_ns


def _set_by(ranks: Sequence[SampledRank], domains: Mapping[int, Domain]) -> dict[Domain, int]:
    """Returns how far each clock was set; between two samples this looks like drift."""
    found: dict[Domain, int] = defaultdict(int)
    for rank in ranks:
        if rank.set_by_ns > NOISE_NS:
            found[domains[rank.rank]] = max(found[domains[rank.rank]], rank.set_by_ns)
    return found


def _root(domains: Mapping[int, Domain], edges: Mapping[tuple[Domain, Domain], Fit]) -> Domain:
    """Returns the clock of rank 0 if that rank is in the run or was asked, else that of the lowest rank."""
    root = _domain_of(REFERENCE, domains)
    there = REFERENCE in domains or any(root == other for _, other in edges)
    return root if there or not domains else domains[min(domains)]


def _described(ranks: Sequence[SampledRank], clocks: Mapping[int, Alignment], excess_ns: int) -> Clock:
    hosts = {rank.host for rank in ranks}
    num_hosts = len(hosts) if None not in hosts else len(hosts) - 1 + sum(rank.host is None for rank in ranks)
    num_samples = sum(sample.bound_ns is not None for rank in ranks for sample in rank.answered)
    lost = any(known.uncertainty_ns is None for known in clocks.values())
    if not lost and len({known.clock for known in clocks.values()}) == 1:
        return Clock(method="shared", ranks=clocks, num_hosts=num_hosts, num_samples=num_samples)
    if not num_samples:
        return Clock(method="none", reason="hosts_unknown" if None in hosts else "no_samples", ranks=clocks,
                     num_hosts=num_hosts)
    return Clock(method="samples", reason="samples_do_not_join" if lost else None, num_samples=num_samples,
                 ranks=clocks, num_hosts=num_hosts, excess_ns=excess_ns)


def _domains(ranks: Sequence[SampledRank]) -> dict[int, Domain]:
    """Groups ranks by host, except ranks whose samples show that they read another clock than their host."""
    hosts = {rank.rank: rank.host for rank in ranks}
    domains: dict[int, Domain] = {
        rank.rank: ("rank", rank.rank) if rank.host is None or _contradicts(rank, hosts) else ("host", rank.host)
        for rank in ranks}
    while split := [member.rank for (_, other), members in _pairs(ranks, domains).items()
                    if len(members) > 1 and _line(members, domains, other).excess_ns for member in members]:
        domains |= {rank: ("rank", rank) for rank in split}
    return domains


def _contradicts(rank: SampledRank, hosts: Mapping[int, Hashable]) -> bool:
    return any(sample.lower[1] > 0 or sample.upper[1] < 0 for sample in rank.answered
               if hosts.get(sample.peer) == rank.host)


def _pairs(ranks: Sequence[SampledRank],
           domains: Mapping[int, Domain]) -> dict[tuple[Domain, Domain], list[SampledRank]]:
    """Returns for each clock and each other clock the ranks that asked."""
    asked: dict[tuple[Domain, Domain], list[SampledRank]] = defaultdict(list)
    for rank in ranks:
        for other in {_domain_of(sample.peer, domains) for sample in rank.answered} - {domains[rank.rank]}:
            asked[domains[rank.rank], other].append(rank)
    return asked


def _domain_of(peer: int, domains: Mapping[int, Domain]) -> Domain:
    return domains.get(peer, ("rank", peer))  # a peer that left no data stands for itself


def _line(members: Sequence[SampledRank], domains: Mapping[int, Domain], other: Domain) -> Fit:
    """Fits a line to all samples of ranks that read one clock; it has to hold whenever one of them was recorded."""
    times = [sample.at_ns for member in members for sample in member.samples]
    used = [sample for member in members for sample in member.answered if _domain_of(sample.peer, domains) == other]
    return fit_line([sample.lower for sample in used], [sample.upper for sample in used],
                    window=(min(times), max(times)))
