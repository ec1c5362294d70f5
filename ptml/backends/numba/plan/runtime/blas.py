"""Matrix products: SciPy's BLAS, called from the table.

BLAS counts columns first, so the product of row-major arrays is asked for as that of their transposes:
``C = A B`` as ``C' = B' A'``. An operand whose rows, or whose columns, lie one after the other is taken as it
lies; others are copied before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ptml.backends.numba.plan.runtime.cache import kernels
from ptml.backends.numba.plan.runtime.pool import Share, at_fork

__all__ = ["LARGE", "Gemm", "Operand", "held", "routine"]

_PREFIX = {"float32": "s", "float64": "d"}
_LLVM = {"float32": "float", "float64": "double"}

#: Products of at least so many multiplications are shared out, where threads are ours; else they are left to
#: BLAS's threads, and smaller ones run on one thread.
LARGE = 2**22

#: Parts of a product have a multiple of so many lines, as BLAS's own blocks have.
BLOCK = 16

_NO_BLAS = "SciPy's BLAS has no {name!r}; this SciPy is too old for plans. Use backend='c', or update SciPy."

# What sets the number of threads for the calls that follow, and gives the number that it was.
_SETTERS = ("openblas_set_num_threads_local", "scipy_openblas_set_num_threads_local")

# BLAS has one number of threads for the process. The first of our calls that are under way at once sets it to
# one, and the last gives it back: whoever else uses this BLAS finds what he had set. The state is a lock, the
# calls under way, the number before, what sets it, and whether calls have to wait.
_HOLD = """
define internal void @lock(ptr %state) {
entry:
  br label %try
try:
  %was = atomicrmw xchg ptr %state, i64 1 seq_cst
  %free = icmp eq i64 %was, 0
  br i1 %free, label %end, label %try
end:
  ret void
}

define internal i64 @count(ptr %state, i64 %change) {
  %under_way_at = getelementptr i64, ptr %state, i64 1
  %before = load i64, ptr %under_way_at
  %after = add i64 %before, %change
  store i64 %after, ptr %under_way_at
  %first_or_last = icmp sgt i64 %before, %after
  %less = select i1 %first_or_last, i64 %after, i64 %before
  ret i64 %less
}

define internal i32 @set(ptr %state, i32 %threads) {
  %setter_at = getelementptr i64, ptr %state, i64 3
  %setter = load ptr, ptr %setter_at
  %old = call i32 %setter(i32 %threads)
  ret i32 %old
}

define void @hold(ptr %state) {
entry:
  br label %again
again:
  call void @lock(ptr %state)
  %closed_at = getelementptr i64, ptr %state, i64 4
  %closed = load i64, ptr %closed_at
  %open = icmp eq i64 %closed, 0
  br i1 %open, label %enter, label %wait
wait:
  store atomic i64 0, ptr %state seq_cst, align 8
  br label %again
enter:
  %others = call i64 @count(ptr %state, i64 1)
  %first = icmp eq i64 %others, 0
  br i1 %first, label %set, label %end
set:
  %old = call i32 @set(ptr %state, i32 1)
  %old_at = getelementptr i64, ptr %state, i64 2
  store i32 %old, ptr %old_at
  br label %end
end:
  store atomic i64 0, ptr %state seq_cst, align 8
  ret void
}

define void @release(ptr %state) {
entry:
  call void @lock(ptr %state)
  %others = call i64 @count(ptr %state, i64 -1)
  %last = icmp eq i64 %others, 0
  br i1 %last, label %set, label %end
set:
  %old_at = getelementptr i64, ptr %state, i64 2
  %old = load i32, ptr %old_at
  %one = call i32 @set(ptr %state, i32 %old)
  br label %end
end:
  store atomic i64 0, ptr %state seq_cst, align 8
  ret void
}

define void @close(ptr %state) {
entry:
  br label %look
look:
  call void @lock(ptr %state)
  %closed_at = getelementptr i64, ptr %state, i64 4
  store i64 1, ptr %closed_at
  %under_way_at = getelementptr i64, ptr %state, i64 1
  %under_way = load i64, ptr %under_way_at
  %none = icmp eq i64 %under_way, 0
  br i1 %none, label %end, label %wait
wait:
  store atomic i64 0, ptr %state seq_cst, align 8
  br label %look
end:
  ret void
}

define void @reopen(ptr %state) {
  %closed_at = getelementptr i64, ptr %state, i64 4
  store i64 0, ptr %closed_at
  store atomic i64 0, ptr %state seq_cst, align 8
  ret void
}
"""

# The words of a product: the routine, what holds BLAS to one thread and lets it go again with their state,
# the letters, sizes and leads; then which of the matrices to begin with, how many products there are, and
# the addresses of each one's matrices. BLAS reads whole numbers of 32 bits, and letters, from the low end of
# a word.
_WORDS = (
    *("routine", "hold", "release", "state", "right_as", "left_as", "n", "m", "k"),
    *("right_lead", "left_lead", "out_lead", "first", "count"),
)
_CALL = """
define i32 @kernel(ptr %table) {{
entry:
{loads}
{cells}
  %one = alloca {kind}
  store {kind} 1.0, ptr %one
  %zero = alloca {kind}
  store {kind} 0.0, ptr %zero
  {hold}
  %begin = mul i64 %first, 3
  %matrices0 = getelementptr ptr, ptr %table, i64 {n_words}
  %matrices = getelementptr ptr, ptr %matrices0, i64 %begin
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %product, label %end
product:
  %i = phi i64 [ 0, %entry ], [ %i_next, %product ]
  %of = mul i64 %i, 3
  %right_at = getelementptr ptr, ptr %matrices, i64 %of
  %right = load ptr, ptr %right_at
  %left_at = getelementptr ptr, ptr %right_at, i64 1
  %left = load ptr, ptr %left_at
  %out_at = getelementptr ptr, ptr %right_at, i64 2
  %out = load ptr, ptr %out_at
  call void %routine(ptr %right_as_, ptr %left_as_, ptr %n_, ptr %m_, ptr %k_, ptr %one, ptr %right,
    ptr %right_lead_, ptr %left, ptr %left_lead_, ptr %zero, ptr %out, ptr %out_lead_)
  %i_next = add i64 %i, 1
  %more = icmp slt i64 %i_next, %count
  br i1 %more, label %product, label %end
end:
  {release}
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
    >>> from ptml.backends.numba.plan.runtime.blas import routine
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
def held() -> tuple[int, int, int] | None:
    """Give what holds BLAS to one thread, what lets it go, and their state; None where it cannot be held.

    A kernel that several threads may run at once calls the first before its products, and the second after
    them, each with the state.
    """
    setter = thread_setter()
    if not setter:
        return None
    state = np.array([0, 0, 0, setter, 0], np.uint64)

    # A fork waits for the calls that are under way, with the lock from then on, and others wait for it: BLAS
    # has locks of its own, of which the child would have a copy that nobody unlocks.
    close, reopen = (
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernels.address(_HOLD, name)) for name in ("close", "reopen")
    )
    # As pointers, which keep the array alive: kernels write into it from now on.
    at_fork(*(partial(f, state.ctypes.data_as(ctypes.c_void_p)) for f in (close, reopen)))
    return kernels.address(_HOLD, "hold"), kernels.address(_HOLD, "release"), state.ctypes.data


def _gemm_kernel(dtype: str, alone: bool) -> int:
    pointers = ("routine", "hold", "release", "state")
    loads, cells = [], []
    for k, name in enumerate(_WORDS):
        kind = "ptr" if name in pointers else "i64"
        loads.append(f"  %{name}.at = getelementptr i64, ptr %table, i64 {k}")
        loads.append(f"  %{name} = load {kind}, ptr %{name}.at")
        if name not in (*pointers, "first", "count"):
            cells.append(f"  %{name}_ = alloca i64")
            cells.append(f"  store i64 %{name}, ptr %{name}_")
    hold, release = ("call void %hold(ptr %state)", "call void %release(ptr %state)") if alone else ("", "")
    source = _CALL.format(
        loads="\n".join(loads),
        cells="\n".join(cells),
        kind=_LLVM[dtype],
        hold=hold,
        release=release,
        n_words=len(_WORDS),
    )
    return kernels.address(source)


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


class Gemm:
    """Matrix products of one kind: of matrices of the same sizes that lie alike.

    Parameters
    ----------
    left, right : Operand
    m, n, k : int
        The left matrix is ``(m, k)``, the right one ``(k, n)``, the product ``(m, n)``, row-major.
    dtype : {"float32", "float64"}
    alone : bool
        Whether to tell BLAS to run each on the calling thread.

    Attributes
    ----------
    kernel : int
    alone : bool
        Whether BLAS can.
    """

    def __init__(
        self, left: Operand, right: Operand, m: int, n: int, k: int, dtype: str, alone: bool
    ) -> None:
        self.left, self.right, self.m, self.n, self.k = left, right, m, n, k
        self.itemsize = np.dtype(dtype).itemsize
        hold = held() if alone else None
        self.alone = hold is not None
        self.kernel = _gemm_kernel(dtype, self.alone)
        letters = [ord("T" if operand.transposed else "N") for operand in (right, left)]
        self._head = [routine(_PREFIX[dtype] + "gemm"), *(hold or (0, 0, 0)), *letters]
        self._head += [n, m, k, right.lead, left.lead, max(n, 1), 0]

    def words(self, matrices: Sequence[tuple[Any, Any, Any]]) -> list[Any]:
        """Give the words of products.

        Parameters
        ----------
        matrices : sequence of tuple
            The left and the right matrix of each, and where to write.
        """
        triples = [word for left, right, out in matrices for word in (right, left, out)]
        return [*self._head, len(matrices), *triples]

    def by_product(self, count: int) -> Share:
        """Say how several products are shared out."""
        return Share(_WORDS.index("count"), count, {_WORDS.index("first"): 1}, each=2)

    def by_block(self) -> Share:
        """Say how one product is shared out: by the rows or the columns of its result, which are more."""
        right, left, out = (len(_WORDS) + k for k in range(3))
        lines, unit = ("n", self.right.transposed) if self.n >= self.m else ("m", not self.left.transposed)
        across = lines == "n"
        lead = self.right.lead if across else self.left.lead
        steps = {
            right if across else left: self.itemsize * (lead if unit else 1),
            out: self.itemsize * (1 if across else max(self.n, 1)),
        }
        return Share(_WORDS.index(lines), self.n if across else self.m, steps, BLOCK, each=1)
