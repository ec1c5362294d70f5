"""Kernels written by hand: what they are given, and the loops and rows that they are made of.

A routine is a kernel in the writing. Its table has the addresses of arrays, which do not overlap, and then
whole numbers: sizes first of all, which stay out of the source, so that arrays of any size share a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llvmlite import ir

from ptml.backends.numba.plan.codegen.dtypes import convert, load, memory_type, store
from ptml.backends.numba.plan.codegen.loops import loop
from ptml.backends.numba.plan.codegen.scalars import combine, identity
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.backends.numba.plan.runtime.cache import kernels

if TYPE_CHECKING:
    from pytensor.graph.basic import Apply

    from ptml.backends.numba.plan.memory import Value
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__ = ["Array", "Routine", "in_order", "same_floats"]

_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()

#: The dtypes that hand-made kernels compute in.
FLOATS = ("float32", "float64")


class Array:
    """Numbers of one dtype, one after the other, from an address on."""

    __slots__ = ("builder", "dtype", "pointer")

    def __init__(self, builder: ir.IRBuilder, pointer: ir.Value, dtype: str) -> None:
        self.builder = builder
        self.pointer = pointer
        self.dtype = dtype

    @property
    def kind(self) -> ir.Type:
        """The type of a number."""
        return memory_type(self.dtype)

    def _at(self, i: ir.Value) -> ir.Value:
        return self.builder.gep(self.pointer, [i], inbounds=True, source_etype=memory_type(self.dtype))

    def __getitem__(self, i: ir.Value) -> ir.Value:
        return load(self.builder, self._at(i), self.dtype)

    def __setitem__(self, i: ir.Value, value: ir.Value) -> None:
        store(self.builder, value, self._at(i), self.dtype)

    def put(self, i: ir.Value, value: ir.Value) -> None:
        """Write a number, where a statement cannot stand."""
        self[i] = value

    def from_(self, start: ir.Value) -> Array:
        """Give the same numbers from a later one on."""
        return Array(self.builder, self._at(start), self.dtype)


class Routine:
    """A kernel in the writing.

    Parameters
    ----------
    dtypes : sequence of str
        Those of the arrays that it is given.
    n_numbers : int
        How many whole numbers follow them.

    Attributes
    ----------
    arrays : list of Array
    numbers : list of ir.Value
        ``i64``.
    builder : IRBuilder
        Writes the body.

    Examples
    --------
    >>> from ptml.backends.numba.plan.codegen.routine import Routine
    >>> doubled = Routine(["float32", "float32"], 1)
    >>> x, out = doubled.arrays
    >>> doubled.each(doubled.numbers[0], lambda i: out.put(i, doubled.builder.fadd(x[i], x[i])))
    >>> doubled.address() > 0
    True
    """

    def __init__(self, dtypes: Sequence[str], n_numbers: int) -> None:
        self.module = ir.Module("routine")
        kinds = [_POINTER] * len(dtypes) + [_I64] * n_numbers
        body = ir.Function(self.module, ir.FunctionType(_I32, kinds), "body")
        body.linkage = "internal"
        body.attributes.add("noinline")
        # Arguments can say that nothing overlaps; pointers that are loaded cannot.
        for argument, _ in zip(body.args, dtypes, strict=False):
            argument.add_attribute("noalias")
        self._kinds, self._body = kinds, body
        self.builder = ir.IRBuilder(body.append_basic_block("entry"))
        self.arrays = [Array(self.builder, p, d) for p, d in zip(body.args, dtypes, strict=False)]
        self.numbers = list(body.args[len(dtypes) :])

    def each(self, n: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Do something for every number below n."""
        with loop(self.builder, n) as i:
            body(i)

    def reduced(self, kind: str, dtype: str, n: ir.Value, body: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """Reduce what a body gives for every number below n.

        Parameters
        ----------
        kind : {"add", "maximum", ...}
            A reduction, as ``scalars.combine`` names it.
        dtype : str
            What it is reduced in.
        n : ir.Value
        body : callable
            Gives a number of that dtype.
        """
        [total] = self.all_reduced([(kind, dtype)], n, lambda i: [body(i)])
        return total

    def all_reduced(
        self,
        kinds: Sequence[tuple[str, str]],
        n: ir.Value,
        body: Callable[[ir.Value], Sequence[ir.Value]],
    ) -> list[ir.Value]:
        """Reduce several numbers in one loop: pairs of how and in what dtype."""
        builder = self.builder
        places = []
        for kind, dtype in kinds:
            with builder.goto_entry_block():
                places.append(builder.alloca(memory_type(dtype)))
            store(builder, identity(kind, dtype), places[-1], dtype)
        with loop(builder, n) as i:
            for (kind, dtype), place, value in zip(kinds, places, body(i), strict=True):
                total = combine(builder, kind, load(builder, place, dtype), value, dtype)
                store(builder, total, place, dtype)
        return [load(builder, place, dtype) for (_, dtype), place in zip(kinds, places, strict=True)]

    def refuse(self, wrong: ir.Value) -> None:
        """End the kernel here with an error, where something is wrong."""
        with self.builder.if_then(wrong):
            self.builder.ret(_I32(1))

    def index(self, i: int) -> ir.Constant:
        """Give a number that is known as an index."""
        return _I64(i)

    def cast(self, value: ir.Value, old: str, new: str) -> ir.Value:
        """Convert a number."""
        return convert(self.builder, value, old, new)

    def address(self) -> int:
        """End the kernel, and give its address."""
        self.builder.ret(_I32(0))
        kernel = ir.Function(self.module, ir.FunctionType(_I32, [_POINTER]), "kernel")
        builder = ir.IRBuilder(kernel.append_basic_block("entry"))
        words = [
            builder.load(builder.gep(kernel.args[0], [_I64(k)], source_etype=_I64), typ=kind)
            for k, kind in enumerate(self._kinds)
        ]
        builder.ret(builder.call(self._body, words))
        return kernels.address(str(self.module))


def same_floats(node: Apply) -> bool:
    """Say whether a node's floats are all of one dtype that kernels compute in: what most rules take."""
    dtypes = {v.type.dtype for v in [*node.inputs, *node.outputs] if v.type.dtype.startswith("float")}
    return len(dtypes) == 1 and dtypes <= set(FLOATS)


def in_order(plan: Planner, unit: Unit, value: Value) -> Value:
    """Give an array whose elements lie one after the other: itself, or a copy for the length of the unit."""
    array = value.array
    if array.flags.c_contiguous:
        return value
    copied = plan.temporary(array.shape, str(array.dtype))
    copy_into(plan, unit, copied, value)
    return copied
