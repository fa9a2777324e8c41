"""MACs of matrix products, and of fused recurrent layers, which consist of them.

Only the stored elements of a sparse matrix count, also for 2:4 sparsity.

Recurrent layers that torch runs as separate matrix products (cells, and the CPU without oneDNN) are counted as these.
"""

from __future__ import annotations

from math import prod
from typing import Any

from distprof.shape_formulas.operator_call import Formula, OperatorCall, numbers_an_element, numbers_in


def is_sparse(tensor: Any) -> bool:
    """Returns whether a tensor has a layout other than strided."""
    return str(tensor.layout) != "torch.strided"


def num_stored(tensor: Any) -> int:
    """Returns the number of elements of a dense matrix, or of stored elements of a sparse one."""
    if not is_sparse(tensor):
        return numbers_in(tensor)
    return int((tensor._values() if tensor.is_sparse else tensor.values()).numel())


def multiply(left: Any, right: Any) -> int:
    """Returns the MACs of [..., m, k] times [..., k, n]: each left element meets n right ones."""
    if left.is_nested or right.is_nested:
        return sum(multiply(*pair) for pair in zip(left.unbind(), right.unbind(), strict=True))
    sparse = [is_sparse(tensor) for tensor in (left, right)]
    if all(sparse):
        return _both_sparse(left, right)
    if sparse[1]:
        return num_stored(right) * int(left.shape[-2])
    return num_stored(left) * int(right.shape[-1])


def _both_sparse(left: Any, right: Any) -> int:
    """Returns the MACs: each stored element in column i of the left meets each stored element in row i of the right."""
    inner = int(left.shape[-1])
    columns = left.to_sparse_coo().coalesce().indices()[1].bincount(minlength=inner)
    rows = right.to_sparse_coo().coalesce().indices()[0].bincount(minlength=inner)
    return int((columns * rows).sum())


def product(left: str, right: str) -> Formula:
    """Returns the formula for the product of two arguments."""
    return lambda call: multiply(call[left], call[right])


def products(left: str, right: str) -> Formula:
    """Returns the formula for the pairwise products of two lists of matrices."""
    return lambda call: sum(multiply(*pair) for pair in zip(call[left], call[right], strict=True))


def into_output(left: str) -> Formula:
    """Returns the formula for [..., k] times a packed or transposed weight: only the output shows n."""
    return lambda call: int(call[left].numel() * call.first_output.shape[-1])


def out_of(left: str, right: str) -> Formula:
    """Returns the formula for [..., n] times [n, k], such as a gradient of a linear layer."""
    return lambda call: int(call[left].numel() * call[right].shape[-1])


def sizes_multiplied(*names: str) -> Formula:
    """Returns the product of the arguments' sizes as a formula: for matrix times vector, dot and outer products."""
    return lambda call: prod(num_stored(call[name]) for name in names)


def linear(call: OperatorCall) -> int:
    """Returns the MACs of [..., k] times the transposed [n, k]; a vector as weight means n = 1."""
    return int(call["input"].numel()) * (call["weight"].shape[0] if call["weight"].dim() > 1 else 1)


def linear_backward(call: OperatorCall) -> int:
    """Returns the MACs of one product per requested gradient of input and weight."""
    wanted = sum(map(bool, call["output_mask"][:2]))
    return int(call["grad_output"].numel() * call["weight"].shape[-1]) * wanted


def matmul(call: OperatorCall) -> int:
    """Returns the MACs for vectors, matrices and batches: each result element is a sum over the shared dimension."""
    left, right = call["self"], call["other"]
    if left.is_nested or right.is_nested:
        return multiply(left, right)
    return int(call.first_output.numel() * left.shape[-1])


def matmul_backward(call: OperatorCall) -> int:
    """Returns the MACs of one product per requested gradient."""
    return multiply(call["self"], call["other"]) * sum(map(bool, call["mask"]))


def grouped_product(call: OperatorCall) -> int:
    """Returns the MACs of a grouped product; if the groups divide n, a row meets only the columns of its group."""
    left, right = call["self"], call["mat2"]
    every = numbers_in(left)
    rows = every // left.shape[0] if left.dim() == 3 and right.dim() == 2 and left.shape[0] else every
    return int(rows * right.shape[-1])


def sampled_product(call: OperatorCall) -> int:
    """Returns k MACs for each stored position of the result; other positions are not computed."""
    return num_stored(call["self"]) * int(call["mat1"].shape[-1])


def reduced_backward(call: OperatorCall) -> int:
    """Returns the MACs of one product per requested gradient."""
    return num_stored(call["self"]) * int(call["grad_out"].shape[-1]) * sum(map(bool, call["output_mask"]))


def two_of_four(call: OperatorCall) -> int:
    """Returns the MACs of [..., k] times a 2:4 sparse weight, stored as [n, k / 2]: each stored element meets every
    row."""
    source = call["input"]
    return int(call["weight"].numel()) * (int(source.numel()) // max(int(source.shape[-1]), 1))


def two_of_four_packed(call: OperatorCall) -> int:
    """Returns the MACs for a 2:4 sparse weight in a cuSPARSELt buffer, which hides its shape: half of k is stored."""
    return int(call.first_output.numel()) * int(call["dense_B"].shape[-2]) // 2


def gathered_product(call: OperatorCall) -> int:
    """Returns the MACs for a left side that is first gathered from all ranks; the outputs show its number of rows."""
    inner = int(call["A"].shape[-1]) * numbers_an_element(call["A"])
    return sum(int(result.numel()) for result in call.output[1]) * inner


def two_products(call: OperatorCall) -> int:
    """Returns the MACs of a b + c d."""
    return multiply(call["a"], call["b"]) + multiply(call["c"], call["d"])


NESTED_MATMUL: dict[str, Formula] = {"aten::matmul": matmul, "aten::matmul_backward": matmul_backward}
"""Composite operators that have kernels only for nested tensors."""

MATMUL: dict[str, Formula] = {
    "aten::mm": product("self", "mat2"),
    "aten::bmm": product("self", "mat2"),
    "aten::_foreach_mm": products("self", "mat2"),
    **{f"aten::{name}": product("mat1", "mat2") for name in ("addmm", "addmm_", "_addmm_activation")},
    **{f"aten::{name}": product("batch1", "batch2") for name in ("baddbmm", "baddbmm_", "addbmm", "addbmm_")},
    "aten::mv": sizes_multiplied("self"),
    "aten::addmv": sizes_multiplied("mat"),
    "aten::addmv_": sizes_multiplied("mat"),
    "aten::dot": sizes_multiplied("self"),
    "aten::vdot": sizes_multiplied("self"),
    "aten::addr": sizes_multiplied("vec1", "vec2"),
    "aten::addr_": sizes_multiplied("vec1", "vec2"),
    "aten::linear": linear,
    "aten::linear_backward": linear_backward,
    "aten::mkldnn_linear": into_output("self"),
    "aten::mkldnn_linear_backward": linear_backward,
    "aten::mkldnn_linear_backward_input": out_of("grad_output", "weight"),
    "aten::mkldnn_linear_backward_weights": out_of("grad_output", "weight"),
    "mkldnn::_linear_pointwise": into_output("X"),
    "mkl::_mkl_linear": into_output("X"),
    "aten::_int_mm": product("self", "mat2"),
    "aten::_scaled_mm": product("self", "mat2"),
    "aten::_scaled_mm_v2": product("self", "mat2"),
    "aten::_grouped_mm": grouped_product,
    "aten::_scaled_grouped_mm": grouped_product,
    "aten::_scaled_grouped_mm_v2": grouped_product,
    "aten::_weight_int4pack_mm": into_output("self"),
    "aten::_weight_int4pack_mm_for_cpu": into_output("self"),
    "aten::_weight_int4pack_mm_with_scales_and_zeros": into_output("self"),
    "aten::_weight_int8pack_mm": into_output("self"),
    "aten::_dyn_quant_matmul_4bit": into_output("inp"),
    "aten::_mixed_dtypes_linear": into_output("input"),
    "aten::_sparse_mm": product("sparse", "dense"),
    "aten::_sparse_addmm": product("mat1", "mat2"),
    "aten::_sparse_sparse_matmul": product("self", "other"),
    "aten::_sparse_mm_reduce_impl": product("self", "other"),
    "aten::_sparse_mm_reduce_impl_backward": reduced_backward,
    "aten::hspmm": product("mat1", "mat2"),
    "aten::sspaddmm": product("mat1", "mat2"),
    "aten::sparse_sampled_addmm": sampled_product,
    "aten::_sparse_semi_structured_mm": product("mat1", "mat2"),
    "aten::_sparse_semi_structured_addmm": product("mat1", "mat2"),
    "aten::_sparse_semi_structured_linear": two_of_four,
    "aten::_cslt_sparse_mm": two_of_four_packed,
    "inductor::_mm_plus_mm": two_products,
    "symm_mem::fused_all_gather_matmul": gathered_product,
    "symm_mem::fused_all_gather_scaled_matmul": gathered_product,
    "symm_mem::fused_matmul_reduce_scatter": product("A", "B"),
    "symm_mem::fused_scaled_matmul_reduce_scatter": product("A", "B"),
    "symm_mem::_async_input_mm": product("a", "b"),
}


def layers(*weights: str, products: int = 1) -> Formula:
    """Returns the formula for recurrent layers: `products` per step with each matrix in these arguments, for all layers
    and directions; biases do not count."""

    def macs(call: OperatorCall) -> int:
        sizes = call.arguments.get("batch_sizes")  # given for packed sequences, which have no padding
        steps = int(sum(sizes) if sizes else call["input"].shape[0] * call["input"].shape[1])
        given = (call[name] for name in weights)
        matrices = (weight for one in given for weight in (one if isinstance(one, (list, tuple)) else [one])
                    if weight.dim() == 2)
        return products * steps * sum(int(weight.numel()) for weight in matrices)

    return macs


def cudnn_backward(call: OperatorCall) -> int:
    """Returns the MACs of the gradients of data and, if requested, weights."""
    return layers("weight")(call) * (1 + bool(call["output_mask"][3]))


RECURRENT: dict[str, Formula] = {
    "aten::mkldnn_rnn_layer": layers("weight0", "weight1"),
    "aten::mkldnn_rnn_layer_backward": layers("weight1", "weight2", products=2),
    "aten::_cudnn_rnn": layers("weight"),
    "aten::_cudnn_rnn_backward": cudnn_backward,
    "aten::miopen_rnn": layers("weight"),
    "aten::miopen_rnn_backward": cudnn_backward,
    "aten::_lstm_mps": layers("params"),
    "aten::lstm_mps_backward": layers("params", products=2),
}
