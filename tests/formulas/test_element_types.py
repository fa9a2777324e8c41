"""Products of complex numbers and of numbers packed in bytes. Truth is the definition: real products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import distprof
from distprof.shape_formulas.traced_cost import traced_cost

COMPLEX = torch.complex64


def as_real_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """(a + bi)(c + di), with four real products."""
    real = left.real @ right.real - left.imag @ right.imag
    return torch.complex(real, left.real @ right.imag + left.imag @ right.real)


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.integers(1, 5)] * 3), st.sampled_from([(), (2,), (3, 2)]))
def test_a_complex_product_is_four_real_ones(sizes, batch):
    rows, inner, columns = sizes
    left, right = torch.randn(*batch, rows, inner, dtype=COMPLEX), torch.randn(*batch, inner, columns, dtype=COMPLEX)
    torch.testing.assert_close(as_real_products(left, right), left @ right)
    expected = distprof.count(as_real_products, left, right).flops
    assert distprof.count(lambda: left @ right).flops == expected
    with torch.inference_mode():
        assert distprof.count(lambda: left @ right).flops == expected


@pytest.mark.parametrize("call", [
    lambda x: x @ x, lambda x: torch.addmm(x, x, x), lambda x: torch.mv(x, x[0]), lambda x: torch.dot(x[0], x[0]),
    lambda x: torch.vdot(x[0], x[0]), lambda x: torch.bmm(x[None], x[None]), lambda x: torch.outer(x[0], x[0]).addr(
        x[0], x[1]), lambda x: torch.einsum("ij,jk->ik", x, x), lambda x: F.linear(x, x)])
def test_every_product_has_four_times_the_macs_of_a_real_one(call):
    real = torch.randn(4, 4)
    assert distprof.count(call, real.to(COMPLEX)).macs == 4 * distprof.count(call, real).macs > 0


@pytest.mark.parametrize("grad", ["on", "off", "inference"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("make", [
    lambda dtype, bias: nn.Conv1d(2, 4, 3, dtype=dtype, bias=bias),
    lambda dtype, bias: nn.Conv2d(4, 2, (3, 1), stride=2, padding=1, groups=2, dtype=dtype, bias=bias),
    lambda dtype, bias: nn.Conv2d(3, 5, 1, dtype=dtype, bias=bias),
    lambda dtype, bias: nn.ConvTranspose2d(2, 4, 3, dtype=dtype, bias=bias)])
def test_a_convolution_too_though_torch_runs_three(make, bias, grad):
    real, whole = make(torch.float32, bias), make(COMPLEX, bias)
    x = torch.randn(2, real.in_channels, *[7] * (real.weight.dim() - 2))
    mode = {"on": torch.enable_grad, "off": torch.no_grad, "inference": torch.inference_mode}[grad]
    with mode():
        expected, counts = (distprof.count(model, values, backward=grad == "on") for model, values in (
            (real, x.requires_grad_(grad == "on")), (whole, x.detach().to(COMPLEX).requires_grad_(grad == "on"))))
    assert (counts.forward_flops, counts.backward_flops) == (4 * expected.forward_flops, 4 * expected.backward_flops)
    assert {op.note for op in counts.ops if op.macs} <= {
        "", "one of three real products of a complex one, which has 8 FLOPs per multiply-accumulate"}


def test_every_second_number_of_a_real_kernel_is_real():
    kernel = torch.randn(2, 2, 3, 6)
    x = torch.randn(1, 2, 5, 5)
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            assert distprof.count(lambda: F.conv2d(x, kernel[..., ::2])).macs == distprof.count(
                lambda: F.conv2d(x, kernel[..., ::2].clone())).macs


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no packed four-bit numbers")
class TestPacked:
    """Shapes as on a GPU of NVIDIA; a CPU has no kernels for them."""

    M, K, N, GROUPS = 32, 128, 32, 2

    def half(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8, device="meta").view(torch.float4_e2m1fn_x2)

    def scales(self) -> torch.Tensor:
        return torch.empty(1024, dtype=torch.float8_e4m3fn, device="meta")

    def test_a_product(self):
        left, right = self.half(self.M, self.K // 2), self.half(self.N, self.K // 2).t()
        counts = distprof.count(lambda: torch._scaled_mm(left, right, self.scales(), self.scales(),
                                                         out_dtype=torch.bfloat16))
        assert counts.flops == 2 * self.M * self.K * self.N == 262144
        assert counts.total("read_bytes") == (self.M + self.N) * self.K // 2 + 2 * 1024

    def test_by_the_function(self):
        if not hasattr(F, "scaled_mm"):
            pytest.skip("this torch has no F.scaled_mm")
        left, right = self.half(self.M, self.K // 2), self.half(self.N, self.K // 2).t()
        blocks, order = F.ScalingType.BlockWise1x16, F.SwizzleType.SWIZZLE_32_4_4
        counts = distprof.count(lambda: F.scaled_mm(left, right, self.scales(), blocks, self.scales(), blocks,
                                                    swizzle_a=order, swizzle_b=order, output_dtype=torch.bfloat16))
        assert counts.flops == 262144

    def test_in_groups(self):
        from distprof import formulas

        left = self.half(self.M, self.K // 2)
        right = self.half(self.GROUPS, self.N, self.K // 2).transpose(1, 2)
        out, ends = torch.empty(self.M, self.N, device="meta"), torch.tensor([12, self.M])
        cost = formulas.cost(torch.ops.aten._scaled_grouped_mm.default,
                             (left, right, self.scales(), self.scales(), ends), {}, out)
        assert 2 * cost.macs == 262144

    def test_in_a_timeline(self):
        one = "c10::Float4_e2m1fn_x2"
        found = traced_cost("aten::_scaled_mm", [[32, 64], [64, 32], [1024], [1024]],
                            [one, one, "unsigned char", "unsigned char"], [[64, 1], [1, 64], [1], [1]], [""] * 4)
        assert found.flops == 262144


def test_complex_numbers_in_a_timeline():
    found = traced_cost("aten::mm", [[3, 4], [4, 5]], ["c10::complex<float>"] * 2, [[4, 1], [5, 1]], ["", ""])
    assert found.flops == 8 * 3 * 4 * 5
