"""Counts as text: what is printed is what was counted, at every width, and nothing unknown is silent."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn

import distprof
from distprof.errors import UsageError
from distprof.reporters.tree import TreeRow, TreeView
from distprof.reporters.tree_report import DROP_ORDER, ON_DEMAND, TREE_COLUMNS, TreeReport
from support.models import Shared
from support.stack import DEPTH, Stack


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


def test_equal_layers_are_one_line_only_while_all_numbers_are_equal(stack):
    assert f"0-{DEPTH - 1} ({DEPTH} x)" in str(stack)
    model = Stack()
    model.layers[7].up.weight.requires_grad_(False)
    text = str(distprof.count(model, torch.zeros(2, 5, dtype=torch.long)))
    assert "0-6 (7 x)" in text and "8-31 (24 x)" in text
    assert "Partial" in lines(text)["7"] and "19,776 (19.78 K), 19,520 (19.52 K) trainable" in lines(text)["params"]
    assert "the numbers are those of each one" in text


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
        assert "input" in lines(narrow)["omitted"] and "output" in lines(narrow)["omitted"]


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
    unknown = replace(stack, ops=tuple(op._replace(counted=op.counted and op.op != "aten::mm") for op in stack.ops))
    text = str(unknown)
    assert unknown.uncounted and "aten::mm" in {one.op for one in unknown.uncounted}
    for one in unknown.uncounted:
        listed = next(line for line in text.splitlines() if line.strip().startswith(f"{one.op} "))
        assert f"{one.calls} call" in listed and listed.endswith("B")
    assert f"{100 * unknown.coverage_ratio:.1f} % of the bytes" in lines(text)["coverage"]
    assert all(" at least " in lines(text)[name] for name in ("MACs", "FLOPs"))
    known = replace(stack, ops=tuple(op._replace(counted=True) for op in stack.ops))
    assert "at least" not in str(known)
    assert "100.0 %" in lines(str(known))["coverage"] and "every operator is counted" in str(known)


def test_what_is_estimated_causal_or_repeated_is_labelled(stack):
    assert not {"estimated", "causal FLOPs", "model FLOPs", "note"} & set(lines(str(stack)))
    first = next(op for op in stack.ops if op.macs)
    changed = first._replace(estimate_flops=12345, causal_macs=first.macs - 10, recompute_macs=1, note="by the shape",
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
    assert f"{counts.model_flops}: excluding recomputation" in lines(text)["model FLOPs"]


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
    ({"columns": ["speed"]}, "unknown columns speed"), ({"depth": -1}, "depth must be at least 0"),
    ({"top": 0}, "top must be at least 1"),
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


def test_columns_that_may_go_are_columns():
    assert set(DROP_ORDER) | set(ON_DEMAND) <= set(TREE_COLUMNS)
