"""Looks up operators of torch and of libraries by name, and computes costs of calls without making them.

Libraries need not be installed, and torch may be older or newer: missing operators are defined from the schemas below,
without kernels.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest
import torch

from distprof import formulas
from distprof.counting.invocation import has_grouped_product_on_cpu
from distprof.shape_formulas.operator_call import Cost

SCHEMAS = {
    # Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py
    "flash_attn": (
        "_flash_attn_forward(Tensor q, Tensor k, Tensor v, float dropout_p, float softmax_scale, bool causal, "
        "SymInt window_size_left, SymInt window_size_right, float softcap, Tensor? alibi_slopes, bool return_softmax) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        "_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
        "SymInt max_seqlen_q, SymInt max_seqlen_k, float dropout_p, float softmax_scale, bool causal, "
        "SymInt window_size_left=-1, SymInt window_size_right=-1, float softcap=0., Tensor? alibi_slopes=None, "
        "bool return_softmax=False, Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, "
        "bool zero_tensors=False, SymInt num_splits=0) -> (Tensor, Tensor, Tensor, Tensor)",
        "_flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
        "Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv, float dropout_p, float softmax_scale, bool causal, "
        "SymInt window_size_left, SymInt window_size_right, float softcap, Tensor? alibi_slopes, bool deterministic, "
        "Tensor? rng_state=None) -> Tensor",
        "_flash_attn_varlen_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
        "Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
        "SymInt max_seqlen_q, SymInt max_seqlen_k, float dropout_p, float softmax_scale, bool causal, "
        "SymInt window_size_left, SymInt window_size_right, float softcap, Tensor? alibi_slopes, bool deterministic, "
        "Tensor? rng_state=None, bool zero_tensors=False) -> Tensor"),
    # the same, hopper/flash_api.cpp and hopper/flash_attn_interface.py, without irrelevant arguments
    "flash_attn_3": (
        "fwd(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
        "Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, bool is_causal=False, "
        "int window_size_left=-1, int window_size_right=-1) -> (Tensor, Tensor, Tensor, Tensor)",
        "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor? cu_seqlens_q=None, "
        "Tensor? cu_seqlens_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, bool is_causal=False, "
        "int window_size_left=-1, int window_size_right=-1) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        "_flash_attn_forward(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
        "Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, bool causal=False, "
        "int window_size_left=-1, int window_size_right=-1) -> (Tensor, Tensor)",
        "_flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
        "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? sequed_k=None, int? max_seqlen_q=None, "
        "int? max_seqlen_k=None, bool is_causal=False, int window_size_left=-1, int window_size_right=-1) -> Tensor"),
    # facebookresearch/xformers, csrc/attention/attention.cpp
    "xformers": (
        "efficient_attention_forward_ck(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, Tensor? seqstart_q, "
        "Tensor? seqstart_k, int? max_seqlen_q, float dropout_p, bool compute_logsumexp, int custom_mask_type, "
        "float? scale, Tensor? seqlen_k, int? window_size, Tensor? block_tables, int? page_size) "
        "-> (Tensor, Tensor?, int, int)",
        "efficient_attention_backward_ck(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor? attn_bias, "
        "Tensor? seqstart_q, Tensor? seqstart_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? seqlen_k, "
        "Tensor logsumexp, Tensor output, float dropout_p, int rng_seed, int rng_offset, int custom_mask_type, "
        "float? scale, int? window_size) -> (Tensor, Tensor, Tensor, Tensor)"),
    # bitsandbytes-foundation/bitsandbytes, bitsandbytes/_ops.py
    "bitsandbytes": (
        "gemm_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, Tensor? bias=None, "
        "Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None) -> Tensor",
        "gemv_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, int blocksize) -> Tensor",
        "int8_linear_matmul(Tensor A, Tensor B) -> Tensor",
        "int8_scaled_mm(Tensor A, Tensor B, Tensor row_stats, Tensor col_stats, Tensor? bias=None, "
        "ScalarType? dtype=None) -> Tensor",
        "int8_mixed_scaled_mm(Tensor A, Tensor CA, Tensor CB, Tensor SCA, Tensor SCB, Tensor? outlier_cols=None, "
        "Tensor? bias=None) -> (Tensor, Tensor?)",
        "quantize_4bit(Tensor A, int blocksize, str quant_type, ScalarType quant_storage) -> (Tensor, Tensor)",
        "dequantize_4bit(Tensor A, Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype) "
        "-> Tensor",
        "quantize_blockwise(Tensor A, Tensor code, int blocksize) -> (Tensor, Tensor)",
        "dequantize_blockwise(Tensor A, Tensor absmax, Tensor code, int blocksize, ScalarType dtype) -> Tensor",
        "int8_vectorwise_quant(Tensor A, float threshold=0.0) -> (Tensor, Tensor, Tensor?)",
        "int8_vectorwise_dequant(Tensor A, Tensor stats) -> Tensor",
        "int8_double_quant(Tensor A, float threshold=0.0) -> (Tensor, Tensor, Tensor, Tensor, Tensor?)",
        "int8_mm_dequant(Tensor A, Tensor row_stats, Tensor col_stats, ScalarType? dtype=None, Tensor? bias=None) "
        "-> Tensor",
        "optimizer_update_32bit(str optimizer_name, Tensor(a0!) g, Tensor(a1!) p, Tensor(a2!) state1, "
        "Tensor(a3!)? state2, Tensor(a4!)? unorm_vec, float max_unorm, float param_norm, float beta1, float beta2, "
        "float beta3, float alpha, float eps, float weight_decay, int step, float lr, float gnorm_scale, "
        "bool skip_zeros=False) -> ()",
        "optimizer_update_8bit_blockwise(str optimizer_name, Tensor(a0!) g, Tensor(a1!) p, Tensor(a2!) state1, "
        "Tensor(a3!)? state2, float beta1, float beta2, float beta3, float alpha, float eps, int step, float lr, "
        "Tensor(a4!) qmap1, Tensor(a5!)? qmap2, Tensor(a6!) absmax1, Tensor(a7!)? absmax2, float weight_decay, "
        "float gnorm_scale, bool skip_zeros=False) -> ()"),
    # pytorch/vision, csrc/ops/deform_conv2d.cpp
    "torchvision": (
        "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, int stride_h, "
        "int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, int offset_groups, "
        "bool use_mask) -> Tensor",
        "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
        "int stride_h, int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, "
        "int offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"),
}
OTHER_VERSIONS = {
    "aten": (
        "_cudnn_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
        "Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, Tensor attn_bias, Tensor cum_seq_q, "
        "Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, *, float? scale=None) "
        "-> (Tensor, Tensor, Tensor)",
        "_flash_attention_forward_no_dropout_inplace(Tensor(a!) out, Tensor query, Tensor key, Tensor value, "
        "Tensor? cum_seq_q, Tensor? cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, "
        "bool return_debug_mask) -> Tensor",
        "_foreach_mm(Tensor[] self, Tensor[] mat2) -> Tensor[]",
        "_scaled_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] swizzle_a, Tensor[] scale_b, "
        "int[] recipe_b, int[] swizzle_b, Tensor? bias, ScalarType? out_dtype, int[] contraction_dim=[], "
        "bool use_fast_accum=False) -> Tensor",
        "_scaled_grouped_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] swizzle_a, "
        "Tensor[] scale_b, int[] recipe_b, int[] swizzle_b, Tensor? offs=None, Tensor? bias=None, "
        "ScalarType? out_dtype=None, int[] contraction_dim=[], bool use_fast_accum=False) -> Tensor",
        "cholesky(Tensor self, bool upper=False) -> Tensor"),
    "torch_attn": (
        "_varlen_attn(Tensor query, Tensor key, Tensor value, Tensor cu_seq_q, Tensor? cu_seq_k, SymInt max_q, "
        "SymInt max_k, bool is_causal=False, float? scale=None, SymInt[]? window_size=None, bool enable_gqa=False, "
        "Tensor? seqused_k=None, Tensor? block_table=None, SymInt? num_splits=None) -> (Tensor, Tensor, Tensor)",
        "_varlen_attn_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
        "Tensor cu_seq_q, Tensor cu_seq_k, SymInt max_q, SymInt max_k, bool is_causal, Tensor rng_state, "
        "float? scale=None, SymInt[]? window_size=None) -> (Tensor, Tensor, Tensor)",
        "_varlen_attn_out(Tensor(a0!) out, Tensor query, Tensor key, Tensor value, Tensor cu_seq_q, Tensor? cu_seq_k, "
        "SymInt max_q, SymInt max_k, bool is_causal=False, float? scale=None, SymInt[]? window_size=None, "
        "bool enable_gqa=False, Tensor? seqused_k=None, Tensor? block_table=None, SymInt? num_splits=None) -> Tensor"),
}
"""Operators of torch that have a formula but are not in every version."""
NOT_IN_EVERY_TORCH = frozenset({
    "_foreach_clone", "_foreach_powsum", "_philox_key_split", "_philox_normal", "_philox_uniform",
    "_upsample_lanczos2d_aa", "_use_miopen_ctc_loss", "all_gather_copy_in", "chunk_cat", "chunk_cat_mixed_dtype",
    "hash_tensor", "linalg__powsum", "miopen_ctc_loss", "numel",
})
"""Further operators of known kind that are not in every version."""
needs_grouped_product = pytest.mark.skipif(
    not has_grouped_product_on_cpu(), reason="this torch has no grouped matrix product for the CPU")
LOADED_LATER = ("torch_attn", "symm_mem", "inductor", "sparse")
"""Namespaces of torch that are defined only when certain modules are imported."""

_libraries = []


@cache
def define_libraries() -> None:
    """Defines missing operators of libraries and of other versions of torch, without kernels."""
    import torch.distributed._symmetric_memory

    with suppress(ImportError):  # some versions of torch do not have the module
        import torch.nn.attention.varlen
    for space, schemas in (*SCHEMAS.items(), *OTHER_VERSIONS.items()):
        library = torch.library.Library(space, "FRAGMENT")
        for schema in schemas:
            if not hasattr(getattr(torch.ops, space), schema.partition("(")[0]):
                library.define(schema)
        _libraries.append(library)


def operator(name: str):
    """Returns the first overload of an operator that returns a new tensor, by its qualified name."""
    define_libraries()
    space, bare = name.split("::")
    if space == "higher_order":
        return getattr(torch.ops.higher_order, bare)
    packet = getattr(getattr(torch.ops, space), bare)
    overloads = [overload for overload in packet.overloads() if not overload.endswith(("out", "output"))]
    return getattr(packet, (overloads or packet.overloads())[0])


def takes(name: str, argument: str) -> bool:
    """Returns whether the operator has this argument in this version of torch."""
    return any(known.name == argument for known in operator(name)._schema.arguments)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, device="meta", dtype=dtype)


def cost(name: str, output: object = None, /, **given: object) -> Cost:
    """Returns the cost of a call without making it; all given names must be in the schema of the operator."""
    func = operator(name)
    known = {argument.name for argument in func._schema.arguments}
    assert set(given) <= known, (name, set(given) - known)
    return formulas.cost(func, (), given, output)


@cache
def meta_takes_grouped_floats() -> bool:
    """Returns whether grouped products run on meta in float32, as from torch 2.15 on."""
    try:
        torch._grouped_mm(meta(6, 8), meta(3, 8, 16), offs=meta(3, dtype=torch.int32))
    except RuntimeError:
        return False
    return True
