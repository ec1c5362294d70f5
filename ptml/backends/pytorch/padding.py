"""PyTorch kernels of padding and its adjoint: PyTensor's indexing there takes no negative steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ptml.backends.native import native
from ptml.ops.padding import Pad, PadGradient


def _ends(op: Any, x: torch.Tensor, axis: int, before: int, after: int) -> list[torch.Tensor]:
    """Give the parts of an axis that are put before and after it."""
    n = x.shape[axis]
    if op.mode == "reflect":
        return [x.narrow(axis, 1, before).flip(axis), x.narrow(axis, n - 1 - after, after).flip(axis)]
    if op.mode == "circular":
        return [x.narrow(axis, n - before, before), x.narrow(axis, 0, after)]
    return [
        x.narrow(axis, 0, 1).repeat_interleave(before, axis),
        x.narrow(axis, n - 1, 1).repeat_interleave(after, axis),
    ]


@native("pytorch", Pad)
def pytorch_pad(op: Pad, **kwargs: Any) -> Callable:
    if op.mode == "constant":
        # PyTorch counts axes from the end, and the channels are last.
        flat = [0, 0, *(width for pair in reversed(op.widths) for width in pair)]
        return lambda x: torch.nn.functional.pad(x, flat, value=op.value)

    def padded(x: torch.Tensor) -> torch.Tensor:
        for axis, (before, after) in enumerate(op.widths, start=1):
            if before or after:
                first, last = _ends(op, x, axis, before, after)
                x = torch.cat([first, x, last], dim=axis)
        return x

    return padded


@native("pytorch", PadGradient)
def pytorch_pad_gradient(op: PadGradient, **kwargs: Any) -> Callable:
    def added(inner: torch.Tensor, axis: int, at: int, part: torch.Tensor) -> torch.Tensor:
        n, rest = inner.shape[axis], part.shape[axis]
        flat = [0, 0] * (inner.ndim - 1 - axis)
        return inner + torch.nn.functional.pad(part, [*flat, at, n - at - rest])

    def unpadded(g: torch.Tensor) -> torch.Tensor:
        for axis, (before, after) in reversed(list(enumerate(op.widths, start=1))):
            n = g.shape[axis] - before - after
            first, last = g.narrow(axis, 0, before), g.narrow(axis, before + n, after)
            inner = g.narrow(axis, before, n)
            if op.mode == "reflect":
                parts = [(1, first.flip(axis)), (n - 1 - after, last.flip(axis))]
            elif op.mode == "circular":
                parts = [(n - before, first), (0, last)]
            else:
                parts = [(0, first.sum(axis, keepdim=True)), (n - 1, last.sum(axis, keepdim=True))]
            for width, (at, part) in zip((before, after), parts, strict=True):
                if width and op.mode != "constant":
                    inner = added(inner, axis, at, part)
            g = inner
        return g

    return unpadded
