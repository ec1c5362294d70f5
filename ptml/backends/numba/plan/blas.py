"""Matrix products: SciPy's BLAS, called from the table.

BLAS counts columns first, so the product of row-major arrays is asked for as that of their transposes:
``C = A B`` as ``C' = B' A'``. An operand whose rows, or whose columns, lie one after the other is taken as it
lies; others are copied before.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from ptml.backends.numba.plan.cache import kernels

__all__ = ["GEMM_WORDS", "Operand", "gemm_kernel", "gemm_words", "routine"]

#: How many operands ``?gemm`` takes.
GEMM_WORDS = 13

_PREFIX = {"float32": "s", "float64": "d"}

#: Products of fewer multiplications run on one thread: a second one costs more to wake than it saves, and
#: much more where another process has its core.
SMALL = 2**22

_NO_BLAS = "SciPy's BLAS has no {name!r}; this SciPy is too old for plans. Use backend='c', or update SciPy."

# What sets the number of threads for the calls that follow, and gives the number that it was.
_SETTERS = ("openblas_set_num_threads_local", "scipy_openblas_set_num_threads_local")

# The table begins with the routine and what sets the number of threads; what the routine takes follows.
_CALL = """
define i32 @kernel(ptr %table) {{
{loads}
  call void %a0({arguments})
  ret i32 0
}}

define i32 @alone(ptr %table) {{
{loads}
  %before = call i32 %a1(i32 1)
  call void %a0({arguments})
  %after = call i32 %a1(i32 %before)
  ret i32 0
}}
"""


@cache
def routine(name: str) -> int:
    """Give the address of a BLAS routine.

    Parameters
    ----------
    name : str
        As Fortran calls it, such as ``"sgemm"``.

    Examples
    --------
    >>> from ptml.backends.numba.plan.blas import routine
    >>> routine("sgemm") > 0
    True
    """
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__.get(name)
    if capsule is None:
        raise ImportError(_NO_BLAS.format(name=name))
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get_pointer(capsule, get_name(capsule))


@cache
def thread_setter() -> int:
    """Give the address of what sets BLAS's number of threads, or 0 where this BLAS has none."""
    from scipy.linalg import cython_blas

    library = ctypes.CDLL(cython_blas.__file__)
    for name in _SETTERS:
        setter = getattr(library, name, None)
        if setter is not None:
            return ctypes.cast(setter, ctypes.c_void_p).value or 0
    return 0


@cache
def gemm_kernel(alone: bool) -> int:
    """Give the kernel that calls the routine of its table.

    Parameters
    ----------
    alone : bool
        Whether on one thread, if BLAS lets us say so.
    """
    n_words = GEMM_WORDS + 2
    loads = "\n".join(
        f"  %p{k} = getelementptr ptr, ptr %table, i64 {k}\n  %a{k} = load ptr, ptr %p{k}"
        for k in range(n_words)
    )
    arguments = ", ".join(f"ptr %a{k}" for k in range(2, n_words))
    source = _CALL.format(loads=loads, arguments=arguments)
    return kernels.address(source, "alone" if alone and thread_setter() else "kernel")


class Operand:
    """How BLAS can read a matrix: as it lies, or transposed, and how far its lines are apart.

    Attributes
    ----------
    transposed : bool
        Whether the columns, not the rows, lie one after the other.
    lead : int
        Elements from one line to the next.
    """

    __slots__ = ("lead", "transposed")

    def __init__(self, transposed: bool, lead: int) -> None:
        self.transposed = transposed
        self.lead = lead

    @classmethod
    def of(cls, matrix: np.ndarray) -> Operand | None:
        """Describe a matrix, or give None where BLAS cannot read it without a copy."""
        (rows, columns), (down, across) = matrix.shape, matrix.strides
        size = matrix.itemsize
        for transposed, long, short, step, unit in (
            (False, rows, columns, down, across),
            (True, columns, rows, across, down),
        ):
            # A single element has no next one, and a single line no next line.
            if short > 1 and unit != size:
                continue
            if long <= 1:
                return cls(transposed, max(short, 1))
            if step % size == 0 and step // size >= max(short, 1):
                return cls(transposed, step // size)
        return None


def gemm_words(left: Operand, right: Operand, m: int, n: int, k: int, dtype: str) -> tuple[np.ndarray, list]:
    """Lay out what ``?gemm`` reads besides the matrices.

    Parameters
    ----------
    left, right : Operand
    m, n, k : int
        The left matrix is ``(m, k)``, the right one ``(k, n)``, the product ``(m, n)``, row-major.
    dtype : {"float32", "float64"}

    Returns
    -------
    block : ndarray of bytes
        The letters, sizes and scalars; it has to outlive the table.
    words : list
        The table: addresses, and ``"left"``, ``"right"`` and ``"out"`` where those of the matrices go.
    """
    block = np.zeros(64, np.uint8)
    block[:2] = [ord("T" if right.transposed else "N"), ord("T" if left.transposed else "N")]
    block[8:32].view(np.int32)[:] = [n, m, k, right.lead, left.lead, max(n, 1)]
    scalars = block[32:48].view(dtype)
    scalars[:2] = [1, 0]
    base = block.ctypes.data
    alpha, beta = base + 32, base + 32 + scalars.itemsize
    size = [base + 8 + 4 * position for position in range(6)]
    head = [
        routine(_PREFIX[dtype] + "gemm"),
        thread_setter(),
        base,
        base + 1,
        size[0],
        size[1],
        size[2],
        alpha,
    ]
    return block, [*head, "right", size[3], "left", size[4], beta, "out", size[5]]
