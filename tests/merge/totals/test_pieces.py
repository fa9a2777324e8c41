"""Tables of ranks that are added up in pieces: the same as all rows at once, by definitions in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.contract.merged import MERGED_MODULES
from distprof.contract.tables import MODULES, OPS, PARAMETERS, TableRow
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import NAMES, TYPES, empty
from distprof.merge.totals.modules import REDUCED, TIMES, ModuleSums
from distprof.merge.totals.operator_sums import KEYS, SUMS, Adding, of_a_rank, operator_sums
from distprof.merge.totals.parameters import Holding, model_params

PP, DP, TP = 2, 2, 2
PLACES = [{"pp": rank // (DP * TP), "dp": rank // TP % DP, "tp": rank % TP} for rank in range(PP * DP * TP)]
COUNTS = st.none() | st.integers(0, 2**40)
NS = st.none() | st.integers(0, 3).map(float) | st.floats(0, 1e12)


def run() -> Run:
    ranks = [Rank(number=rank, folder=Path(), coordinates=place) for rank, place in enumerate(PLACES)]
    return Run(path=Path(), run_id="made", world_size=len(ranks), mp_size=PP * TP, dp_size=DP,
               topology={"pp": PP, "dp": DP, "tp": TP}, topology_source="", ranks=ranks, missing=[])


@st.composite
def of_ranks(draw, rows: st.SearchStrategy[TableRow], keys: Sequence[str], min_rows: int = 0) -> list[list[TableRow]]:
    """Rows of pieces of ranks; a rank has each key once."""
    many = st.lists(rows, min_size=min_rows, max_size=4, unique_by=lambda row: tuple(row[key] for key in keys))
    ranks = [[{"rank": rank, **row} for row in draw(many)] for rank in range(len(PLACES))]
    ends = draw(st.sets(st.integers(1, len(PLACES) - 1)))
    return [[row for rank in ranks[start:end] for row in rank]
            for start, end in zip([0, *sorted(ends)], [*sorted(ends), len(PLACES)], strict=True)]


def frame(table, rows: Sequence[TableRow], types=NAMES) -> pl.DataFrame:
    nothing = empty(table)
    known = pl.DataFrame(rows, schema_overrides=nothing.schema) if rows else nothing
    return pl.concat([nothing, known], how="diagonal").cast(empty(table, types).schema)


MODULE = st.fixed_dictionaries({
    "module_path": st.sampled_from(["", "a", "a.b", "a module with a long name", "é"]),
    "class_name": st.sampled_from(["Linear", "Block"]), "depth": st.integers(0, 3),
    "params": st.integers(0, 2**40), "stored_params": st.integers(0, 2**40),
    **{name: NS if name.endswith("_ns") else COUNTS for name in REDUCED[2:]}})


def modules_of(pieces: Sequence[Sequence[TableRow]]) -> pl.DataFrame:
    sums = ModuleSums(run())
    for rows in pieces:
        sums.add(frame(MODULES, rows))
    return sums.frame()


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(pieces=of_ranks(MODULE, ["module_path"]))
def test_modules(pieces):
    rows = [row for piece in pieces for row in piece]
    found = modules_of(pieces)
    assert set(found.columns) == set(MERGED_MODULES.names()) and found.equals(modules_of([rows]))
    groups = defaultdict(list)
    for row in rows:
        groups[PLACES[row["rank"]]["pp"], row["module_path"]].append(row)
    assert [(row["stage"], row["module_path"]) for row in found.to_dicts()] == list(groups)
    for merged, mine in zip(found.to_dicts(), groups.values(), strict=True):
        assert (merged["num_ranks"], merged["mp_size"], merged["dp_size"]) == (len(mine), PP * TP, DP)
        assert (merged["class_name"], merged["depth"]) == (mine[0]["class_name"], mine[0]["depth"])
        for name in REDUCED:
            known = [row[name] for row in mine if row[name] is not None]
            assert merged[f"{name}_mean"] == (pytest.approx(sum(known) / len(known), rel=1e-14) if known else None)
            extremes = (min(known), max(known)) if known else (None, None)
            assert (merged[f"{name}_min"], merged[f"{name}_max"]) == extremes
        times = {row["rank"]: sum(row[name] or 0 for name in TIMES) for row in reversed(mine)}
        assert merged["slowest_rank"] == (max(sorted(times), key=times.__getitem__) if max(times.values()) else None)
        assert merged["model_params"] == TP * merged["params_mean"]
        flops = merged["fwd_flops_mean"]
        assert merged["model_fwd_flops"] == (None if flops is None else TP * flops)


def test_sums_lose_nothing_that_a_plain_sum_would():
    times = [2.0**53, 1.0, 1.0, 1.0]  # of the ranks of the first stage
    rows = [{"rank": rank, "module_path": "a", "class_name": "Linear", "depth": 0, "params": 1, "stored_params": 1,
             **dict.fromkeys(REDUCED[2:]), "fwd_time_ns": ns} for rank, ns in enumerate(times)]
    merged = modules_of([rows]).row(0, named=True)
    assert sum(times) / 4 < merged["fwd_time_ns_mean"] == math.fsum(times) / 4
    assert (merged["slowest_rank"], merged["bwd_time_ns_mean"]) == (0, None)


AMOUNTS = st.integers(0, 2**40).map(float)
OPERATOR = st.fixed_dictionaries({
    "op": st.sampled_from(["aten::mm", "aten::convolution", "aten::view"]), "shapes": st.sampled_from("ab"),
    "phase": st.sampled_from(["forward", "backward", "recompute", "optimizer", "evaluation"]),
    "dtype": st.sampled_from([None, "float32"]), "counted": st.booleans(), "view": st.booleans(),
    **dict.fromkeys(SUMS, AMOUNTS)})


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(pieces=of_ranks(OPERATOR, ["shapes", *KEYS]))
def test_operators(pieces):
    adding, rows = Adding(), [row for piece in pieces for row in piece]
    for piece in pieces:
        adding.add(of_a_rank(frame(OPS, piece, TYPES)))
    found, expected = adding.sums(), defaultdict(lambda: dict.fromkeys(SUMS, 0.0))
    for row in rows:
        for name in SUMS:
            expected[tuple(row[key] for key in KEYS)][name] += row[name]
    assert {tuple(row[key] for key in KEYS): {name: row[name] for name in SUMS}
            for row in found.of_ops.to_dicts()} == expected
    assert found.num_working == len({row["rank"] for row in rows if not row["view"]})
    flops, model = defaultdict(float), defaultdict(float)
    for row in rows:
        flops[row["rank"], row["phase"]] += row["flops"]
    assert {(row["rank"], row["fwd_flops"], row["recompute_flops"]) for row in found.of_ranks.to_dicts()} == {
        (rank, flops[rank, "forward"], flops[rank, "recompute"]) for rank in {row["rank"] for row in rows}}
    for row in rows:
        if row["phase"] in ("forward", "backward") and row["flops"]:  # what is repeated is part of them
            model[row["rank"], row["dtype"], "conv" in row["op"]] += row["flops"] - 2 * row["recompute_macs"]
    told = {(row["rank"], row["dtype"], row["convolution"]): row["flops"] for row in found.model_flops.to_dicts()}
    assert told == {key: model[key] for key in told}
    assert operator_sums(frame(OPS, rows, TYPES)).of_ranks.equals(found.of_ranks)


PARAMETER = st.fixed_dictionaries({
    "module_path": st.sampled_from(["embedding", "layers.0.a module with a long name"]),
    "name": st.sampled_from(["weight", "bias"]), "shape": st.sampled_from(["[4, 2]", "[8]"]),
    "params": st.sampled_from([2, 4, 8]), "stored_params": st.sampled_from([0, 1, 2, 4, 8]),
    "whole_params": st.sampled_from([None, None, 16]), "trainable": st.booleans(),
    "checksum": st.sampled_from([None, 1, 2]), "active_ratio": st.sampled_from([None, None, 0.25, 0.5])})


def expected_unique(rows: Sequence[TableRow]) -> tuple[int, int | None]:
    first = [row for row in rows if not PLACES[row["rank"]]["dp"]]
    stages = defaultdict(set)
    for row in first:
        stages[row["checksum"], row["shape"]].add(PLACES[row["rank"]]["pp"])
    groups = defaultdict(list)
    for row in first:
        tied = row["trainable"] and row["checksum"] is not None and "," in row["shape"]
        stage = PLACES[row["rank"]]["pp"]
        if not tied or stage == min(stages[row["checksum"], row["shape"]]):
            groups[stage, row["module_path"], row["name"]].append(row)
    unique, active, ratios = 0, 0.0, 0
    for mine in groups.values():
        whole = [row["whole_params"] for row in mine if row["whole_params"] is not None]
        parts = {(row["checksum"], row["params"]) for row in mine if row["checksum"] is not None}
        size = max(whole) if whole else sum(params for _, params in parts) or max(row["params"] for row in mine)
        ratio = max((row["active_ratio"] for row in mine if row["active_ratio"] is not None), default=None)
        unique, active, ratios = unique + size, active + size * (ratio or 1), ratios + (ratio is not None)
    return unique, round(active) if ratios else None


def expected_stored(rows: Sequence[TableRow]) -> int:
    sums = defaultdict(lambda: [0, 0])
    for row in rows:
        found = sums[PLACES[row["rank"]]["pp"], row["module_path"], row["name"]]
        found[0], found[1] = found[0] + row["params"], found[1] + row["stored_params"]
    return round(sum(stored * min(max(round(params / stored), 1), DP) / DP
                     for params, stored in sums.values() if stored))


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(pieces=of_ranks(PARAMETER, ["module_path", "name"], min_rows=1))
def test_parameters(pieces):
    holding, rows = Holding(run()), [row for piece in pieces for row in piece]
    for piece in pieces:
        holding.add(frame(PARAMETERS, piece))
    held = holding.held()
    found = model_params(run(), held)
    assert found is not None and (found.unique, found.active) == expected_unique(rows)
    assert found.stored == expected_stored(rows)
    first = {(row["module_path"], row["name"], PLACES[row["rank"]]["pp"]): (row["rank"], row["shape"])
             for row in reversed(rows)}
    assert {(row["module_path"], row["name"], row["stage"]): (row["rank"], row["shape"])
            for row in held.sums.to_dicts()} == first


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(pieces=of_ranks(PARAMETER, ["module_path", "name"]))
def test_parameters_of_some_ranks_alone_are_not_those_of_the_model(pieces):
    holding = Holding(run())
    for piece in pieces:
        holding.add(frame(PARAMETERS, piece))
    there = {row["rank"] for piece in pieces for row in piece}
    assert (model_params(run(), holding.held()) is None) == (len(there) < len(PLACES))
