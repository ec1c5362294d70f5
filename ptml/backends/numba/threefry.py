"""Threefry's rounds as LLVM instructions, for whatever loop they stand in."""

from __future__ import annotations

from llvmlite import ir

from ptml.bits import PARITY, ROTATIONS

__all__ = ["encrypt"]

_WORD = ir.IntType(32)


def encrypt(
    builder: ir.IRBuilder, key: tuple[ir.Value, ir.Value], x0: ir.Value, x1: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Encrypt one counter, as ``ptml.bits.threefry`` does."""
    key0, key1 = key
    schedule = (key0, key1, builder.xor(builder.xor(key0, key1), _WORD(PARITY)))
    x0, x1 = builder.add(x0, key0), builder.add(x1, key1)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = builder.add(x0, x1)
            left = builder.shl(x1, _WORD(rotation))
            right = builder.lshr(x1, _WORD(32 - rotation))
            x1 = builder.xor(builder.or_(left, right), x0)
        x0 = builder.add(x0, schedule[(group + 1) % 3])
        x1 = builder.add(x1, builder.add(schedule[(group + 2) % 3], _WORD(group + 1)))
    return x0, x1
