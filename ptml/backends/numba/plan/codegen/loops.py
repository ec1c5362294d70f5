"""The generator: one loop nest in LLVM IR for an elementwise computation and the reductions of its results.

A kernel is written for a way of lying, not for sizes: its table has the operands' addresses, the sizes of the
axes, and the strides that are not known beforehand, so that layers of any size share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import attrs
import pytensor.scalar as ps
from llvmlite import ir

from ptml.backends.numba.plan.codegen.dtypes import convert, load, memory_type, store
from ptml.backends.numba.plan.codegen.scalars import combine, emit_scalar, identity
from ptml.backends.numba.plan.runtime.cache import kernels

__all__ = ["Access", "Nest", "Result", "loop", "nest_kernel"]

_I32, _I64, _POINTER, _BYTE = ir.IntType(32), ir.IntType(64), ir.PointerType(), ir.IntType(8)


@attrs.frozen
class Access:
    """How an operand lies along the axes of a nest.

    Attributes
    ----------
    dtype : str
    steps : str
        A letter for each axis: ``"b"`` where it stays (broadcast), ``"c"`` where elements lie one after
        the other, ``"s"`` for a stride that the table has, ``"r"`` where a result is reduced.
    """

    dtype: str
    steps: str


@attrs.frozen
class Result(Access):
    """What is written.

    Attributes
    ----------
    source : int
        Which result of the scalar op it is.
    value : str
        The dtype of that.
    reduction : str or None
        How it is reduced along its ``"r"`` axes: ``"add"``, ``"mul"``, ``"maximum"``, ``"minimum"``,
        ``"and"``, ``"or"``, ``"xor"``.
    accumulator : str
        The dtype in which.
    alias : int or None
        The input in whose place it is written.
    """

    source: int = 0
    value: str = "float64"
    reduction: str | None = None
    accumulator: str = "float64"
    alias: int | None = None

    @property
    def in_register(self) -> bool:
        """Whether only the last axes are reduced: a number is then whole before the next one begins."""
        return "r" not in self.steps.rstrip("r")

    @property
    def has_scratch(self) -> bool:
        """Whether unfinished numbers are kept beside the output, being of another dtype."""
        return self.reduction is not None and not self.in_register and self.accumulator != self.dtype

    @property
    def scratch(self) -> Access:
        """How unfinished numbers lie."""
        return Access(self.accumulator, self.steps)


@attrs.frozen
class Nest:
    """A loop nest: a scalar op, the operands along its axes, and what becomes of its results.

    Attributes
    ----------
    op : ScalarOp
    n_axes : int
    inputs : tuple of Access
        Each array that is read, once.
    reads : tuple of int
        Which of them the op's operands are.
    results : tuple of Result
    """

    op: ps.ScalarOp
    n_axes: int
    inputs: tuple[Access, ...]
    reads: tuple[int, ...]
    results: tuple[Result, ...]

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Every operand with an address, in the table's order: inputs, results, scratch."""
        return (*self.inputs, *self.results, *(r.scratch for r in self.results if r.has_scratch))


@contextmanager
def loop(builder: ir.IRBuilder, n: ir.Value) -> Iterator[ir.Value]:
    """Repeat what is built inside ``n`` times, and give the number of the round."""
    before = builder.block
    body, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed(">", n, _I64(0)), body, after)
    builder.position_at_end(body)
    i = builder.phi(_I64)
    i.add_incoming(_I64(0), before)
    yield i
    following = builder.add(i, _I64(1), flags=("nuw", "nsw"))
    i.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, n), body, after)
    builder.position_at_end(after)


class _Writer:
    """Writes the body of one nest."""

    def __init__(self, nest: Nest, function: ir.Function) -> None:
        self.nest = nest
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        accesses = nest.accesses
        arguments = iter(function.args)
        self.pointers = [next(arguments) for _ in accesses]
        self.sizes = [next(arguments) for _ in range(nest.n_axes)]
        self.strides = [
            {axis: next(arguments) for axis, step in enumerate(access.steps) if step == "s"}
            for access in accesses
        ]
        first_scratch = len(nest.inputs) + len(nest.results)
        numbers = iter(range(first_scratch, len(accesses)))
        #: Where each result's numbers are while they are reduced in memory.
        self.partial = [
            next(numbers) if result.has_scratch else len(nest.inputs) + k
            for k, result in enumerate(nest.results)
        ]
        self.registers: dict[int, ir.Value] = {
            k: self.builder.alloca(memory_type(result.accumulator))
            for k, result in enumerate(nest.results)
            if result.reduction is not None and result.in_register
        }

    def step(self, pointers: list[ir.Value], axis: int, i: ir.Value) -> list[ir.Value]:
        """Go to the i-th element along an axis."""
        moved = []
        for pointer, access, strides in zip(pointers, self.nest.accesses, self.strides, strict=True):
            kind = access.steps[axis]
            if kind == "c":
                pointer = self.builder.gep(
                    pointer, [i], inbounds=True, source_etype=memory_type(access.dtype)
                )
            elif kind == "s":
                offset = self.builder.mul(i, strides[axis], flags=("nsw",))
                pointer = self.builder.gep(pointer, [offset], inbounds=True, source_etype=_BYTE)
            moved.append(pointer)
        return moved

    def over(self, axes: Sequence[int], body: Callable[[list[ir.Value]], None]) -> None:
        """Build loops over some axes around a body."""

        def go(rest: Sequence[int], pointers: list[ir.Value]) -> None:
            if not rest:
                body(pointers)
                return
            with loop(self.builder, self.sizes[rest[0]]) as i:
                go(rest[1:], self.step(pointers, rest[0], i))

        go(axes, self.pointers)

    def write(self) -> None:
        """Write all of it."""
        in_memory = [
            k for k, r in enumerate(self.nest.results) if r.reduction is not None and not r.in_register
        ]
        for k in in_memory:
            self.over(self.kept(k), partial(self.start_in_memory, k))
        self.axis(0, self.pointers)
        for k in in_memory:
            if self.nest.results[k].has_scratch:
                self.over(self.kept(k), partial(self.finish, k))
        self.builder.ret_void()

    def kept(self, k: int) -> list[int]:
        return [axis for axis, step in enumerate(self.nest.results[k].steps) if step != "r"]

    def start_in_memory(self, k: int, pointers: list[ir.Value]) -> None:
        self.start(k, pointers[self.partial[k]])

    def start(self, k: int, pointer: ir.Value) -> None:
        result = self.nest.results[k]
        assert result.reduction is not None
        store(self.builder, identity(result.reduction, result.accumulator), pointer, result.accumulator)

    def finish(self, k: int, pointers: list[ir.Value]) -> None:
        result = self.nest.results[k]
        total = load(self.builder, pointers[self.partial[k]], result.accumulator)
        self.put(k, convert(self.builder, total, result.accumulator, result.dtype), pointers)

    def put(self, k: int, value: ir.Value, pointers: list[ir.Value]) -> None:
        result = self.nest.results[k]
        place = len(self.nest.inputs) + k if result.alias is None else result.alias
        store(self.builder, value, pointers[place], result.dtype)

    def axis(self, axis: int, pointers: list[ir.Value]) -> None:
        """Build the nest from an axis on, with the numbers that begin and end there."""
        whole = [k for k in self.registers if len(self.nest.results[k].steps.rstrip("r")) == axis]
        for k in whole:
            self.start(k, self.registers[k])
        if axis == self.nest.n_axes:
            self.element(pointers)
        else:
            with loop(self.builder, self.sizes[axis]) as i:
                self.axis(axis + 1, self.step(pointers, axis, i))
        for k in whole:
            result = self.nest.results[k]
            total = load(self.builder, self.registers[k], result.accumulator)
            self.put(k, convert(self.builder, total, result.accumulator, result.dtype), pointers)

    def element(self, pointers: list[ir.Value]) -> None:
        """Compute one element of everything."""
        builder, nest = self.builder, self.nest
        loaded = [
            load(builder, pointer, access.dtype)
            for pointer, access in zip(pointers, nest.inputs, strict=False)
        ]
        values = [loaded[k] for k in nest.reads]
        kinds = [nest.inputs[k].dtype for k in nest.reads]
        wanted = {result.source: result.value for result in nest.results}
        dtypes = [wanted.get(k, "") or _own_dtype(nest.op, k) for k in range(nest.op.nout)]
        computed = emit_scalar(builder, nest.op, values, kinds, dtypes)
        for k, result in enumerate(nest.results):
            value = computed[result.source]
            if result.reduction is None:
                self.put(k, convert(builder, value, result.value, result.dtype), pointers)
                continue
            place = self.registers[k] if k in self.registers else pointers[self.partial[k]]
            value = convert(builder, value, result.value, result.accumulator)
            total = load(builder, place, result.accumulator)
            total = combine(builder, result.reduction, total, value, result.accumulator)
            store(builder, total, place, result.accumulator)


def _own_dtype(op: ps.ScalarOp, k: int) -> str:
    """Give the dtype of a result that nobody wants, of an op with several."""
    return op.outputs[k].type.dtype


@cache
def nest_kernel(nest: Nest) -> int:
    """Give the kernel of a nest.

    Raises
    ------
    Unsupported
        If an op or a dtype of it has no instructions.
    """
    return kernels.address(nest_source(nest))


@cache
def segments_kernel(nest: Nest) -> int:
    """Give the kernel that runs a nest on a list of segments.

    Its table has the address of the list and the number of segments. The list has for each the words that
    the kernel of the nest would have.

    Raises
    ------
    Unsupported
        If an op or a dtype of it has no instructions.
    """
    return kernels.address(nest_source(nest, segmented=True))


def nest_source(nest: Nest, segmented: bool = False) -> str:
    """Write the kernel of a nest, as the text of an LLVM module."""
    module = ir.Module("nest")
    accesses = nest.accesses
    n_words = nest.n_axes + sum(access.steps.count("s") for access in accesses)
    kinds = [_POINTER] * len(accesses) + [_I64] * n_words
    body = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "body")
    body.linkage = "internal"
    body.attributes.add("noinline")
    # Nothing that is written overlaps anything else: the planner gives each result memory of its own, or
    # an input's place, which has then only one name here. Arguments can say so, loaded pointers cannot.
    for argument, _ in zip(body.args, accesses, strict=False):
        argument.add_attribute("noalias")
    _Writer(nest, body).write()

    kernel = ir.Function(module, ir.FunctionType(_I32, [_POINTER]), "kernel")
    builder = ir.IRBuilder(kernel.append_basic_block("entry"))
    table = kernel.args[0]

    def call(table: ir.Value) -> None:
        words = [
            builder.load(builder.gep(table, [_I64(k)], source_etype=_I64), typ=kind)
            for k, kind in enumerate(kinds)
        ]
        builder.call(body, words)

    if segmented:
        segments = builder.load(table, typ=_POINTER)
        with loop(builder, builder.load(builder.gep(table, [_I64(1)], source_etype=_I64), typ=_I64)) as i:
            place = builder.mul(i, _I64(len(kinds)))
            call(builder.gep(segments, [place], source_etype=_I64))
    else:
        call(table)
    builder.ret(_I32(0))
    return str(module)
