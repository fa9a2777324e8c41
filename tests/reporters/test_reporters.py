"""Counts as text and data: what is printed is what was counted, at every width, and nothing unknown is silent."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import fields, replace

import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

import distprof
from distprof.contract.rank_json import ParamCount
from distprof.counting.count import Counts
from distprof.errors import OutputError, UsageError
from distprof.reporters import count_schema
from distprof.reporters.tree import TreeRow, build_trees
from distprof.reporters.tree_columns import DROP_ORDER, ON_DEMAND, TREE_COLUMNS
from distprof.reporters.tree_report import TreeReport
from distprof.reporters.tree_view import TreeView, select_modules
from support.models import Shared

DEPTH = 32


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    """As many equal layers as a LLaMA has, in a ModuleList that is never called itself."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.token = nn.Embedding(100, 8)
        self.layers = nn.ModuleList(Block(8) for _ in range(depth))
        self.head = nn.Linear(8, 100, bias=False)

    def forward(self, tokens):
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Borrowed(nn.Module):
    """One layer in two containers, and one that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(4, 4)
        self.first = nn.Sequential(layer, nn.ReLU())
        self.second = nn.Sequential(layer)
        self.idle = nn.Linear(3, 3)

    def forward(self, x):
        return self.second(self.first(x))


@pytest.fixture(scope="module")
def stack():
    return distprof.count(Stack(), torch.zeros(2, 5, dtype=torch.long), backward=True)


def lines(text: str) -> dict[str, str]:
    """Name in the tree, or label below it, -> line."""
    return {re.sub(r"^[│├└─ ]*", "", line).split("  ")[0]: line for line in text.splitlines() if line}


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", re.sub(r"^[│├└─ ]*", "", line).strip())


def test_the_text_has_every_number_of_the_count(stack):
    found = lines(str(stack))
    layer = DEPTH * 2 * 10 * 8 * 32
    macs = layer + 10 * 8 * 100
    assert cells(found["(root)"])[:7] == ["(root)", "Stack", "2,5", "2,5,100", "19.78 K", "171.84 K", "343.68 K"]
    assert f"forward {macs:,}" in found["MACs"] and f"backward {2 * macs:,}" in found["MACs"]
    assert f"forward {2 * macs:,}" in found["FLOPs"] and f"all {6 * macs:,}" in found["FLOPs"]
    params = sum(parameter.numel() for parameter in Stack().parameters())
    assert found["params"].split("  ", 1)[1].strip().startswith(f"{params:,} (")
    assert "all trainable, float32, " in found["params"]
    assert "100.0 %" in found["(root)"]


def test_a_container_that_is_never_called_has_the_work_of_what_is_in_it(stack):
    found = lines(str(stack))
    each = cells(found[f"0-{DEPTH - 1} ({DEPTH} x)"])
    assert each[5:8] == ["5.12 K", "10.24 K", "20.48 K"]
    assert cells(found["layers"])[5:8] == ["163.84 K", "327.68 K", "655.36 K"]


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


def test_equal_layers_are_one_line_only_while_all_numbers_are_equal(stack):
    assert f"0-{DEPTH - 1} ({DEPTH} x)" in str(stack)
    model = Stack()
    model.layers[7].up.weight.requires_grad_(False)
    text = str(distprof.count(model, torch.zeros(2, 5, dtype=torch.long)))
    assert "0-6 (7 x)" in text and "8-31 (24 x)" in text
    assert "Partial" in lines(text)["7"] and "19,776 (19.78 K), 19,520 (19.52 K) trainable" in lines(text)["params"]
    assert "each has the numbers of the line" in text


def test_all_modules_are_shown_or_said_to_be_missing(stack):
    total = len(stack.modules)
    assert total == 3 + DEPTH * 4 + 1
    assert "shown" not in lines(stack.table(depth=None).text())
    assert f"shown        4 of {total} modules: depth 1 of 3" in stack.table(depth=1).text()
    top = stack.table(top=3, sort="flops").text()
    assert "top 3 by flops" in top and list(lines(top))[2:5] == ["(root)", "layers", "head"]


def test_siblings_stand_largest_first(stack):
    def order(sort: str) -> list[str]:
        return [name for name in lines(stack.table(depth=1, sort=sort).text()) if name in ("token", "layers", "head")]

    assert order("path") == ["token", "layers", "head"]
    assert order("macs") == order("flops") == ["layers", "head", "token"]
    assert order("params") == ["layers", "token", "head"]


@pytest.mark.parametrize("width", [120, 80, 60])
def test_no_number_is_cut_at_any_width(stack, width):
    full, narrow = stack.table(depth=None).text(), stack.table(depth=None).text(width)
    assert max(map(len, narrow.splitlines())) <= width
    for name in ("(root)", "layers", "up", "head"):
        shown = cells(lines(narrow)[name])
        assert len(shown) >= 4 and set(shown) <= set(cells(lines(full)[name])), name
    if width < 120:
        assert "input" in lines(narrow)["left out"] and "output" in lines(narrow)["left out"]


def test_columns_that_were_asked_for_are_never_left_out(stack):
    text = stack.table(columns=["class_name", "input_shapes", "output_shapes", "elements", "io_bytes", "params"])
    assert cells(text.text(50).splitlines()[0]) == ["module", "class", "input", "output", "elements", "bytes", "params"]


def test_a_shared_module_and_an_idle_one_are_marked():
    counts = distprof.count(Borrowed(), torch.randn(2, 4), backward=True)
    text = str(counts)
    assert text.count("0 (shared)") == 2 and "idle (not called)" in text and "(shared)  " in text
    assert counts.params.params == 32 and "32, all trainable" in lines(text)["params"]
    assert sum(module.shared for module in counts.modules) in (2, 3)


def test_repeated_calls_have_a_column_of_their_own():
    text = str(distprof.count(Shared(), torch.randn(2, 4)))
    assert "calls" in cells(text.splitlines()[0]) and cells(lines(text)["first"])[4] == "3"
    assert "calls" not in cells(str(distprof.count(nn.Linear(2, 2), torch.randn(1, 2))).splitlines()[0])


def test_every_uncounted_operator_is_listed_with_calls_and_bytes(stack):
    unknown = replace(stack, ops=tuple(replace(op, counted=op.counted and op.op != "aten::mm") for op in stack.ops))
    text = str(unknown)
    assert unknown.uncounted and "aten::mm" in {one.op for one in unknown.uncounted}
    for one in unknown.uncounted:
        listed = next(line for line in text.splitlines() if line.strip().startswith(f"{one.op} "))
        assert f"{one.calls} call" in listed and listed.endswith("B")
    assert f"{100 * unknown.coverage_ratio:.1f} % of the bytes" in lines(text)["coverage"]
    known = replace(stack, ops=tuple(replace(op, counted=True) for op in stack.ops))
    assert "100.0 %" in lines(str(known))["coverage"] and "no operator is uncounted" in str(known)


def test_what_is_estimated_causal_or_repeated_is_labelled(stack):
    assert not {"estimated", "causal FLOPs", "model FLOPs", "note"} & set(lines(str(stack)))
    first = next(op for op in stack.ops if op.macs)
    changed = replace(first, estimate_flops=12345, causal_macs=first.macs - 10, recompute_macs=1, note="by the shape",
                      kind="pool", elements=777)
    counts = replace(stack, ops=tuple(changed if op is first else op for op in stack.ops))
    found = lines(str(counts))
    assert "about 12.35 K FLOPs of aten::" in found["estimated"] and "not in the FLOPs above" in found["estimated"]
    assert f"{counts.flops - 20:,}" in found["causal FLOPs"] and f"{counts.flops - 2:,}" in found["model FLOPs"]
    assert "by the shape" in found["note"] and "pool 777" in " ".join(str(counts).split())


def test_recomputed_flops_have_a_column_where_there_are_any():
    from support.models import Checkpointed

    model = Checkpointed(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), reentrant=False)
    counts = distprof.count(model, torch.randn(2, 4, requires_grad=True), backward=True)
    assert counts.recompute_flops == 64
    text = str(counts)
    assert "recomputed" in text.splitlines()[0] and "recomputed 64" in lines(text)["FLOPs"]
    assert f"{counts.model_flops}: without recomputation" in lines(text)["model FLOPs"]


def test_a_model_without_work_divides_by_nothing():
    text = str(distprof.count(nn.Identity(), torch.randn(2)))
    assert cells(lines(text)["(root)"])[-1] == "0" and "params       0" in text


def test_text_is_plain_and_a_console_gets_its_width(stack):
    assert "\x1b" not in str(stack) and "\x1b" not in stack.table().text(80)
    out = io.StringIO()
    Console(file=out, width=70, force_terminal=True, color_system="standard", _environ={}).print(stack)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "\x1b" in out.getvalue() and max(map(len, shown.splitlines())) == 70
    assert "343.68 K" in shown and repr(stack).startswith("Counts(flops=1031040, macs=515520, params=19776, modules=")


@pytest.mark.parametrize(("wish", "word"), [
    ({"sort": "speed"}, "params, macs"), ({"sort": "time"}, "known: path, params, macs, flops"),
    ({"columns": ["speed"]}, "found speed"), ({"depth": -1}, "depth to be at least 0"), ({"top": 0}, "top to be"),
])
def test_wishes_that_cannot_be_met_are_refused(stack, wish, word):
    with pytest.raises(UsageError, match=word):
        stack.table(**wish).text()


def test_latency_is_shown_where_it_is_known():
    def row(path: str, **values: float | None) -> TreeRow:
        return TreeRow(path=path, class_name="Linear", values={"params": 4, **values})

    rows = (row("", fwd_time_ns=3e6, fwd_self_time_ns=1e6, mfu=0.25), row("a", fwd_time_ns=2e6, bound="memory"),
            row("b"))
    text = TreeReport(rows=rows, view=TreeView(sort="fwd")).text()
    assert cells(text.splitlines()[0]) == ["module", "class", "params", "forward", "fwd self", "MFU", "bound by"]
    assert cells(lines(text)["(root)"]) == ["(root)", "Linear", "4", "3.00 ms", "1.00 ms", "25.0 %", "-"]
    assert cells(lines(text)["b"]) == ["b", "Linear", "4", "-", "-", "-", "-"]


def test_times_of_equal_layers_are_never_folded_into_one():
    rows = [TreeRow(path=f"layers.{index}", class_name="Block", values={"fwd_time_ns": 100 + index % 2})
            for index in range(4)]
    assert " x)" not in TreeReport(rows=rows, view=TreeView()).text()


def test_trees_of_several_models_and_stages_stand_apart():
    paths = ["", "layers", "layers.0", "model1:", "model1:layers.0", "a:b"]
    rows = [TreeRow(path=path, class_name="M", values={}, group=group)
            for group in ("stage 0", "stage 1") for path in paths]
    roots = build_trees(rows)
    assert [root.name for root in roots] == ["stage 0 (root)", "stage 0 model1: (root)", "stage 1 (root)",
                                             "stage 1 model1: (root)"]
    assert [child.name for child in roots[0].children] == ["layers", "a:b"]
    assert [child.name for child in roots[1].children] == ["layers.0"]


@st.composite
def trees(draw) -> list[TreeRow]:
    """Layers of few kinds, so that neighbours are often equal."""
    rows = [TreeRow(path="", class_name="Model", values={"params": 0})]
    for layer in range(draw(st.integers(0, 12))):
        kind = draw(st.integers(0, 1))
        rows.append(TreeRow(path=f"{layer}", class_name="Layer", values={"params": 10 + kind}))
        rows += [TreeRow(path=f"{layer}.{name}", class_name="Linear", values={"params": draw(st.integers(0, 1))})
                 for name in ("0", "1", "x")[:draw(st.integers(2, 3))]]
    return rows


@given(trees())
def test_folding_neighbours_loses_no_module_and_no_number(rows):
    def expanded(node, times: int) -> Counter:
        times *= node.repeats
        found = Counter({(node.row.class_name, node.row.values["params"]): times})
        for child in node.children:
            found += expanded(child, times)
        return found

    from distprof.reporters.tree import collapse

    folded = collapse(build_trees(rows))
    assert sum((expanded(node, 1) for node in folded), Counter()) == Counter(
        (row.class_name, row.values["params"]) for row in rows)
    everything = select_modules(rows, TreeView(depth=None))
    assert everything.num_shown == everything.num_modules == len(rows)


@given(trees(), st.integers(1, 8), st.sampled_from(["path", "params"]))
def test_the_top_modules_keep_what_they_stand_in(rows, top, sort):
    chosen = select_modules(rows, TreeView(depth=None, top=top, sort=sort, collapse=False))
    shown = {line.row.path for line in chosen.lines}
    assert min(top, len(rows)) <= len(shown) == chosen.num_shown
    assert all(path == "" or path.rpartition(".")[0] in shown for path in shown)
    if sort == "params":
        largest = sorted((row.values["params"] for row in rows), reverse=True)[:top]
        values = Counter(row.values["params"] for row in rows if row.path in shown)
        assert all(values[value] >= times for value, times in Counter(largest).items())


def test_the_object_is_plain_json_with_the_documented_keys(stack):
    found = json.loads(stack.to_json())
    assert found == stack.to_dict()
    assert list(found) == list(count_schema.COUNT_KEYS)
    assert all(doc.endswith(".") for doc in count_schema.COUNT_KEYS.values())
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


def test_columns_that_may_go_are_columns():
    assert set(DROP_ORDER) | set(ON_DEMAND) <= set(TREE_COLUMNS)
