"""Products of matrices within a routine: BLAS, called by its address.

The address is a word of the routine's table, not part of its source, so that its kernel can be kept on disk.
Where several threads run the kernel at once, it holds BLAS to one thread while it runs.
"""

from __future__ import annotations

from llvmlite import ir

from ptml.backends.numba.plan.codegen.dtypes import memory_type
from ptml.backends.numba.plan.codegen.routine import Array, Routine
from ptml.backends.numba.plan.runtime.blas import held, routine

__all__ = ["Products"]

_VOID, _I64, _POINTER = ir.VoidType(), ir.IntType(64), ir.PointerType()

_PREFIX = {"float32": "s", "float64": "d"}


class Products:
    """Writes the products of a routine.

    Parameters
    ----------
    code : Routine
    dtype : {"float32", "float64"}
    numbers : sequence of ir.Value
        The routine's numbers that hold `words`.
    alone : bool
        Whether each product runs on the thread that asks for it.
    """

    #: How many words BLAS needs in the table.
    COUNT = 4

    def __init__(self, code: Routine, dtype: str, numbers: list[ir.Value], alone: bool) -> None:
        self.builder = code.builder
        self.kind = memory_type(dtype)
        self.alone = alone
        self._gemm, self._hold, self._release, self._state = numbers

    @staticmethod
    def words(dtype: str) -> tuple[list[int], bool]:
        """Give the words that BLAS needs, and whether it can be told to run on one thread."""
        hold = held()
        return [routine(_PREFIX[dtype] + "gemm"), *(hold or (0, 0, 0))], hold is not None

    def begin(self) -> None:
        """Hold BLAS to one thread, where it is to be; before all products."""
        if self.alone:
            self._call(self._hold, [self.builder.inttoptr(self._state, _POINTER)])

    def end(self) -> None:
        """Let BLAS go again; after all products."""
        if self.alone:
            self._call(self._release, [self.builder.inttoptr(self._state, _POINTER)])

    def product(
        self,
        out: Array,
        left: Array,
        right: Array,
        sizes: tuple[ir.Value, ir.Value, ir.Value],
        leads: tuple[ir.Value, ir.Value, ir.Value],
        accumulate: bool | ir.Value = False,
        transposed: tuple[bool, bool] = (False, False),
        factor: ir.Value | None = None,
    ) -> None:
        """Write a product of row-major matrices.

        Parameters
        ----------
        out, left, right : Array
            Where each begins: ``(m, n)``, ``(m, k)`` and ``(k, n)``.
        sizes : tuple of ir.Value
            ``m``, ``n`` and ``k``.
        leads : tuple of ir.Value
            How many numbers lie from one row of `out`, `left` and `right` to the next.
        accumulate : bool or ir.Value
            Whether to add to what is there; ``i1`` where only the running kernel knows.
        transposed : tuple of bool
            Whether `left` lies as ``(k, m)``, and `right` as ``(n, k)``.
        factor : ir.Value, optional
            What the product is multiplied by.
        """
        # Columns first, C = A B is C' = B' A'.
        m, n, k = sizes
        of_out, of_left, of_right = leads
        letters = (self._cell(_I64(ord("T" if swapped else "N"))) for swapped in reversed(transposed))
        if isinstance(accumulate, bool):
            beta = self.kind(float(accumulate))
        else:
            beta = self.builder.uitofp(accumulate, self.kind)
        arguments = [
            *(*letters, *(self._cell(size) for size in (n, m, k))),
            *(self._cell(self.kind(1.0) if factor is None else factor), right.pointer, self._cell(of_right)),
            *(left.pointer, self._cell(of_left)),
            *(self._cell(beta), out.pointer, self._cell(of_out)),
        ]
        self._call(self._gemm, arguments)

    def _cell(self, value: ir.Value) -> ir.Value:
        """Give the address of a number; BLAS reads sizes of 32 bits, and letters, from its low end."""
        with self.builder.goto_entry_block():
            place = self.builder.alloca(value.type)
        self.builder.store(value, place)
        return place

    def _call(self, function: ir.Value, arguments: list[ir.Value]) -> None:
        kind = ir.FunctionType(_VOID, [argument.type for argument in arguments])
        self.builder.call(self.builder.inttoptr(function, kind.as_pointer()), arguments)
