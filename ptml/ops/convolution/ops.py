"""Convolution and its two adjoints, as fused ops: each one's gradients are the other two.

With data X of shape ``(batch, *sizes, channels)``, a kernel W of shape
``(*kernel_size, channels / groups, out)`` and a result Y of shape ``(batch, *windows, out)``, the form

.. math:: \\langle Y, \\mathrm{conv}(X, W) \\rangle
    = \\sum_{b, i, k, c, o} Y_{b,i,o} \\, X_{b,\\, i s + k d - p,\\, c} \\, W_{k,c,o}

is linear in each of the three. `Convolve` gives Y of X and W, `ConvolveTransposed` X of Y and W, and
`ConvolveKernel` W of X and Y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused, one_float_dtype
from ptml.ops.convolution.shapes import Pairs, Sliding, sizes_of

__all__ = ["Convolve", "ConvolveKernel", "ConvolveTransposed"]


class _Convolution(Fused):
    """An op of the form; its properties are those of `Sliding`."""

    __props__: tuple[str, ...] = ("kernel_size", "stride", "dilation", "padding", "groups")

    def __init__(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[Sequence[int]],
        groups: int = 1,
    ) -> None:
        self.kernel_size, self.stride, self.dilation = tuple(kernel_size), tuple(stride), tuple(dilation)
        self.padding: Pairs = tuple((before, after) for before, after in padding)
        self.groups = groups

    @property
    def sliding(self) -> Sliding:
        """How the kernel slides."""
        return Sliding(self.kernel_size, self.stride, self.dilation, self.padding, self.groups)

    def like_this(self, op: type[_Convolution], **more: Any) -> Any:
        """Give another op of the same form."""
        return op(self.kernel_size, self.stride, self.dilation, self.padding, self.groups, **more)

    def transposed(self, Y: Variable, W: Variable, X: Variable) -> Variable:
        """Apply the adjoint by the data X, whose numbers it does not need."""
        sizes = X.type.shape[1:-1]
        if all(s == 1 for s in self.stride):
            return self.like_this(ConvolveTransposed, extra=(0,) * len(sizes))(Y, W)
        if None in sizes:
            return self.like_this(ConvolveTransposed, extra=None)(Y, W, X)
        sliding = self.sliding
        least = sliding.least_input_sizes(sliding.output_sizes(sizes))
        extra = tuple(n - fewest for n, fewest in zip(sizes, least, strict=True))
        return self.like_this(ConvolveTransposed, extra=extra)(Y, W)

    def by_group(self, W: TensorVariable) -> TensorVariable:
        """Give a kernel as matrices: ``(taps * channels, out)``, one for each group where there are more."""
        *_, channels, out = sizes_of(W)
        rows, groups = self.sliding.n_taps * channels, self.groups
        if groups == 1:
            return W.reshape((rows, out))
        return W.reshape((rows, groups, out // groups)).transpose(1, 0, 2)

    def rows(self, windows: TensorVariable) -> TensorVariable:
        """Give windows as the rows of matrices, as `by_group` gives kernels."""
        *positions, taps, channels = sizes_of(windows)
        n, groups = _product(positions), self.groups
        if groups == 1:
            return windows.reshape((n, taps * channels))
        each = channels // groups
        apart = windows.reshape((n, taps, groups, each)).transpose(2, 0, 1, 3)
        return apart.reshape((groups, n, taps * each))

    def outputs_by_group(self, Y: TensorVariable) -> TensorVariable:
        """Give results as the rows of matrices."""
        *positions, out = sizes_of(Y)
        n, groups = _product(positions), self.groups
        if groups == 1:
            return Y.reshape((n, out))
        return Y.reshape((n, groups, out // groups)).transpose(1, 0, 2)


def _product(sizes: Sequence[Any]) -> Any:
    total = sizes[0]
    for size in sizes[1:]:
        total = total * size
    return total


def _transposed(matrices: TensorVariable) -> TensorVariable:
    return pt.moveaxis(matrices, -1, -2)


class Convolve(_Convolution):
    r"""Slide a kernel over data, as networks do: a correlation, nothing is flipped.

    The op is applied to ``(X, W)``, or to ``(X, W, b)`` with a bias for each output channel:

    .. math:: y_{b,i,o} = b_o + \sum_{k, c} x_{b,\, i s + k d - p,\, c} \, W_{k,c,o}

    Parameters
    ----------
    kernel_size, stride, dilation : sequence of int
        One for each spatial axis.
    padding : sequence of pair of int
        The zeros before and after the data along each axis. They are counted, not written.
    groups : int
        1 unless given. Output channels of a group see the input channels of that group only.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.convolution import Convolve
    >>> x = pt.constant(np.array([1.0, 2.0, 3.0]).reshape(1, 3, 1))
    >>> w = pt.constant(np.array([1.0, 10.0]).reshape(2, 1, 1))
    >>> Convolve((2,), (1,), (1,), ((1, 0),))(x, w).eval().ravel()
    array([10., 21., 32.])
    """

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        X, W = inputs[:2]
        if not one_float_dtype(inputs):
            return super().output_types(*inputs)
        windows = self.sliding.output_sizes(X.type.shape[1:-1])
        return [X.type.clone(shape=(X.type.shape[0], *windows, W.type.shape[-1]))]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        batch, *sizes, _ = shapes[0]
        return [(batch, *self.sliding.output_sizes(sizes), shapes[1][-1])]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True] for _ in node.inputs]

    def build(self, X: TensorVariable, W: TensorVariable, b: TensorVariable | None = None) -> list[Variable]:
        batch, *sizes, _ = sizes_of(X)
        windows = self.sliding.output_sizes(sizes)
        rows = self.rows(self.sliding.windows(X, windows))
        product = rows @ self.by_group(W)
        if self.groups > 1:
            product = product.transpose(1, 0, 2)
        Y = product.reshape((batch, *windows, sizes_of(W)[-1]))
        return [Y if b is None else Y + b]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        X, W, *bias = inputs
        [g] = cotangents
        by_kernel = self.like_this(ConvolveKernel, bias=bool(bias))(X, g, return_list=True)
        return [self.transposed(g, W, X), *by_kernel]


class ConvolveTransposed(_Convolution):
    r"""Spread each element over the window that a convolution would have made it of: its adjoint by the data.

    The op is applied to ``(Y, W)``, of the shapes that `Convolve` has them in, or to ``(Y, W, X)``:

    .. math:: x_{b,j,c} = \sum_{i, k, o \,:\, i s + k d - p = j} y_{b,i,o} \, W_{k,c,o}

    Parameters
    ----------
    kernel_size, stride, dilation, padding, groups
        Those of the convolution.
    extra : sequence of int, optional
        By how much the result is longer, along each axis, than the shortest data with so many windows. None
        gives it the spatial sizes of X, which is an input for that alone.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.convolution import ConvolveTransposed
    >>> y = pt.constant(np.array([1.0, 2.0, 3.0]).reshape(1, 3, 1))
    >>> w = pt.constant(np.array([1.0, 10.0, 100.0]).reshape(3, 1, 1))
    >>> ConvolveTransposed((3,), (2,), (1,), ((0, 0),), extra=(0,))(y, w).eval().ravel()
    array([  1.,  10., 102.,  20., 203.,  30., 300.])
    """

    __props__ = (*_Convolution.__props__, "extra")

    def __init__(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[Sequence[int]],
        groups: int = 1,
        extra: Sequence[int] | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, dilation, padding, groups)
        self.extra = None if extra is None else tuple(extra)

    def data_sizes(self, counts: Sequence[Any], like: Sequence[Any] | None) -> list[Any]:
        """Give the spatial sizes of the result, of those of Y and, where `extra` is None, of X."""
        if self.extra is None:
            return list(like or ())
        least = self.sliding.least_input_sizes(counts)
        return [None if n is None else n + more for n, more in zip(least, self.extra, strict=True)]

    def _channels(self, W: Any) -> Any:
        return None if W is None else W * self.groups

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        Y, W, *like = inputs
        if not one_float_dtype((Y, W)):
            return super().output_types(*inputs)
        sizes = self.data_sizes(Y.type.shape[1:-1], like[0].type.shape[1:-1] if like else None)
        return [Y.type.clone(shape=(Y.type.shape[0], *sizes, self._channels(W.type.shape[-2])))]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        (batch, *counts, _), W, *like = shapes
        sizes = self.data_sizes(counts, like[0][1:-1] if like else None)
        return [(batch, *sizes, self._channels(W[-2]))]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True], [False]][: len(node.inputs)]

    def build(self, Y: TensorVariable, W: TensorVariable, X: TensorVariable | None = None) -> list[Variable]:
        batch, *counts, _ = sizes_of(Y)
        sizes = self.data_sizes(counts, None if X is None else sizes_of(X)[1:-1])
        channels, taps = sizes_of(W)[-2], self.sliding.n_taps
        kernel = self.by_group(W)
        products = self.outputs_by_group(Y) @ _transposed(kernel)
        if self.groups > 1:
            n = _product([batch, *counts])
            products = products.reshape((self.groups, n, taps, channels)).transpose(1, 2, 0, 3)
        windows = products.reshape((batch, *counts, taps, self._channels(channels)))
        return [self.sliding.scattered(windows, sizes)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        Y, W, *like = inputs
        [g] = cotangents
        found = [self.like_this(Convolve)(g, W), self.like_this(ConvolveKernel)(g, Y)]
        return found + [disconnected_type() for _ in like]


class ConvolveKernel(_Convolution):
    r"""Multiply every window of data by what it is to give, and add up: the adjoint by the kernel.

    The op is applied to ``(X, Y)``, of the shapes that `Convolve` has them in:

    .. math:: W_{k,c,o} = \sum_{b, i} x_{b,\, i s + k d - p,\, c} \, y_{b,i,o}

    Parameters
    ----------
    kernel_size, stride, dilation, padding, groups
        Those of the convolution.
    bias : bool
        Whether there is a second result, the adjoint by a bias: the sum of Y for each output channel. False
        unless given.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.convolution import ConvolveKernel
    >>> x = pt.constant(np.array([1.0, 2.0, 3.0]).reshape(1, 3, 1))
    >>> y = pt.constant(np.array([1.0, 10.0]).reshape(1, 2, 1))
    >>> ConvolveKernel((2,), (1,), (1,), ((0, 0),))(x, y).eval().ravel()
    array([21., 32.])
    """

    __props__ = (*_Convolution.__props__, "bias")

    def __init__(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[Sequence[int]],
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, dilation, padding, groups)
        self.bias = bias

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        X, Y = inputs
        if not one_float_dtype(inputs):
            return super().output_types(*inputs)
        channels, out = X.type.shape[-1], Y.type.shape[-1]
        each = None if channels is None else channels // self.groups
        shapes = [(*self.kernel_size, each, out), (out,)]
        return [X.type.clone(shape=shape) for shape in shapes[: 1 + self.bias]]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        sizes = [pt.constant(n, dtype="int64") for n in self.kernel_size]
        found = [(*sizes, shapes[0][-1] // self.groups, shapes[1][-1]), (shapes[1][-1],)]
        return found[: 1 + self.bias]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True, False][: 1 + self.bias], [True] * (1 + self.bias)]

    def build(self, X: TensorVariable, Y: TensorVariable) -> list[Variable]:
        channels = sizes_of(X)[-1]
        _, *counts, out = sizes_of(Y)
        rows = self.rows(self.sliding.windows(X, counts))
        product = _transposed(rows) @ self.outputs_by_group(Y)
        if self.groups > 1:
            product = product.transpose(1, 0, 2)
        W = product.reshape((*self.kernel_size, channels // self.groups, out))
        return [W, Y.sum(axis=tuple(range(Y.type.ndim - 1)))] if self.bias else [W]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        X, Y = inputs
        g, *of_bias = cotangents
        of_bias = [b for b in of_bias if not isinstance(b.type, DisconnectedType)]
        if isinstance(g.type, DisconnectedType):
            return [disconnected_type(), *(pt.broadcast_to(b, Y.shape) for b in of_bias)]
        return [self.transposed(Y, g, X), self.like_this(Convolve)(X, g, *of_bias)]
