"""Further names of operators that are no contractions, of whom torch itself says so, by tags and schemas.

For those who have no torch; `formulas/operator_kinds.py` asks torch. The names are as in `kind_names.py`.
"""

from __future__ import annotations

from distprof.shape_formulas.kind_names import KIND_OF, bare_names
from distprof.shape_formulas.operator_cost import OperatorKind

_NAMES: dict[OperatorKind, str] = {
    "elementwise": """__ixor_ __xor_ abs acos acosh addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and
        bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp_max clamp_min
        clip conj_physical copysign cos cosh deg2rad digamma eq erf erfc erfinv exp exp2 expm1 float_power
        floor fmax fmin fmod frac frexp gcd ge gt heaviside hypot i0 igamma igammac isfinite isneginf
        isposinf lcm ldexp le lerp lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not
        logical_or logical_xor lt maximum minimum mvlgamma nan_to_num ne neg nextafter polygamma rad2deg
        reciprocal remainder round sgn sign signbit sin sinc sinh special_airy_ai special_bessel_j0
        special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
        special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
        special_entr special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e
        special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr
        special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
        special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta sqrt
        square tan true_divide trunc xlogy""",
    "copy": """_conj_copy _fw_primal_copy _indices_copy _make_dual_copy _neg_view_copy _nested_get_values_copy
        _nested_view_from_buffer_copy _nested_view_from_jagged_copy _reshape_alias_copy
        _sparse_broadcast_to_copy _values_copy _wrapped_linear_prepack alias_copy as_strided_copy
        ccol_indices_copy col_indices_copy crow_indices_copy detach_copy diagonal_copy indices_copy
        lift_fresh_copy permute_copy row_indices_copy select_copy slice_copy squeeze_copy t_copy
        transpose_copy unfold_copy unsqueeze_copy values_copy view_as_complex_copy view_as_real_copy""",
    "view": """_autocast_to_full_precision _autocast_to_reduced_precision _conj _neg_view _nested_get_values
        _nested_view_from_jagged _sparse_broadcast_to adjoint as_strided broadcast_to chunk conj dsplit
        expand expand_as flatten hsplit imag linalg_diagonal mH mT matrix_H moveaxis movedim narrow numpy_T
        permute positive ravel real reshape reshape_as slice_inverse split split_with_sizes squeeze swapaxes
        swapdims t tensor_split transpose unflatten unsqueeze view view_as view_as_complex view_as_real
        vsplit""",
}
TAGGED: dict[str, OperatorKind] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""Bare name -> kind."""
NO_WORK = ("prim::", "profiler::", "c10d::", "_c10d_functional::", "torch::autograd::AccumulateGrad",
           "record_param_comms")
"""Begins of names of queries, labels, communication, and of the sum of gradients."""


def kind_by_name(op: str) -> OperatorKind | None:
    """The kind of an operator that is known to be no contraction; None for others."""
    if op == "detach" or op.startswith(NO_WORK):
        return "view"
    if not op.startswith("aten::"):
        return None
    names = bare_names(op)
    if names[0].startswith("_foreach_") and names[0] != "_foreach_mm":
        return "optimizer"
    return next((known[name] for known in (KIND_OF, TAGGED) for name in names[:2] if name in known), KIND_OF.get(
        names[2]))
