"""Transposed convolutions: the layers that make data larger by a learned kernel."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.declare import parameter, slot
from ptml.initializers import Initializer, XavierNormal, Zeros
from ptml.layer import Layer
from ptml.layers.convolution import checked, dividing_groups, sizes
from ptml.lengths import check_length
from ptml.ops.convolution import ConvolveTransposed
from ptml.ops.windows import SPATIAL, a_padding, all_of, resolved_padding, spans_of
from ptml.validate import an_initializer, described, flag, positive_int

__all__ = ["ConvTranspose1D", "ConvTranspose2D", "ConvTranspose3D"]

TOO_MUCH_OUTPUT_PADDING = (
    "{who}: output_padding tells apart the {step} sizes that a stride of {step} makes one, and must be less "
    "than that; got {extra} along {axis}."
)


def _less_than_stride(module: Any, field: attrs.Attribute, value: Any) -> None:
    all_of(0, "an integer of 0 or more")(module, field, value)
    axes = SPATIAL[module.n_spatial]
    for extra, step, axis in zip(value, module.stride, axes, strict=True):
        if extra >= step:
            raise ValueError(
                TOO_MUCH_OUTPUT_PADDING.format(who=described(module), step=step, extra=extra, axis=axis)
            )


class _ConvolutionTransposed(Layer):
    """What transposed convolutions have in common, whatever the number of their spatial axes."""

    in_channels: int = attrs.field(validator=positive_int)
    out_channels: int = attrs.field(validator=positive_int)
    kernel_size: Any = sizes()
    stride: Any = sizes(1)
    dilation: Any = sizes(1)
    padding: Any = attrs.field(default=0, validator=a_padding(()))
    output_padding: Any = sizes(0, _less_than_stride)
    groups: int = attrs.field(default=1, validator=dividing_groups)
    bias: bool = attrs.field(default=True, validator=flag)
    weight_initializer: Initializer = attrs.field(default=XavierNormal(), validator=an_initializer)
    bias_initializer: Initializer = attrs.field(default=Zeros(), validator=an_initializer)

    n_inputs = 1
    n_spatial: ClassVar[int]

    @slot
    def W(self) -> Any:
        """The kernel, ``(*kernel_size, in_channels / groups, out_channels)``."""
        channels = self.in_channels // self.groups, self.out_channels
        return parameter((*self.kernel_size, *channels), self.weight_initializer)

    @slot
    def b(self) -> Any:
        """The bias, ``(out_channels,)``, or None without one."""
        return parameter((self.out_channels,), self.bias_initializer) if self.bias else None

    def build(self, X: TensorVariable) -> TensorVariable:
        X = checked(self, X)
        names, spans = SPATIAL[self.n_spatial], spans_of(self.kernel_size, self.dilation)
        pairs = resolved_padding(self.padding, spans)
        for axis, (span, pair, step, extra) in enumerate(
            zip(spans, pairs, self.stride, self.output_padding, strict=True), start=1
        ):
            # (length - 1) * step + span + extra - sum(pair) has to be 1 or more.
            missing = sum(pair) + 1 - span - extra
            X = check_length(
                self,
                X,
                max(-(-missing // step) + 1, 1),
                axis=axis,
                of=f"positions (padding cuts {sum(pair)} off what becomes of {names[axis - 1]})",
                hint="Cut off less, or lengthen the kernel.",
            )
        op = ConvolveTransposed(
            self.kernel_size, self.stride, self.dilation, pairs, self.groups, extra=self.output_padding
        )
        Y = op(X, self._turned())
        return Y if self.b is None else Y + self.b

    def _turned(self) -> TensorVariable:
        """Give the kernel as that convolution has it whose adjoint this is: its channels go out."""
        n, groups = self.n_spatial, self.groups
        if groups == 1:
            return pt.moveaxis(self.W, -1, -2)
        each_in, each_out = self.in_channels // groups, self.out_channels // groups
        apart = self.W.reshape((*self.kernel_size, each_in, groups, each_out))
        turned = apart.transpose(*range(n), n + 2, n + 1, n)
        return turned.reshape((*self.kernel_size, each_out, self.in_channels))


class ConvTranspose1D(_ConvolutionTransposed):
    r"""Spread each element of a sequence over a window, for X of shape ``(batch, time, in_channels)``.

    The adjoint of :class:`Conv1D` by its input: where that one sums a window into an element, this one adds
    an element, times the kernel, to a window. With a stride it makes sequences longer, as decoders do.
    Windows are added at ``t * stride``, and the result is

    ``(time - 1) * stride + dilation * (kernel_size - 1) + 1 + output_padding - padding``

    long, where padding counts both sides.

    Parameters
    ----------
    name : str, optional
    in_channels, out_channels : int
        The sizes of the last axis of the input and of the output.
    kernel_size : int
        How many elements a window has.
    stride : int
        How far windows are apart in the result; 1 unless given.
    dilation : int
        How far the elements of a window are apart; 1 unless given.
    padding : int or tuple
        How many elements are cut off either side of the result, or a pair ``(before, after)``: what the
        convolution that this is the adjoint of adds to its input. 0 unless given.
    output_padding : int
        By how much the result is longer at its end, less than the stride: several lengths give a convolution
        of a stride as many windows, and this says which is meant. 0 unless given.
    groups : int
        As of :class:`Conv1D`.
    bias : bool
        Whether there is a ``b``; True unless given.
    weight_initializer : Initializer
        Of ``W``, ``(kernel_size, in_channels / groups, out_channels)``; ``XavierNormal()`` unless given.
    bias_initializer : Initializer
        Of ``b``; ``Zeros()`` unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if the last axis has another
        size than `in_channels`, or if padding cuts off all there is.
    TypeError
        When called, if the input holds integers, or is wider than the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import ConvTranspose1D, Input
    >>> up = ConvTranspose1D("up", in_channels=1, out_channels=1, kernel_size=3, stride=2, bias=False)
    >>> X = Input("X", (None, 3, 1))
    >>> state = ptml.init(up, seed=0).replace({"up/W": np.array([1.0, 10.0, 100.0]).reshape(3, 1, 1)})
    >>> ptml.compile_predict(up(X), state=state)(np.array([[[1.0], [2.0], [3.0]]])).ravel()
    array([  1.,  10., 102.,  20., 203.,  30., 300.])
    """

    n_spatial = 1


class ConvTranspose2D(_ConvolutionTransposed):
    """Spread each pixel over a window, for X of shape ``(batch, height, width, in_channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation, output_padding : int or tuple of int
        One for both axes, or one for each.
    padding : int or tuple
        A number, or a tuple with a number or a pair ``(before, after)`` for height and for width.
    name, in_channels, out_channels, groups, bias, weight_initializer, bias_initializer
        As of :class:`ConvTranspose1D`; ``W`` is ``(*kernel_size, in_channels / groups, out_channels)``.

    Examples
    --------
    >>> from ptml.layers import ConvTranspose2D, Input
    >>> up = ConvTranspose2D("up", in_channels=64, out_channels=32, kernel_size=4, stride=2, padding=1)
    >>> up(Input("X", (None, 8, 8, 64))).type.shape
    (None, 16, 16, 32)
    """

    n_spatial = 2


class ConvTranspose3D(_ConvolutionTransposed):
    """Spread each voxel over a window, for X of shape ``(batch, depth, height, width, in_channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation, output_padding : int or tuple of int
        One for all three axes, or one for each.
    padding : int or tuple
        As of :class:`ConvTranspose2D`.
    name, in_channels, out_channels, groups, bias, weight_initializer, bias_initializer
        As of :class:`ConvTranspose1D`; ``W`` is ``(*kernel_size, in_channels / groups, out_channels)``.

    Examples
    --------
    >>> from ptml.layers import ConvTranspose3D, Input
    >>> up = ConvTranspose3D("up", in_channels=8, out_channels=1, kernel_size=2, stride=2)
    >>> up(Input("X", (None, 4, 4, 4, 8))).type.shape
    (None, 8, 8, 8, 1)
    """

    n_spatial = 3
