"""FLOPs of operators whose work is only roughly known: the leading term of the textbook algorithm.

One call comes in, FLOPs go out; they are kept out of every total. Sources: FFT 5 n log2 n, half of it for real data
(the FFTW project's convention); dense factorisations Golub & Van Loan, Matrix Computations, 4th ed.; iterative ones
(eigenvalues, singular values) their usual constants from there. Complex numbers count like real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod

from distprof.formulas.call import Call

Estimate = Callable[[Call], float]


def _sizes(call: Call, name: str) -> tuple[int, int, int]:
    """Number of matrices, rows, columns."""
    shape = call[name].shape
    return prod(shape[:-2]), int(shape[-2]), int(shape[-1])


def fourier(factor: float, *, sizes_of_output: bool = False) -> Estimate:
    """`factor` n log2 n for each transform of n = the product of the transformed sizes."""

    def estimate(call: Call) -> float:
        tensor = call.first_output if sizes_of_output else call["self"]
        length = prod(int(tensor.shape[dim]) for dim in call["dim"])
        return factor * int(tensor.numel()) * log2(length) if length > 1 else 0

    return estimate


def square(name: str, factor: float) -> Estimate:
    """`factor` n^3 for each n x n matrix."""

    def estimate(call: Call) -> float:
        batch, _, size = _sizes(call, name)
        return factor * batch * size**3

    return estimate


def rectangular(name: str, long: float, short: float) -> Estimate:
    """`long` m n^2 - `short` n^3 for each m x n matrix, n the smaller size."""

    def estimate(call: Call) -> float:
        batch, rows, columns = _sizes(call, name)
        large, small = max(rows, columns), min(rows, columns)
        return batch * (long * large * small**2 - short * small**3)

    return estimate


def solving(matrix: str, right: str, factorise: float, substitute: float) -> Estimate:
    """`factorise` n^3 and `substitute` n^2 for each right-hand side."""

    def estimate(call: Call) -> float:
        batch, _, size = _sizes(call, matrix)
        return factorise * batch * size**3 + substitute * size * int(call[right].numel())

    return estimate


def distances(call: Call) -> float:
    """Difference, power, sum: 3 for each coordinate of each pair."""
    return 3 * int(call.first_output.numel()) * int(call["x1"].shape[-1])


def own_distances(call: Call) -> float:
    """The same for pairs within one set."""
    return 3 * int(call.first_output.numel()) * int(call["self"].shape[-1])


def distances_backward(call: Call) -> float:
    """The same for each of the pairs."""
    return 3 * int(call["cdist"].numel()) * int(call["x1"].shape[-1])


def own_distances_backward(call: Call) -> float:
    """The same for each of the pairs."""
    return 3 * int(call["pdist"].numel()) * int(call["self"].shape[-1])


def apply_reflectors(call: Call) -> float:
    """4 m n k for k reflectors of length m applied to n columns."""
    return 4 * int(call["input3"].numel()) * int(call["input2"].shape[-1])


ESTIMATES: dict[str, Estimate] = {
    "aten::_fft_c2c": fourier(5),
    "aten::_fft_r2c": fourier(2.5),
    "aten::_fft_c2r": fourier(2.5, sizes_of_output=True),
    "aten::_cdist_forward": distances,
    "aten::_cdist_backward": distances_backward,
    "aten::_pdist_forward": own_distances,
    "aten::_pdist_backward": own_distances_backward,
    "aten::linalg_lu_factor_ex": rectangular("A", 1, 1 / 3),
    "aten::linalg_lu": rectangular("A", 1, 1 / 3),
    "aten::_lu_with_info": rectangular("self", 1, 1 / 3),
    "aten::linalg_lu_solve": solving("LU", "B", 0, 2),
    "aten::linalg_cholesky_ex": square("self", 1 / 3),
    "aten::cholesky": square("self", 1 / 3),
    "aten::cholesky_solve": solving("input2", "self", 0, 2),
    "aten::_cholesky_solve_helper": solving("A", "self", 0, 2),
    "aten::cholesky_inverse": square("self", 2 / 3),
    "aten::linalg_ldl_factor_ex": square("self", 1 / 3),
    "aten::linalg_ldl_solve": solving("LD", "B", 0, 2),
    "aten::linalg_qr": rectangular("A", 4, 4 / 3),
    "aten::geqrf": rectangular("self", 2, 2 / 3),
    "aten::linalg_householder_product": rectangular("input", 2, 2 / 3),
    "aten::ormqr": apply_reflectors,
    "aten::linalg_inv_ex": square("A", 2),
    "aten::_linalg_solve_ex": solving("A", "B", 2 / 3, 2),
    "aten::linalg_solve_triangular": solving("self", "B", 0, 1),
    "aten::triangular_solve": solving("A", "self", 0, 1),
    "aten::linalg_lstsq": rectangular("self", 2, 2 / 3),
    "aten::_linalg_det": square("A", 2 / 3),
    "aten::_linalg_slogdet": square("A", 2 / 3),
    "aten::_linalg_eigh": square("A", 9),
    "aten::linalg_eig": square("self", 25),
    "aten::_linalg_eigvals": square("self", 10),
    "aten::linalg_eigvals": square("self", 10),
    "aten::_linalg_svd": rectangular("A", 6, -20),
}
