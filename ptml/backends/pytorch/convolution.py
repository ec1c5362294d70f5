"""Convolutions by PyTorch's own, which have channels before the spatial axes.

They are called as they are: PyTorch's compiler has nothing to add to them, and fails on the sizes of some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pytensor.graph.basic import Apply
from torch.nn import functional as F

from ptml.backends.native import native
from ptml.fused import one_float_dtype
from ptml.ops.convolution import Convolve, ConvolveKernel, ConvolveTransposed

_FORWARD = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _of_one_dtype(node: Apply) -> bool:
    return one_float_dtype(node.inputs)


def _first(x: Any) -> Any:
    """Move channels behind the batch."""
    return torch.movedim(x, -1, 1)


def _last(x: Any) -> Any:
    return torch.movedim(x, 1, -1)


def _padded(x: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Pad, or with negative numbers crop, the spatial axes of what has channels first."""
    if not any(any(pair) for pair in pairs):
        return x
    return F.pad(x, [n for pair in reversed(pairs) for n in pair])


@native("pytorch", Convolve, takes=_of_one_dtype)
def pytorch_convolve(op: Convolve, node: Apply, **kwargs: Any) -> Callable:
    n = op.sliding.n_spatial
    convolution = _FORWARD[n]

    @torch.compiler.disable
    def convolve(X: Any, W: Any, *b: Any) -> Any:
        kernel = W.permute(n + 1, n, *range(n))
        data, bias = _padded(_first(X), op.padding), b[0] if b else None
        return _last(convolution(data, kernel, bias, op.stride, 0, op.dilation, op.groups))

    return convolve


@native("pytorch", ConvolveTransposed, takes=_of_one_dtype)
def pytorch_convolve_transposed(op: ConvolveTransposed, node: Apply, **kwargs: Any) -> Callable:
    n, spans = op.sliding.n_spatial, op.sliding.spans
    convolution = _TRANSPOSED[n]

    @torch.compiler.disable
    def transposed(Y: Any, W: Any, *X: Any) -> Any:
        counts = Y.shape[1:-1]
        sizes = op.data_sizes(counts, X[0].shape[1:-1] if X else None)
        kernel = W.permute(n + 1, n, *range(n))
        whole = convolution(_first(Y), kernel, None, op.stride, 0, 0, op.groups, op.dilation)
        cut = [
            (-before, size + before - ((count - 1) * step + span))
            for (before, _), size, count, step, span in zip(
                op.padding, sizes, counts, op.stride, spans, strict=True
            )
        ]
        return _last(_padded(whole, cut))

    return transposed


@native("pytorch", ConvolveKernel, takes=_of_one_dtype)
def pytorch_convolve_kernel(op: ConvolveKernel, node: Apply, **kwargs: Any) -> Callable:
    n = op.sliding.n_spatial

    @torch.compiler.disable
    def kernel(X: Any, Y: Any) -> Any:
        data, results = _padded(_first(X), op.padding), _first(Y)
        shape = (results.shape[1], data.shape[1] // op.groups, *op.kernel_size)
        _, weights, bias = torch.ops.aten.convolution_backward(
            results,
            data,
            data.new_empty(1).expand(shape),
            [Y.shape[-1]],
            op.stride,
            [0] * n,
            op.dilation,
            False,
            [0] * n,
            op.groups,
            [False, True, op.bias],
        )
        weights = weights.permute(*range(2, n + 2), 1, 0)
        return (weights, bias) if op.bias else weights

    return kernel
