"""Groups that move data more slowly than equal ones: a slow link between hosts, or a slow host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT, ranks_of, text_of
from distprof.merge.blame.culprits import MATERIAL, SURE
from distprof.merge.blame.verdicts import REPLAY
from distprof.merge.chance import chance, median_of_others
from distprof.merge.program.job import Job
from distprof.merge.replay.graph import MARK
from distprof.merge.replay.order import ordered
from distprof.merge.replay.replay import Replay

FEWEST_GROUPS = 3
"""Number of equal groups needed for a comparison: of two groups, either may be unusual."""
FEWEST_STEPS = 3
"""Number of common steps needed for a comparison: in fewer, any group may be slower by chance."""
SLOWER = 1.3
"""A group is examined if it takes at least this many times as long as the median of the others."""
MOST = 3
"""At most this many slow groups are named, those that cost most."""
PER_OCTAVE = 4
"""Groups move equal amounts if log2 of their bytes, rounded to steps of 1 / `PER_OCTAVE`, is equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """Groups of ranks on the same hosts that move data more slowly than others that move as much. Times per step."""

    groups: list[list[int]]
    """Ranks of each group."""
    ops: list[str]
    hosts: list[str]
    """Hosts that they span; a single one if groups of different hosts share only this one; empty if not known."""
    num_others: int
    """Number of groups that they were compared with."""
    moving_ns: float
    """Time from the last rank's call to the end, summed over the calls of the slowest group."""
    of_others_ns: float
    """The same of the median of the other groups."""
    step_ns: float
    gain_ns: float
    """How much shorter the step would be if they moved data as fast as the others."""
    gain_error_ns: float | None
    """Two standard errors of the gain; None if the gain is only an upper bound."""
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slow:
    """One slow group in one op."""

    ranks: tuple[int, ...]
    op: str
    mean_ns: float
    usual_ns: float
    scatter_ns: float
    num_others: int
    p_value: float

    @property
    def excess_ns(self) -> float:
        return self.mean_ns - self.usual_ns


def slow_groups(rows: pl.DataFrame, job: Job, steps: Sequence[int], hosts: Mapping[int, str]) -> list[SlowGroup]:
    """Finds slow groups. A replay with their data moved as fast as that of the others tells what they cost.

    Args:
        rows: `MERGED_COLLECTIVES`.
        job: Its graph.
        steps: Steps that count.
        hosts: Rank -> host; '' if not known.
    """
    windows = job.steps[np.isin(job.steps[:, 1], steps)]
    at = job.graph.events.at_ns
    if not len(windows):
        return []
    step_ns = float((at[windows[:, 3]] - at[windows[:, 2]]).mean())
    moved = _moved(rows.filter(pl.col("step").is_in(list(steps))))
    found = list(_joined(list(_slow(moved, hosts, step_ns)), hosts, step_ns))
    if not found:
        return []
    graph, order = ordered(job.graph)
    places = np.searchsorted(np.flatnonzero(graph.events.kind == MARK), windows[:, 2:])
    before = Replay(graph, order).times([[]])[:, 0]

    def gain_of(one: SlowGroup) -> float:
        less = _less(rows, job, one)
        after = Replay(replace(graph, transfer_ns=graph.transfer_ns - less), order).times([[]])[:, 0]
        saved = (before - after)[places]
        return float((saved[:, 1] - saved[:, 0]).mean())

    costed = [replace(one, gain_ns=gain, gain_error_ns=float(np.hypot(one.gain_error_ns or 0.0, REPLAY * gain)))
              for one in found for gain in [gain_of(one)]]
    return _worth(costed)


def slow_groups_of(moved: pl.DataFrame, hosts: Mapping[int, str], step_ns: float,
                   exposed: Mapping[str, float]) -> list[SlowGroup]:
    """Finds slow groups from calls that were measured without a graph. Their cost is then an upper bound.

    Args:
        moved: Rows per op and group in the steps that count: how long the calls moved data (`ns`, mean of their ranks),
            their number (`calls`) and bytes (`num_bytes`), with `num_ranks` and the text of `group_ranks`.
        hosts: Rank -> host; '' if not known.
        step_ns: Mean step.
        exposed: Text of a group's ranks -> the fraction of the time of its calls in which threads were blocked.
    """
    found = _joined(list(_slow(moved, hosts, step_ns)), hosts, step_ns)
    return _worth([replace(one, gain_error_ns=None, gain_ns=one.gain_ns * max(
        exposed.get(text_of(ranks), 0.0) for ranks in one.groups)) for one in found])


def _worth(found: Sequence[SlowGroup]) -> list[SlowGroup]:
    worth = [one for one in found if one.gain_ns - (one.gain_error_ns or 0.0) >= MATERIAL * one.step_ns]
    return sorted(worth, key=lambda one: -one.gain_ns)[:MOST]


def _moved(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns a row per call that all of its ranks made: how long it moved data. Messages count as groups of two."""
    is_pair = pl.col("op").cast(pl.String).is_in(POINT_TO_POINT)
    each = rows.filter(pl.col("complete") & pl.col("transfer_ns").is_not_null() & (pl.col("num_ranks") > 1)).select(
        "collective", "step", "rank", "num_ranks", "size_bytes", "transfer_ns", is_pair=is_pair,
        op=pl.when(is_pair).then(pl.lit("send")).otherwise(pl.col("op").cast(pl.String)),
        group_ranks=pl.col("group_ranks").cast(pl.String)).group_by("collective").agg(
        pl.col("step", "num_ranks", "op", "is_pair", "group_ranks").first(),
        pl.col("rank").min().alias("low"), pl.col("rank").max().alias("high"), ns=pl.col("transfer_ns").mean(),
        calls=pl.lit(1), num_bytes=pl.col("size_bytes").max().fill_null(0))
    return each.with_columns(
        group_ranks=pl.when("is_pair").then(pl.format("{}, {}", "low", "high")).otherwise("group_ranks"),
    ).drop("collective", "low", "high", "is_pair")


def _slow(moved: pl.DataFrame, hosts: Mapping[int, str], step_ns: float) -> Iterator[_Slow]:
    """Yields groups that take longer than others of their kind: the same op, ranks, hosts, calls and bytes."""
    of_steps = moved.drop_nulls(("group_ranks", "ns")).group_by("op", "num_ranks", "group_ranks", "step").agg(
        pl.col("ns", "calls", "num_bytes").sum()).sort("group_ranks", "op", "step")  # the p-value depends on the order
    groups = of_steps.group_by("op", "num_ranks", "group_ranks", maintain_order=True).agg(
        pl.col("calls").median(), octave=((pl.col("num_bytes").median() + 1).log(2) * PER_OCTAVE).round(),
        steps=pl.col("step"), ns=pl.col("ns"))
    spans = [len({hosts.get(rank, "") for rank in ranks_of(text)}) for text in groups["group_ranks"].to_list()]
    groups = groups.with_columns(pl.Series("num_hosts", spans, pl.Int64))
    for (op, *_), kind in groups.group_by("op", "num_ranks", "num_hosts", "calls", "octave", maintain_order=True):
        if len(kind) >= FEWEST_GROUPS:
            yield from _slow_of_kind(str(op), kind, step_ns)


def _slow_of_kind(op: str, kind: pl.DataFrame, step_ns: float) -> Iterator[_Slow]:
    steps = sorted(set.intersection(*map(set, kind["steps"].to_list())))
    values = np.array([[dict(zip(own, ns, strict=True))[step] for step in steps]
                       for own, ns in kind.select("steps", "ns").iter_rows()])
    if values.shape[1] < FEWEST_STEPS:
        return
    means = values.mean(axis=1)
    usual = median_of_others(means)
    beyond = (values - median_of_others(values))[:, :, None]
    for row in np.flatnonzero((means >= SLOWER * usual) & (means - usual >= MATERIAL * step_ns)).tolist():
        p_value = chance(beyond, row, 0)
        if p_value is not None and p_value <= SURE:
            yield _Slow(ranks=ranks_of(kind["group_ranks"][row]), op=op, mean_ns=float(means[row]),
                        usual_ns=float(usual[row]), p_value=p_value, num_others=len(kind) - 1,
                        scatter_ns=2 * float(values[row].std(ddof=1)) / len(steps) ** 0.5)


def _joined(found: Sequence[_Slow], hosts: Mapping[int, str], step_ns: float) -> Iterator[SlowGroup]:
    """Joins groups on the same hosts, which share links, or, if one host is common to all, the groups of this host."""
    together: dict[tuple[Any, ...], list[_Slow]] = {}
    for one in found:
        several = tuple(sorted({hosts.get(rank, "") for rank in one.ranks} - {""}))
        together.setdefault(several if len(several) > 1 else one.ranks, []).append(one)
    shared = set.intersection(*map(set, together)) if len(together) > 1 else set()
    if len(shared) == 1 and isinstance(host := shared.pop(), str):
        together = {(host,): list(found)}
    for key, mine in together.items():
        most = max(mine, key=lambda one: one.excess_ns)
        names = [name for name in key if isinstance(name, str)] or sorted(
            {hosts.get(rank, "") for rank in most.ranks} - {""})
        of_group: dict[tuple[int, ...], float] = {}
        for one in mine:
            of_group[one.ranks] = of_group.get(one.ranks, 0.0) + one.excess_ns
        yield SlowGroup(
            groups=sorted(map(list, of_group)), ops=sorted({one.op for one in mine}), hosts=names,
            num_others=max(most.num_others + 1 - len({one.ranks for one in mine if one.op == most.op}), 1),
            moving_ns=most.mean_ns, of_others_ns=most.usual_ns, step_ns=step_ns, gain_ns=max(of_group.values()),
            gain_error_ns=most.scatter_ns, p_value=max(one.p_value for one in mine))


def _less(rows: pl.DataFrame, job: Job, one: SlowGroup) -> Any:
    """Returns how much longer the transfer of each part is than that of other groups."""
    named = {text_of(ranks) for ranks in one.groups}
    pairs = {tuple(ranks) for ranks in one.groups if len(ranks) == 2}
    of_group = rows.filter(pl.col("op").cast(pl.String).is_in([*one.ops, *(("recv",) if "send" in one.ops else ())]))
    mine = of_group.filter(~pl.col("op").cast(pl.String).is_in(POINT_TO_POINT),
                           pl.col("group_ranks").cast(pl.String).is_in(list(named)))["collective"]
    sent = of_group.filter(pl.col("op").cast(pl.String).is_in(POINT_TO_POINT)).group_by("collective").agg(
        low=pl.col("rank").min(), high=pl.col("rank").max())
    messages = [collective for collective, low, high in sent.iter_rows() if (low, high) in pairs]
    held = np.isin(job.collective, np.concatenate((mine.to_numpy(), np.array(messages, np.int64))))
    share = 1 - one.of_others_ns / one.moving_ns
    return np.where(held, share * np.maximum(job.graph.transfer_ns, 0), 0.0)
