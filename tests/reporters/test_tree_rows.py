"""Rows of the tree of modules: equal neighbours are folded, the top is chosen, and no module or number is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from distprof.reporters.tree import TreeRow, TreeView, build_trees, select_modules
from distprof.reporters.tree_report import TreeReport


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
