"""Categories of operators and kernels: names as libraries write them, and sums beside those of each kernel."""

import json

import pytest

from distprof.merge.operators.categories import CATEGORIES, category_of
from distprof.merge.operators.timeline.rank_timeline import TYPES
from support.jobs import called
from support.kineto_files import DLRM, needs_shared

KERNELS = [
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", None, "matrix product"),
    ("ampere_sgemm_32x128_nt", None, "matrix product"),
    ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN", None, "matrix product"),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(...)", "aten::cudnn_convolution",
     "convolution"),
    ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(...)", None, "convolution"),
    ("batched_transpose_16x32_half", "aten::miopen_convolution", "convolution"),
    ("batched_transpose_16x32_half", None, "copy"),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", None, "convolution"),
    ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>(...)", None, "norm"),
    ("triton_per_fused_add_native_layer_norm_view_6", "triton_per_fused_add_native_layer_norm_view_6", "norm"),
    ("triton_poi_fused_gelu_view_7", "triton_poi_fused_gelu_view_7", "elementwise"),
    ("triton_poi_fused__to_copy_4", None, "copy"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26", None, "attention"),
    ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(...)", "aten::_cudnn_attention_backward",
     "attention"),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128", None, "attention"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>", "aten::_foreach_addcdiv_", "optimizer"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "aten::add_",
     "elementwise"),
    ("void at::native::reduce_kernel<512, 1, ...>", "aten::mean", "reduction"),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<float>", None, "softmax"),
    ("void at::native::(anonymous namespace)::compute_grad_weight<float, long>", "aten::embedding_dense_backward",
     "embedding"),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(...)", "_C::rotary_embedding", "elementwise"),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "record_param_comms", "communication"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)",
     "symm_mem::multimem_all_reduce_", "communication"),
    ("triton_poi_fused_all_reduce_0", None, "elementwise"),  # it copies what will be reduced
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", None, "other"),
    ("void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, "
     "at::native::templates::cuda::normal_and_transform<float>>(...)", None, "random"),
    ("void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(...)",
     "aten::normal_", "random"),
    ("__amd_rocclr_fillBufferAligned", None, "copy"),
    ("l2_normalization_kernel", None, "norm"),
]


@pytest.mark.parametrize(("name", "launched_by", "category"), KERNELS)
def test_kernels_of_libraries(name, launched_by, category):
    assert category_of(name, "kernel", launched_by) == category


@pytest.mark.parametrize(("name", "category"), [
    ("aten::addmm", "matrix product"), ("aten::_scaled_dot_product_flash_attention", "attention"),
    ("aten::convolution_backward", "convolution"), ("aten::native_batch_norm", "norm"), ("aten::_to_copy", "copy"),
    ("aten::gelu_backward", "elementwise"), ("c10d::allreduce_", "communication"), ("my::own", "other"),
    ("aten::linalg_vector_norm", "norm"), ("aten::mul_", "elementwise"), ("aten::_foreach_lerp_", "optimizer"),
    ("aten::normal_", "random"), ("aten::randn", "random"), ("aten::normalize", "norm")])
def test_operators(name, category):
    assert category_of(name, "operator", None) == category


def test_each_is_a_known_one():
    assert {category_of(name, kind, by) for name, by, _ in KERNELS for kind in TYPES} <= set(CATEGORIES)
    assert category_of("Memcpy HtoD (Pinned -> Device)", "memcpy", "aten::copy_") == "copy"
    assert category_of("Memset (Device)", "memset", None) == "fill"


@needs_shared
@pytest.mark.parametrize("name", ["a100_nccl_data", "mi300_resnet_act_checkpoint"])
def test_they_add_up_to_the_kernels_of_real_gpus(name):
    path = DLRM.parent / "gpu" / f"{name}.json.gz"
    found = json.loads(called("ops", "--type", "kernel", "--by", "category", "--json", path).stdout)["ops"]
    by_kernel = json.loads(called("ops", "--type", "kernel", "--by", "op", "--json", path).stdout)["ops"]
    assert sum(one["device_ns"] for one in found) == sum(one["device_ns"] for one in by_kernel)
    assert sum(one["calls"] for one in found) == sum(one["calls"] for one in by_kernel)
    shares = {one["category"]: one["share"] for one in found}
    assert shares.get("other", 0) < 0.01 and shares["communication"] > 0.2
    nccl = sum(one["device_ns"] for one in by_kernel if one["op"].startswith("nccl"))
    assert next(one["device_ns"] for one in found if one["category"] == "communication") == nccl
