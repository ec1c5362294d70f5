"""NumPy's dtypes as LLVM's: in memory, in registers, and from one to another."""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir

from ptml.backends.numba.plan.errors import Unsupported

__all__ = ["constant", "convert", "is_float", "is_signed", "load", "memory_type", "register_type", "store"]

_FLOATS = {"float32": ir.FloatType(), "float64": ir.DoubleType()}


@cache
def is_float(dtype: str) -> bool:
    """Say whether numbers of a dtype are floating."""
    return dtype in _FLOATS


@cache
def is_signed(dtype: str) -> bool:
    """Say whether a dtype is one of signed integers."""
    return np.dtype(dtype).kind == "i"


@cache
def register_type(dtype: str) -> ir.Type:
    """Give the type of a number in a register; a truth value is one bit there.

    Raises
    ------
    Unsupported
        If kernels do not compute in it: half precision, complex numbers.
    """
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    if dtype == "bool":
        return ir.IntType(1)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return ir.IntType(8 * kind.itemsize)
    raise Unsupported(f"dtype {dtype}")


def memory_type(dtype: str) -> ir.Type:
    """Give the type of a number in memory, where a truth value is a byte."""
    return ir.IntType(8) if dtype == "bool" else register_type(dtype)


def load(builder: ir.IRBuilder, pointer: ir.Value, dtype: str) -> ir.Value:
    """Read a number, wherever it lies: arrays need not be aligned."""
    kind = memory_type(dtype)
    value = builder.load(pointer, typ=kind, align=1)
    return builder.icmp_unsigned("!=", value, kind(0)) if dtype == "bool" else value


def store(builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value, dtype: str) -> None:
    """Write a number."""
    if dtype == "bool":
        value = builder.zext(value, ir.IntType(8))
    builder.store(value, pointer, align=1)


def constant(value: object, dtype: str) -> ir.Constant:
    """Give a number as a constant."""
    kind = register_type(dtype)
    if is_float(dtype):
        return kind(float(np.asarray(value, dtype)))
    number = int(np.asarray(value, dtype))
    return kind(int(bool(number))) if dtype == "bool" else kind(number)


def convert(builder: ir.IRBuilder, value: ir.Value, old: str, new: str) -> ir.Value:
    """Cast a number as NumPy does."""
    if old == new:
        return value
    kind = register_type(new)
    if new == "bool":
        zero = constant(0, old)
        unequal = builder.fcmp_unordered if is_float(old) else builder.icmp_unsigned
        return unequal("!=", value, zero)
    if is_float(old):
        if is_float(new):
            return builder.fpext(value, kind) if new == "float64" else builder.fptrunc(value, kind)
        return builder.fptosi(value, kind) if is_signed(new) else _to_unsigned(builder, value, kind)
    if is_float(new):
        return builder.sitofp(value, kind) if is_signed(old) else builder.uitofp(value, kind)
    old_bits, new_bits = register_type(old).width, kind.width
    if old_bits == new_bits:
        return value
    if old_bits > new_bits:
        return builder.trunc(value, kind)
    return builder.sext(value, kind) if is_signed(old) else builder.zext(value, kind)


def _to_unsigned(builder: ir.IRBuilder, value: ir.Value, kind: ir.IntType) -> ir.Value:
    if kind.width == 64:
        return builder.fptoui(value, kind)
    # By way of 64 bits, so that a negative number wraps around as it does in NumPy.
    return builder.trunc(builder.fptosi(value, ir.IntType(64)), kind)
