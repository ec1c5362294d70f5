"""Vectors: numbers that an instruction takes at once, as kernels written by hand hold them in registers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from llvmlite import ir

from ptml.backends.numba.native import target_description
from ptml.backends.numba.plan.codegen.dtypes import memory_type
from ptml.backends.numba.plan.codegen.routine import Array

__all__ = ["Vectors", "registers", "vector_length"]

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)

#: Vector registers of this processor: their bytes, and how many there are, by what its description says.
_REGISTERS = (("+avx512f", 64, 32), ("+avx,", 32, 16), ("x86_64", 16, 16))
_OTHERS = (16, 32)


@cache
def registers() -> tuple[int, int]:
    """Give the bytes of a vector register, and how many of them there are."""
    described = target_description()
    return next(((size, count) for word, size, count in _REGISTERS if word in described), _OTHERS)


def vector_length(dtype: str) -> int:
    """Give how many numbers a register holds."""
    return registers()[0] // np.dtype(dtype).itemsize


class Vectors:
    """Writes what is done with rows of some vectors, all or part of which are used.

    Parameters
    ----------
    builder : IRBuilder
    dtype : str
    count : int
        How many vectors a row has.
    width : ir.Value or None
        How many of a row's numbers are used, where that is not all.
    """

    def __init__(self, builder: ir.IRBuilder, dtype: str, count: int, width: ir.Value | None) -> None:
        self.builder, self.dtype, self.count = builder, dtype, count
        self.length = vector_length(dtype)
        self.scalar = memory_type(dtype)
        self.kind = ir.VectorType(self.scalar, self.length)
        self._masks = None if width is None else [self._mask(width, v) for v in range(count)]

    @property
    def row(self) -> int:
        """How many numbers a row has."""
        return self.count * self.length

    def _mask(self, width: ir.Value, v: int) -> ir.Value:
        numbers = ir.Constant(
            ir.VectorType(_I64, self.length), [_I64(v * self.length + k) for k in range(self.length)]
        )
        return self.builder.icmp_signed("<", numbers, self.filled(width))

    def filled(self, value: ir.Value) -> ir.Value:
        """Give a vector with a number in every place."""
        kind = ir.VectorType(value.type, self.length)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, self.length), [_I32(0)] * self.length)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def zero(self) -> ir.Value:
        """Give a vector of zeros."""
        return ir.Constant(self.kind, [self.scalar(0.0)] * self.length)

    def cells(self, n_rows: int) -> list[list[ir.Value]]:
        """Take places for vectors, which become registers."""
        with self.builder.goto_entry_block():
            return [[self.builder.alloca(self.kind) for _ in range(self.count)] for _ in range(n_rows)]

    def get(self, cell: ir.Value) -> ir.Value:
        """Read such a place."""
        return self.builder.load(cell, typ=self.kind)

    def load(self, array: Array, at: ir.Value, part: bool = False) -> list[ir.Value]:
        """Read a row that lies in memory.

        Parameters
        ----------
        array : Array
        at : ir.Value
            The number of its first element.
        part : bool
            Whether to read the numbers alone that are used; zeros are in the places of the others.
        """
        found = []
        for v in range(self.count):
            pointer = array.from_(self._moved(at, v)).pointer
            if part and self._masks is not None:
                function = self._intrinsic("load", self.kind, [ir.PointerType()], [self.kind])
                align = _I32(1)
                found.append(self.builder.call(function, [pointer, align, self._masks[v], self.zero()]))
            else:
                found.append(self.builder.load(pointer, typ=self.kind, align=1))
        return found

    def store(self, values: Sequence[ir.Value], array: Array, at: ir.Value, part: bool = False) -> None:
        """Write a row, or the numbers of it that are used."""
        for v, value in enumerate(values):
            pointer = array.from_(self._moved(at, v)).pointer
            if part and self._masks is not None:
                function = self._intrinsic("store", ir.VoidType(), [self.kind, ir.PointerType()], [])
                self.builder.call(function, [value, pointer, _I32(1), self._masks[v]])
            else:
                self.builder.store(value, pointer, align=1)

    def add_product(self, cell: ir.Value, left: ir.Value, right: ir.Value) -> None:
        """Add a product of vectors to what is in a place."""
        product = self.builder.fmul(left, right, flags=("contract",))
        self.builder.store(self.builder.fadd(product, self.get(cell), flags=("contract",)), cell)

    def _moved(self, at: ir.Value, v: int) -> ir.Value:
        return self.builder.add(at, _I64(v * self.length)) if v else at

    def _intrinsic(
        self, name: str, result: ir.Type, before: Sequence[ir.Type], after: Sequence[ir.Type]
    ) -> ir.Function:
        full = f"llvm.masked.{name}.v{self.length}f{8 * np.dtype(self.dtype).itemsize}.p0"
        module = self.builder.module
        if full in module.globals:
            return module.globals[full]
        mask = ir.VectorType(_I1, self.length)
        return ir.Function(module, ir.FunctionType(result, [*before, _I32, mask, *after]), full)
