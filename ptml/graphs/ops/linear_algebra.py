"""Products of matrices, decompositions, and what solves equations."""

from __future__ import annotations

from pytensor.graph.op import Op
from pytensor.tensor.blas.batched import BatchedDot
from pytensor.tensor.blas.gemm import Dot22, Dot22Scalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg import constructors, inverse, products, summary
from pytensor.tensor.linalg.decomposition import cholesky, eigen, lu, qr, schur, svd
from pytensor.tensor.linalg.solvers import general, linear_control, lstsq, psd, triangular, tridiagonal
from pytensor.tensor.math import Dot

from ptml.graphs.fields import COUNT, FLAG, INTEGER, OP, TEXT, choice, items, optional
from ptml.graphs.registry import Entry, add, register_op

__all__: list[str] = []

register_op(Dot, fields={})
register_op(BatchedDot, fields={})
register_op(Dot22, fields={})
register_op(Dot22Scalar, fields={})


def _blockwise(core_op: Op, signature: str) -> Blockwise:
    return Blockwise(core_op, signature)


add(
    Blockwise,
    Entry(
        "Blockwise",
        {"core_op": OP, "signature": TEXT},
        lambda op: {"core_op": op.core_op, "signature": op.signature},
        _blockwise,
        lambda op: f"batched {type(op.core_op).__name__}",
    ),
)

register_op(constructors.BlockDiagonal, fields={"n_inputs": COUNT})
register_op(inverse.MatrixInverse, fields={})
register_op(inverse.MatrixPinv, fields={"hermitian": FLAG})
register_op(inverse.TensorInv, fields={"ind": COUNT})
register_op(products.Expm, fields={})
register_op(summary.Det, fields={})
register_op(summary.SLogDet, fields={})

register_op(cholesky.Cholesky, fields={"lower": FLAG})
register_op(eigen.Eig, fields={})
register_op(
    eigen.Eigh, fields={"lower": FLAG, "driver": choice("ev", "evd", "evr", "evx", "gv", "gvd", "gvx")}
)
register_op(eigen.Eigvalsh, fields={"lower": FLAG})
register_op(lu.LU, fields={"permute_l": FLAG, "p_indices": FLAG})
register_op(lu.LUFactor, fields={})
register_op(lu.PivotToPermutations, fields={"inverse": FLAG})
register_op(qr.QR, fields={"mode": choice("full", "r", "economic", "raw"), "pivoting": FLAG})
_SORTED = optional(choice("lhp", "rhp", "iuc", "ouc"))
register_op(schur.Schur, fields={"output": choice("real", "complex"), "sort": _SORTED})
register_op(schur.QZ, fields={"complex_output": FLAG, "sort": _SORTED, "return_eigenvalues": FLAG})
register_op(svd.SVD, fields={"full_matrices": FLAG, "compute_uv": FLAG})

_SIDES = {"lower": FLAG, "b_ndim": COUNT}
register_op(general.Solve, fields={**_SIDES, "assume_a": TEXT})
register_op(psd.CholeskySolve, fields=_SIDES)
register_op(triangular.SolveTriangular, fields={**_SIDES, "unit_diagonal": FLAG})
register_op(linear_control.TRSYL, fields={})
register_op(lstsq.Lstsq, fields={})
register_op(lstsq.TensorSolve, fields={"axes": optional(items(INTEGER))})
register_op(tridiagonal.LUFactorTridiagonal, fields={})
register_op(tridiagonal.SolveLUFactorTridiagonal, fields={"b_ndim": COUNT, "transposed": FLAG})
