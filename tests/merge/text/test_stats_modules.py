"""`distprof stats --modules`: the tree says what the merged table says."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest

from distprof.merge.totals.modules import module_rows
from distprof.reporters.tree import TreeView
from distprof.reporters.tree_report import TreeReport
from distprof.units import duration, si
from support.jobs import distprof


def tree(run, *flags: object) -> list[list[str]]:
    """Cells of the lines of the tree, the header first."""
    text = distprof("stats", "--modules", *flags, run).stdout
    table = text.split("have the module\n\n")[1].split("\n\n")[0].splitlines()
    return [re.split(r"\s{2,}", re.sub(r"^[│├└─ ]*", "", line).strip()) for line in table if "───" not in line[:4]]


@pytest.fixture(scope="module", params=["ddp", "tp"])
def run(request, recordings):
    return request.getfixturevalue(request.param)


def test_every_module_has_the_numbers_of_the_merged_table(run):
    header, *found = tree(run, "--depth", 99)
    table = pl.read_parquet(run / "merged" / "modules.parquet").to_dicts()
    assert header[:6] == ["module", "class", "params", "MACs", "fwd FLOPs", "bwd FLOPs"]
    assert {"forward", "backward", "% time", "slowest rank"} <= set(header) and len(found) == len(table)
    shown = {(name, *rest) for name, *rest in found}
    for module in table:
        if module["fwd_time_ns_mean"] is None:
            continue
        name = module["module_path"].rpartition(".")[2] or "(root)"
        expected = {title: si(module[f"{column}_mean"]) for title, column in (
            ("params", "params"), ("MACs", "fwd_macs"), ("fwd FLOPs", "fwd_flops"), ("bwd FLOPs", "bwd_flops"))}
        expected |= {"module": name, "forward": duration(module["fwd_time_ns_mean"]),
                     "slowest rank": str(module["slowest_rank"])}
        assert any(all(cells[header.index(title)] == text for title, text in expected.items()) for cells in shown)


def test_a_container_has_the_sum_of_its_children(ddp):
    header, *found = tree(ddp)
    layers = next(cells for cells in found if cells[0] == "layers")
    table = pl.read_parquet(ddp / "merged" / "modules.parquet")
    blocks = table.filter(pl.col("class_name") == "Block")
    assert len(blocks) == 4
    assert layers[header.index("MACs")] == si(blocks["fwd_macs_mean"].sum())
    assert layers[header.index("forward")] == duration(blocks["fwd_time_ns_mean"].sum())
    assert layers[header.index("slowest rank")] in "0123"


def test_depth_top_and_sort(ddp):
    text = distprof("stats", "--modules", ddp).stdout
    assert all(part in text for part in (
        "26 of 46 modules: depth 3 of 4", "4 ranks = dp 4", "ops that distprof does not know moved 0.0 % of all bytes"))
    assert [cells[0] for cells in tree(ddp, "--depth", 1, "--sort", "macs")][1:4] == ["(root)", "layers", "head"]
    header, *found = tree(ddp, "--sort", "fwd", "--top", 5, "--depth", 2)
    table = pl.read_parquet(ddp / "merged" / "modules.parquet")
    blocks = table.filter(pl.col("class_name") == "Block").sort("fwd_time_ns_mean", descending=True)
    shown = [cells[header.index("forward")] for cells in found if cells[1] == "Block"]
    assert shown and shown == [duration(ns) for ns in blocks["fwd_time_ns_mean"]][:len(shown)]


def test_json_has_the_rows_of_the_merged_table(run):
    found = json.loads(distprof("stats", "--modules", "--json", run).stdout)
    summary = json.loads(distprof("stats", "--json", run).stdout)
    rows = pl.read_parquet(run / "merged" / "modules.parquet").to_dicts()
    assert {row["module_path"]: row for row in found["modules"]} == {row["module_path"]: row for row in rows}
    assert all(found[key] == summary[key] for key in ("world_size", "per_gpu", "model", "problems"))
    top = json.loads(distprof("stats", "--modules", "--json", "--top", 2, "--sort", "flops", run).stdout)["modules"]
    assert top[0]["module_path"] == "" and len(top) == 2


def test_a_run_without_a_merge_gives_the_same(ddp, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(ddp, copy, ignore=shutil.ignore_patterns("merged"))
    assert tree(copy) == tree(ddp) and not (copy / "merged").exists()


@pytest.mark.parametrize(("flags", "words"), [
    (("--depth", "2"), "--depth needs --modules"), (("--sort", "time"), "--sort needs --modules"),
    (("--modules", "--sort", "speed"), "'speed' is not one of"),
])
def test_mistakes_are_one_line(ddp, flags, words):
    done = distprof("stats", *flags, ddp)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def merged_row(stage: int, path: str, **values: object) -> dict:
    return {"stage": stage, "module_path": path, "class_name": "Block", "slowest_rank": stage, "params_mean": 4.0,
            "fwd_macs_mean": 8.0, "fwd_flops_mean": 16.0, "bwd_flops_mean": 0.0, "recompute_flops_mean": 0.0} | values


def test_stages_are_trees_of_their_own():
    frame = pl.DataFrame([merged_row(0, ""), merged_row(0, "0"), merged_row(1, ""), merged_row(1, "1")])
    text = TreeReport(rows=module_rows(frame), view=TreeView()).text()
    assert [line.split("  ")[0] for line in text.splitlines()[2:6]] == ["stage 0 (root)", "└─ 0", "stage 1 (root)",
                                                                       "└─ 1"]
    assert text.count("100.0 %") == 4


def test_self_times_are_shown_where_the_table_has_them():
    times = {"fwd_time_ns_mean": 5e6, "fwd_self_time_ns_mean": 2e6, "bwd_time_ns_mean": 3e6}
    text = TreeReport(rows=module_rows(pl.DataFrame([merged_row(0, "", **times)])), view=TreeView()).text()
    assert "fwd self" in text and "2.00 ms" in text and "bwd self" not in text
    without = TreeReport(rows=module_rows(pl.DataFrame([merged_row(0, "")])), view=TreeView()).text()
    assert "forward" not in without and "% time" not in without
