"""Convolutions by MLX's own, which takes kernels as ``(out, *kernel_size, channels / groups)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.graph.basic import Apply

from ptml.backends.native import native
from ptml.ops.convolution import Convolve, ConvolveKernel, ConvolveTransposed


def _single(node: Apply) -> bool:
    return all(variable.type.dtype == "float32" for variable in node.inputs)


def _without_cropping(node: Apply) -> bool:
    op = node.op
    ends = zip(op.padding, op.sliding.spans, strict=True)
    return _single(node) and all(max(pair) < span for pair, span in ends)


def _ungrouped(node: Apply) -> bool:
    return _single(node) and node.op.groups == 1


@native("mlx", Convolve, takes=_single)
def mlx_convolve(op: Convolve, node: Apply, **kwargs: Any) -> Callable:
    before, after = ([pair[side] for pair in op.padding] for side in (0, 1))

    def convolve(X: Any, W: Any, *b: Any) -> Any:
        Y = mx.conv_general(
            X,
            mx.moveaxis(W, -1, 0),
            stride=op.stride,
            padding=(before, after),
            kernel_dilation=op.dilation,
            groups=op.groups,
        )
        return Y + b[0] if b else Y

    return convolve


@native("mlx", ConvolveTransposed, takes=_without_cropping)
def mlx_convolve_transposed(op: ConvolveTransposed, node: Apply, **kwargs: Any) -> Callable:
    spans, groups = op.sliding.spans, op.groups
    before = [span - 1 - pair[0] for span, pair in zip(spans, op.padding, strict=True)]

    def transposed(Y: Any, W: Any, *X: Any) -> Any:
        counts = Y.shape[1:-1]
        sizes = op.data_sizes(counts, X[0].shape[1:-1] if X else None)
        *kernel, channels, out = W.shape
        after = [
            size - 1 - (count - 1) * step - first + span - 1
            for size, count, step, first, span in zip(sizes, counts, op.stride, before, spans, strict=True)
        ]
        apart = W.reshape(*kernel, channels, groups, out // groups)
        turned = mx.moveaxis(mx.moveaxis(apart, -2, 0), -2, 1)
        return mx.conv_general(
            Y,
            turned.reshape(groups * channels, *kernel, out // groups),
            padding=(before, after),
            kernel_dilation=op.dilation,
            input_dilation=op.stride,
            groups=groups,
            flip=True,
        )

    return transposed


@native("mlx", ConvolveKernel, takes=_ungrouped)
def mlx_convolve_kernel(op: ConvolveKernel, node: Apply, **kwargs: Any) -> Callable:
    before, after = ([pair[side] for pair in op.padding] for side in (0, 1))
    kept = tuple(slice(n) for n in op.kernel_size)

    def kernel(X: Any, Y: Any) -> Any:
        # The batch is what is summed over, so it takes the place of the channels.
        W = mx.conv_general(
            mx.swapaxes(X, 0, -1),
            mx.swapaxes(Y, 0, -1),
            stride=op.dilation,
            padding=(before, after),
            kernel_dilation=op.stride,
        )
        W = mx.moveaxis(W, 0, -2)[kept]
        return (W, Y.sum(axis=tuple(range(Y.ndim - 1)))) if op.bias else W

    return kernel
