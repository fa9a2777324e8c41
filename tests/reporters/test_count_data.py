"""Counts as objects, frames and files: all hold the documented columns and the same numbers, gathered in one pass."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import distprof
from distprof.contract.rank_json import ParamCount
from distprof.counting.count import Counts
from distprof.errors import OutputError
from distprof.reporters import count_schema


def test_the_object_is_plain_json_with_the_documented_keys(stack):
    found = json.loads(stack.to_json())
    assert found == stack.to_dict()
    assert list(found) == list(count_schema.COUNT_KEYS)
    assert all(doc.endswith(".") for doc in count_schema.COUNT_KEYS.values())
    for quantity in ("macs", "flops"):
        documented = count_schema.COUNT_KEYS[quantity].rpartition(": ")[2].rstrip(".")
        assert list(found[quantity]) == documented.replace(" and ", ", ").split(", ")
    assert set(found["params"]) == {field.name for field in fields(ParamCount)}
    for rows, table in ((found["modules"], count_schema.COUNT_MODULES), (found["ops"], count_schema.COUNT_OPS)):
        assert rows and all(set(row) == set(table.names()) for row in rows)


def test_the_object_adds_up(stack):
    found = stack.to_dict()
    for quantity in ("macs", "flops"):
        phases = found[quantity]
        assert phases["all"] == phases["forward"] + phases["backward"] == sum(op[quantity] for op in found["ops"])
    root = found["modules"][0]
    assert (root["fwd_flops"], root["bwd_flops"]) == (found["flops"]["forward"], found["flops"]["backward"])
    assert root["params"] == found["params"]["params"] == sum(module["own_params"] for module in found["modules"])
    assert root["input_shapes"] == [[2, 5]] and root["dtypes"] == {"float32": 19776}
    assert found["read_bytes"] + found["write_bytes"] == sum(op["io_bytes"] for op in found["ops"])


def test_frames_and_files_hold_the_same_rows(stack, tmp_path):
    frames = stack.to_polars()
    stack.write_parquet(tmp_path / "deep" / "counts")
    for name, frame, table in (("modules", frames.modules, count_schema.COUNT_MODULES),
                               ("ops", frames.ops, count_schema.COUNT_OPS)):
        path = tmp_path / "deep" / "counts" / f"{name}.parquet"
        written = pq.read_schema(path)
        assert written.names == frame.columns == table.names()
        assert all(written.field(column.name).metadata[b"doc"].decode() == column.doc for column in table.columns)
        assert json.loads(written.metadata[b"distprof.totals"])["flops"]["all"] == stack.flops
        as_text = [column.name for column in table.columns if column.type == "category"]
        assert pl.read_parquet(path).cast(dict.fromkeys(as_text, pl.String)).equals(
            frame.cast(dict.fromkeys(as_text, pl.String)))
    assert frames.ops["flops"].sum() == stack.flops
    assert json.loads(frames.modules["output_shapes"][0]) == [[2, 5, 100]]


def test_a_folder_that_cannot_be_written_is_one_error(stack, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        stack.write_parquet(tmp_path / "file")


class Passes(tuple):
    """Counts how often somebody goes through it."""

    taken = 0

    def __iter__(self):
        self.taken += 1
        return super().__iter__()


@pytest.mark.parametrize("show", [str, Counts.to_dict, Counts.by_module, Counts.by_module_and_op],
                         ids=lambda show: show.__name__)
def test_no_operator_is_looked_at_once_per_module(show):
    taken = []
    for layers in (3, 60):
        counts = distprof.count(nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(layers))),
                                torch.randn(1, 4))
        counts = replace(counts, ops=Passes(counts.ops))
        show(counts)
        taken.append(counts.ops.taken)
    assert taken[0] == taken[1] > 0
