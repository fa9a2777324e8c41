"""MACs of matrix products."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from distprof.formulas.call import Call

Formula = Callable[[Call], int]


def product(left: str, right: str) -> Formula:
    """[..., m, k] times [..., k, n]: each element of the left meets n of the right."""
    return lambda call: int(call[left].numel() * call[right].shape[-1])


def into_output(left: str) -> Formula:
    """[..., k] times a packed or transposed weight: n is only known from the output."""
    return lambda call: int(call[left].numel() * call.first_output.shape[-1])


def elements(*names: str) -> Formula:
    """The product of the numbers of elements: matrix times vector, dot, outer product."""
    return lambda call: prod(call[name].numel() for name in names)


def linear(call: Call) -> int:
    """[..., k] times [n, k] transposed; a vector as weight is n = 1."""
    return int(call["input"].numel()) * (call["weight"].shape[0] if call["weight"].dim() > 1 else 1)


def linear_backward(call: Call) -> int:
    """One product for each of the wanted gradients of input and weight."""
    wanted = sum(map(bool, call["output_mask"][:2]))
    return int(call["grad_output"].numel() * call["weight"].shape[-1]) * wanted


def grouped(call: Call) -> int:
    """Several products side by side; where the groups are along n, each row meets only its own group's columns."""
    left, right = call["self"], call["mat2"]
    rows = left.numel() // left.shape[0] if left.dim() == 3 and right.dim() == 2 and left.shape[0] else left.numel()
    return int(rows * right.shape[-1])


def trilinear(call: Call) -> int:
    """The index space of the three factors, summed dimensions included."""
    shapes = []
    for name, expand in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        shape = list(call[name].shape)
        for dim in sorted(call[expand]):
            shape.insert(dim, 1)
        shapes.append(shape)
    return prod(max(sizes) if min(sizes) else 0 for sizes in zip(*shapes, strict=True))


def sparse(left: str, right: str) -> Formula:
    """Each stored element of the sparse matrix meets n of the dense one."""
    return lambda call: int(call[left]._nnz() * call[right].shape[-1])


MATMUL: dict[str, Formula] = {
    "aten::mm": product("self", "mat2"),
    "aten::bmm": product("self", "mat2"),
    "aten::addmm": product("mat1", "mat2"),
    "aten::_addmm_activation": product("mat1", "mat2"),
    "aten::baddbmm": product("batch1", "batch2"),
    "aten::addbmm": product("batch1", "batch2"),
    "aten::mv": elements("self"),
    "aten::addmv": elements("mat"),
    "aten::dot": elements("self"),
    "aten::vdot": elements("self"),
    "aten::addr": elements("vec1", "vec2"),
    "aten::linear": linear,
    "aten::linear_backward": linear_backward,
    "aten::mkldnn_linear": into_output("self"),
    "mkldnn::_linear_pointwise": into_output("X"),
    "aten::_trilinear": trilinear,
    "aten::_int_mm": product("self", "mat2"),
    "aten::_scaled_mm": product("self", "mat2"),
    "aten::_scaled_mm_v2": product("self", "mat2"),
    "aten::_grouped_mm": grouped,
    "aten::_scaled_grouped_mm": grouped,
    "aten::_weight_int4pack_mm": into_output("self"),
    "aten::_weight_int4pack_mm_for_cpu": into_output("self"),
    "aten::_weight_int8pack_mm": into_output("self"),
    "aten::_dyn_quant_matmul_4bit": into_output("inp"),
    "aten::_sparse_mm": sparse("sparse", "dense"),
    "aten::_sparse_addmm": sparse("mat1", "mat2"),
}
