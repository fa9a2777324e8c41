"""Who needs whose data: against a simulation that looks at every storage by itself, and by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.execution.dependencies.storage_dependencies import edges, storage_dependencies
from distprof.merge.execution.dependencies.tensor_uses import written_arguments
from distprof.merge.execution.node_table import read_table
from distprof.merge.execution.rank_graph import rank_graph
from distprof.merge.scan.trace_file import TraceFile
from support.execution_traces import FRESH, call, file_of, tensor

IN_PLACE = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"


def needed(folder, *nodes):
    """Name of each call -> names of those whose data it needs."""
    path = folder / "et.json"
    path.write_text(file_of(*nodes))
    graph = rank_graph(read_table(TraceFile(path=path)), None)
    found = edges(len(graph.name), [storage_dependencies(graph, {})])
    names = [graph.names[number] for number in graph.name]
    return {names[place]: [names[one] for one in found.of(place)] for place in range(len(names))}


def test_views_and_changes_in_place_are_followed(tmp_path):
    found = needed(
        tmp_path, call(2, "make", outputs=[tensor(7)], schema=FRESH),
        call(3, "view", inputs=[tensor(7)], outputs=[tensor(7)], schema=VIEW),
        call(4, "change", inputs=[tensor(7), tensor(8)], outputs=[tensor(7)], schema=IN_PLACE),
        call(5, "read", inputs=[tensor(7)], outputs=[tensor(9)], schema=FRESH))
    assert found == {"make": [], "view": ["make"], "change": ["make"], "read": ["change"]}


def test_a_call_is_needed_with_all_that_lies_in_it(tmp_path):
    found = needed(
        tmp_path, call(2, "outer", outputs=[tensor(7)], schema=FRESH),
        call(3, "inner", parent=2, outputs=[tensor(7)], schema=FRESH),
        call(4, "read", inputs=[tensor(7)], schema=FRESH),
        call(5, "inside", parent=4, inputs=[tensor(7)], schema=FRESH))
    assert found["read"] == ["inner"] and found["inside"] == []  # what is around it needs that already


def test_arguments_that_are_written_are_read_from_the_schema():
    assert written_arguments(IN_PLACE) == (True, False, False)
    assert written_arguments("x::y(Tensor(a!)[] self, (int, int)[] p=[(1, 2)], *, Tensor(b!) out) -> ()") == (
        True, False, True)
    assert written_arguments("x::y(Tensor(a -> *) self, Tensor? b=None) -> Tensor(a)") == (False, False)
    assert written_arguments("x::y() -> ()") == written_arguments("") == written_arguments("broken(") == ()


USES = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["read", "write in place", "make"])), max_size=4,
                unique_by=lambda use: use[0])


@given(st.lists(USES, max_size=25))
def test_it_is_the_last_writer_of_each_storage(tmp_path_factory, calls):
    nodes = []
    for number, uses in enumerate(calls, 2):
        inputs = [(tensor(storage), kind) for storage, kind in uses if kind != "make"]
        arguments = ", ".join(f"Tensor{'(a!)' if kind == 'write in place' else ''} x{place}"
                              for place, (_, kind) in enumerate(inputs))
        nodes.append(call(number, str(number), inputs=[one for one, _ in inputs], schema=f"x::y({arguments}) -> Tensor",
                          outputs=[tensor(storage) for storage, kind in uses if kind == "make"]))
    expected, last = {}, {}
    for number, uses in enumerate(calls, 2):
        expected[str(number)] = sorted({last[storage] for storage, kind in uses if kind != "make" and storage in last})
        last |= {storage: number for storage, kind in uses if kind != "read"}
    if nodes:
        found = needed(tmp_path_factory.mktemp("traces"), *nodes)
        assert {name: sorted(map(int, names)) for name, names in found.items()} == expected
