"""Rough FLOPs of FFTs, factorisations and distances: the leading term of the textbook algorithm; never in totals.

Sources: FFT 5 n log2 n, half of it for real data (convention of the FFTW project); dense factorisations and the
usual constants of iterative ones (eigenvalues, singular values) from Golub & Van Loan, Matrix Computations, 4th ed.
Complex numbers count like real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod

from distprof.shape_formulas.operator_call import OperatorCall

Estimate = Callable[[OperatorCall], float]


def _sizes(call: OperatorCall, name: str) -> tuple[int, int, int]:
    """Returns the numbers of matrices, rows and columns."""
    shape = call[name].shape
    return prod(shape[:-2]), int(shape[-2]), int(shape[-1])


def fourier(factor: float, *, sizes_of_output: bool = False) -> Estimate:
    """Returns the estimate `factor` n log2 n per transform; n is the product of the transformed sizes."""

    def estimate(call: OperatorCall) -> float:
        tensor = call.first_output if sizes_of_output else call["self"]
        length = prod(int(tensor.shape[dim]) for dim in call["dim"])
        return factor * int(tensor.numel()) * log2(length) if length > 1 else 0

    return estimate


def square_matrix(name: str, factor: float) -> Estimate:
    """Returns the estimate `factor` n^3 per n x n matrix."""

    def estimate(call: OperatorCall) -> float:
        batch, _, size = _sizes(call, name)
        return factor * batch * size**3

    return estimate


def rectangular_matrix(name: str, long: float, short: float) -> Estimate:
    """Returns the estimate `long` m n^2 - `short` n^3 per m x n matrix; n is the smaller size."""

    def estimate(call: OperatorCall) -> float:
        batch, rows, columns = _sizes(call, name)
        large, small = max(rows, columns), min(rows, columns)
        return batch * (long * large * small**2 - short * small**3)

    return estimate


def linear_solve(matrix: str, right: str, factorise: float, substitute: float) -> Estimate:
    """Returns the estimate `factorise` n^3 per matrix and `substitute` n^2 per right-hand side."""

    def estimate(call: OperatorCall) -> float:
        batch, _, size = _sizes(call, matrix)
        return factorise * batch * size**3 + substitute * size * int(call[right].numel())

    return estimate


def distances(points: str, pairs: str | None = None) -> Estimate:
    """Returns the estimate 3 (difference, power, sum) per coordinate of each pair; `pairs`, by default the output, has
    an element per pair."""

    def estimate(call: OperatorCall) -> float:
        return 3 * int((call.first_output if pairs is None else call[pairs]).numel()) * int(call[points].shape[-1])

    return estimate


def apply_reflectors(call: OperatorCall) -> float:
    """Returns 4 m n k for k reflectors of length m applied to n columns."""
    return 4 * int(call["input3"].numel()) * int(call["input2"].shape[-1])


ESTIMATES: dict[str, Estimate] = {
    "aten::_fft_c2c": fourier(5),
    "aten::_fft_r2c": fourier(2.5),
    "aten::_fft_c2r": fourier(2.5, sizes_of_output=True),
    "aten::_cdist_forward": distances("x1"),
    "aten::_cdist_backward": distances("x1", "cdist"),
    "aten::_pdist_forward": distances("self"),
    "aten::_pdist_backward": distances("self", "pdist"),
    "aten::linalg_lu_factor_ex": rectangular_matrix("A", 1, 1 / 3),
    "aten::linalg_lu": rectangular_matrix("A", 1, 1 / 3),
    "aten::_lu_with_info": rectangular_matrix("self", 1, 1 / 3),
    "aten::linalg_lu_solve": linear_solve("LU", "B", 0, 2),
    "aten::linalg_cholesky_ex": square_matrix("self", 1 / 3),
    "aten::cholesky": square_matrix("self", 1 / 3),
    "aten::cholesky_solve": linear_solve("input2", "self", 0, 2),
    "aten::_cholesky_solve_helper": linear_solve("A", "self", 0, 2),
    "aten::cholesky_inverse": square_matrix("self", 2 / 3),
    "aten::linalg_ldl_factor_ex": square_matrix("self", 1 / 3),
    "aten::linalg_ldl_solve": linear_solve("LD", "B", 0, 2),
    "aten::linalg_qr": rectangular_matrix("A", 4, 4 / 3),
    "aten::geqrf": rectangular_matrix("self", 2, 2 / 3),
    "aten::linalg_householder_product": rectangular_matrix("input", 2, 2 / 3),
    "aten::ormqr": apply_reflectors,
    "aten::linalg_inv_ex": square_matrix("A", 2),
    "aten::_linalg_solve_ex": linear_solve("A", "B", 2 / 3, 2),
    "aten::linalg_solve_triangular": linear_solve("self", "B", 0, 1),
    "aten::triangular_solve": linear_solve("A", "self", 0, 1),
    "aten::linalg_lstsq": rectangular_matrix("self", 2, 2 / 3),
    "aten::_linalg_det": square_matrix("A", 2 / 3),
    "aten::_linalg_slogdet": square_matrix("A", 2 / 3),
    "aten::_linalg_eigh": square_matrix("A", 9),
    "aten::linalg_eig": square_matrix("self", 25),
    "aten::_linalg_eigvals": square_matrix("self", 10),
    "aten::linalg_eigvals": square_matrix("self", 10),
    "aten::_linalg_svd": rectangular_matrix("A", 6, -20),
}
