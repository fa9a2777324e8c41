"""The parts that ranks have in collectives, as a graph needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.collective_ops import COLLECTIVE_OPS, POINT_TO_POINT
from distprof.merge.program.roots import meeting_roots
from distprof.merge.replay.graph import Parts


def ops_of(table: pl.DataFrame) -> Any:
    """A number for the op of each row and the size of its group; below 0 for messages of two ranks."""
    sizes = table["num_ranks"].fill_null(0).to_numpy()
    op, names = _codes(table["op"])
    found = op * (int(sizes.max(initial=0)) + 1) + sizes
    return np.where(_is_in(op, names, POINT_TO_POINT), -1 - found, found)


def _codes(texts: pl.Series) -> tuple[Any, list[str]]:
    """A number for each text, and the texts by number."""
    coded = texts.fill_null("").cast(pl.Categorical)
    known, codes = numbered(coded.to_physical().to_numpy().astype(np.int64))
    first = np.empty(len(known), np.int64)
    first[codes] = np.arange(len(codes))
    return codes, coded.gather(first).cast(pl.String).to_list()


def _is_in(codes: Any, names: Sequence[str], wanted: Sequence[str]) -> Any:
    return np.isin(codes, [number for number, name in enumerate(names) if name in wanted])


def parts_of(table: pl.DataFrame) -> tuple[Parts, Any]:
    """Parts, a row each, and pairs of a join and a part that leads it."""
    op, names = _codes(table["op"])
    rank, peer = table["rank"].to_numpy(), table["peer"].fill_null(-1).to_numpy()
    collective = table["collective"].to_numpy()
    from_root, to_root = (_is_in(op, names, ops) & (peer >= 0) for ops in (FROM_ROOT, TO_ROOT))
    is_root = rank == peer
    root = meeting_roots(table, ops_of(table), from_root | to_root, is_root, from_root == is_root)
    from_root, to_root = (some & (root < 0) for some in (from_root, to_root))
    pair = _is_in(op, names, POINT_TO_POINT)
    sent = _is_in(op, names, ("send",)) & _is_buffered(table, collective)
    received = pair & np.isin(collective, collective[sent]) & ~sent
    alone = from_root | to_root | sent | received
    join = np.where(alone, np.arange(len(rank)) + int(collective.max(initial=-1)) + 1, collective)
    group = _codes(table["group"])[0]
    queue = numbered(rank * (int(group.max(initial=0)) + 1) + group)[1]
    parts = Parts(queue=np.where(pair, -1, queue), join=numbered(join)[1],
                  start_ns=table["arrival_ns"].to_numpy(), end_ns=table["end_ns"].to_numpy(),
                  root=np.where(is_root, -1, root), op=collective,
                  noted_late=(table["timed_by"] == "future").fill_null(value=False).to_numpy())
    leads = np.concatenate((_led(collective, from_root & ~is_root, from_root & is_root),
                            _led(collective, to_root & is_root, to_root & ~is_root),
                            _led(collective, received, sent)))
    leads[:, 0] = parts.join[leads[:, 0]]
    return parts, leads[np.argsort(leads[:, 0], kind="stable")]


def _is_buffered(table: pl.DataFrame, collective: Any) -> Any:
    """True for parts that ended before another one of their collective began."""
    last = np.full(int(collective.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, collective, table["arrival_ns"].to_numpy())
    return np.asarray(table["end_ns"].to_numpy() < last[collective])


FROM_ROOT, TO_ROOT = (tuple(name for name, op in COLLECTIVE_OPS.items() if op.begins == which)
                      for which in ("from root", "to root"))


def _led(collective: Any, led: Any, leads: Any) -> Any:
    """Pairs of parts of one collective, the first of those led and the second of those that lead."""
    one = pl.DataFrame({"collective": collective[led], "led": np.flatnonzero(led)})
    other = pl.DataFrame({"collective": collective[leads], "leads": np.flatnonzero(leads)})
    return one.join(other, on="collective").select("led", "leads").to_numpy().astype(np.int64).reshape(-1, 2)


def numbered(keys: Any) -> tuple[Any, Any]:
    """The different keys, which are not below 0, ascending; and the index of each key among them."""
    there = np.zeros(int(keys.max(initial=-1)) + 1, bool)
    there[keys] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[keys]
