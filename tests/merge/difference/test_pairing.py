"""Modules of two runs that belong together."""

from __future__ import annotations

from distprof.merge.difference.pairing import Module, paired


def module(path, kind="Linear", params=6.0, flops=12.0, shapes=("weight [2, 3]",)):
    return Module(path=path, class_name=kind, params=params, flops=flops, shapes=shapes)


def layer(path, **kinds):
    return [module(path, "Layer", 12.0, 24.0, ()), module(f"{path}.up", **kinds), module(f"{path}.down", **kinds)]


def model(layers, number=3, head="head", **kinds):
    return [module("", "Model", 99.0, 200.0, ()), module(layers, "Sequential", 12.0 * number, 24.0 * number, ()),
            *(one for index in range(number) for one in layer(f"{layers}.{index}", **kinds)),
            module(head, "Linear", 3.0, 6.0, ("weight [1, 3]",))]


def test_names_come_first():
    found = paired(model("layers"), model("layers", params=7.0))
    assert found.pairs == {one.path: one.path for one in model("layers")} and not found.moved


def test_a_renamed_container_takes_what_lies_in_it_along():
    found = paired(model("layers"), model("blocks"))
    assert found.moved == {one.path: one.path.replace("layers", "blocks") for one in model("layers")
                           if one.path.startswith("layers")}
    assert found.to_base["blocks.1.up"] == "layers.1.up" and not found.unsure


def test_a_module_that_was_moved_elsewhere_is_found():
    assert paired(model("layers"), model("layers", head="out.head")).moved == {"head": "out.head"}


def test_what_is_not_clear_is_left_apart_and_said():
    found = paired(model("layers"), model("blocks", number=4))
    assert not found.moved
    assert {"layers.0", "layers.2.down"} <= set(found.unsure)


def test_other_shapes_are_other_modules():
    found = paired(model("layers"), model("blocks", shapes=("weight [3, 2]",)))
    assert not [path for path in found.moved if path.endswith(("up", "down"))]


def test_modules_without_parameters_are_not_found_elsewhere():
    plain = {"kind": "ReLU", "params": 0.0, "flops": 0.0, "shapes": ()}
    one, other = (module("", "Model", 9.0, 9.0, ()), module("a", "Part", 5.0, 5.0, ("w [5]",))), [
        module("", "Model", 9.0, 9.0, ()), module("a", "Part", 5.0, 5.0, ("w [5]",))]
    found = paired([*one, module("a.act", **plain)], [*other, module("late.act", **plain)])
    assert not found.moved and found.unsure == ("a.act",)
    assert paired([*one, module("a.act", **plain)], [*other, module("a.relu", **plain)]).moved == {"a.act": "a.relu"}


def test_a_name_that_is_taken_by_another_module_stays_with_it():
    base = [module("", "Model", 9.0, 9.0, ()), module("a", "A"), module("b", "B")]
    new = [module("", "Model", 9.0, 9.0, ()), module("a", "B"), module("b", "A")]
    assert not paired(base, new).moved
