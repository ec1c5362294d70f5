"""Convolutions by JAX's own, whose adjoints are the transposes that JAX makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from pytensor.graph.basic import Apply

from ptml.backends.native import native
from ptml.fused import one_float_dtype
from ptml.ops.convolution import Convolve, ConvolveKernel, ConvolveTransposed

_SPATIAL = "DHW"


def _of_one_dtype(node: Apply) -> bool:
    return one_float_dtype(node.inputs)


def _convolution(op: Any) -> Callable[[Any, Any], Any]:
    """Give the function of data and kernel."""
    sliding = op.sliding
    spatial = _SPATIAL[-sliding.n_spatial :]
    layout = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")

    def convolve(X: Any, W: Any) -> Any:
        return jax.lax.conv_general_dilated(
            X,
            W,
            sliding.stride,
            sliding.padding,
            rhs_dilation=sliding.dilation,
            dimension_numbers=layout,
            feature_group_count=sliding.groups,
        )

    return convolve


@native("jax", Convolve, takes=_of_one_dtype)
def jax_convolve(op: Convolve, node: Apply, **kwargs: Any) -> Callable:
    convolve = _convolution(op)

    def with_bias(X: Any, W: Any, *b: Any) -> Any:
        return convolve(X, W) + b[0] if b else convolve(X, W)

    return with_bias


@native("jax", ConvolveTransposed, takes=_of_one_dtype)
def jax_convolve_transposed(op: ConvolveTransposed, node: Apply, **kwargs: Any) -> Callable:
    convolve = _convolution(op)

    def transposed(Y: Any, W: Any, *X: Any) -> Any:
        sizes = op.data_sizes(Y.shape[1:-1], X[0].shape[1:-1] if X else None)
        data = jax.ShapeDtypeStruct((Y.shape[0], *sizes, W.shape[-2] * op.groups), Y.dtype)
        return jax.linear_transpose(lambda data: convolve(data, W), data)(Y)[0]

    return transposed


@native("jax", ConvolveKernel, takes=_of_one_dtype)
def jax_convolve_kernel(op: ConvolveKernel, node: Apply, **kwargs: Any) -> Callable:
    convolve = _convolution(op)

    def kernel(X: Any, Y: Any) -> Any:
        shape = (*op.kernel_size, X.shape[-1] // op.groups, Y.shape[-1])
        weights = jax.ShapeDtypeStruct(shape, X.dtype)
        W = jax.linear_transpose(lambda W: convolve(X, W), weights)(Y)[0]
        return (W, Y.sum(axis=tuple(range(Y.ndim - 1)))) if op.bias else W

    return kernel
