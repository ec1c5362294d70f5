"""Rules of random words: Threefry's rounds as LLVM instructions, in a loop that vectorizes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from llvmlite import ir

from ptml.backends.numba.plan.codegen.loops import loop
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.runtime.cache import kernels
from ptml.backends.numba.plan.runtime.sharing import share_over
from ptml.backends.numba.threefry import encrypt
from ptml.bits import Draw, FoldIn

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()

#: What a block costs.
BLOCK_WORK = 32

_Words = tuple[ir.Value, ir.Value]


@rule(Draw)
def lower_draw(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    leaf, number, *dims = values
    if not all(dim.known for dim in dims) or not leaf.array.flags.c_contiguous:
        raise Unsupported("a shape that is not known")
    shape = [int(dim.array) for dim in dims]
    if any(size < 0 for size in shape):
        raise Unsupported("a negative size")
    output = unit.node.outputs[0]
    dtype = output.type.dtype
    drawn = plan.new(shape, dtype, output)
    n = drawn.array.size
    blocks = n if dtype == "float64" else n // 2
    words = [leaf, number, drawn, n, 0, blocks]
    share = share_over(blocks, BLOCK_WORK, 5, {4: 1})
    plan.emit_shared(_draw_kernel(dtype), words, unit, share)
    return [drawn]


@rule(FoldIn)
def lower_fold_in(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    leaf, data = values
    if not leaf.array.flags.c_contiguous:
        raise Unsupported("a strided leaf")
    output = unit.node.outputs[0]
    folded = plan.new((4,), "uint32", output)
    plan.emit(_fold_in_kernel(), [leaf, data, folded], unit)
    return [folded]


class _Kernel:
    """A kernel that reads a leaf, a word, and where to write."""

    def __init__(self) -> None:
        self.module = ir.Module("draw")
        self.function = ir.Function(self.module, ir.FunctionType(_I32, [_POINTER]), "kernel")
        self.builder = builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.leaf = [self.at(self.word(0), k, _I32) for k in range(4)]
        self.number = self.at(self.word(1), 0, _I32)
        self.out = self.word(2)
        self.key: _Words = (self.leaf[0], self.leaf[1])
        self.builder = builder

    def word(self, k: int, kind: ir.Type = _POINTER) -> ir.Value:
        """Read a word of the table."""
        place = self.builder.gep(self.function.args[0], [_I64(k)], source_etype=_I64)
        return self.builder.load(place, typ=kind)

    def at(self, pointer: ir.Value, k: int, kind: ir.Type) -> ir.Value:
        """Read the k-th number at an address."""
        return self.builder.load(self.builder.gep(pointer, [_I64(k)], source_etype=kind), typ=kind, align=1)

    def put(self, value: ir.Value, k: ir.Value) -> None:
        """Write the k-th number of the output."""
        place = self.builder.gep(self.out, [k], source_etype=value.type, inbounds=True)
        self.builder.store(value, place, align=1)

    def finish(self) -> int:
        """End the kernel, and give its address."""
        self.builder.ret(_I32(0))
        return kernels.address(str(self.module))


@cache
def _fold_in_kernel() -> int:
    kernel = _Kernel()
    builder = kernel.builder
    word0, word1 = encrypt(builder, kernel.key, _I32(0), _I32(2))
    words = [builder.xor(word0, kernel.number), word1, *kernel.leaf[2:]]
    for k, word in enumerate(words):
        kernel.put(word, _I64(k))
    return kernel.finish()


@cache
def _draw_kernel(dtype: str) -> int:
    """Give the kernel that fills an array, or the part of it that some of its blocks make.

    Its words are the leaf, the draw's number, where to write, how many; the first block, and how many.
    """
    kernel = _Kernel()
    builder = kernel.builder
    n, begin, blocks = (kernel.word(k, _I64) for k in (3, 4, 5))
    root0, root1 = encrypt(builder, kernel.key, _I32(0), _I32(1))
    key0, key1 = encrypt(
        builder,
        (builder.xor(root0, kernel.leaf[2]), builder.xor(root1, kernel.number)),
        _I32(0),
        _I32(1),
    )
    key = (builder.xor(key0, kernel.leaf[3]), key1)

    def counters(i: ir.Value, apart: ir.Value) -> _Words:
        return builder.trunc(i, _I32), builder.trunc(builder.add(i, apart), _I32)

    if dtype == "float64":
        with loop(builder, blocks) as k:
            i = builder.add(begin, k)
            high, low = encrypt(builder, key, *counters(i, n))
            upper = builder.uitofp(builder.lshr(high, _I32(5)), _DOUBLE)
            lower = builder.uitofp(builder.lshr(low, _I32(6)), _DOUBLE)
            total = builder.fadd(builder.fmul(upper, _DOUBLE(2.0**26)), lower)
            kernel.put(builder.fmul(total, _DOUBLE(2.0**-53)), i)
        return kernel.finish()

    def number(word: ir.Value) -> ir.Value:
        if dtype == "uint32":
            return word
        return builder.fmul(builder.uitofp(builder.lshr(word, _I32(8)), _FLOAT), _FLOAT(2.0**-24))

    pairs = builder.lshr(n, _I64(1))
    half = builder.sub(n, pairs)
    with loop(builder, blocks) as k:
        i = builder.add(begin, k)
        first, second = encrypt(builder, key, *counters(i, half))
        kernel.put(number(first), i)
        kernel.put(number(second), builder.add(i, half))
    # An odd one has no partner: its block's second word is left out.
    alone = builder.icmp_signed("==", begin, _I64(0))
    with loop(builder, builder.select(alone, builder.sub(half, pairs), _I64(0))) as _:
        first, _second = encrypt(builder, key, *counters(pairs, half))
        kernel.put(number(first), pairs)
    return kernel.finish()
