"""Convolutional layers."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim
from ptml.declare import parameter, slot
from ptml.initializers import Initializer, XavierNormal, Zeros
from ptml.layer import Layer
from ptml.layers.spatial import LAYOUTS
from ptml.layout import check_layout
from ptml.lengths import check_length
from ptml.ops.convolution import Convolve
from ptml.ops.padding import PaddingMode, pad
from ptml.ops.windows import SPATIAL, a_padding, all_of, per_axis, resolved_padding, spans_of, wanted_axes
from ptml.validate import an_initializer, described, flag, positive_int

__all__ = ["Conv1D", "Conv2D", "Conv3D"]

#: How padding is filled, by the names that there are for it elsewhere.
FILLED: dict[str, PaddingMode] = {
    "zeros": "constant",
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "edge": "replicate",
    "circular": "circular",
    "wrap": "circular",
}
NO_SUCH_MODE = "{who}: padding_mode must be one of {modes}; got {value!r}."
GROUPS = (
    "{who}: groups must divide in_channels and out_channels; got groups={groups}, in_channels={n_in}, "
    "out_channels={n_out}. Write groups={common}, or, for a depthwise convolution, groups={n_in} and a "
    "multiple of that as out_channels."
)


def sizes(default: int | None = None, validator: Any = None) -> Any:
    """Declare a field of one number for each spatial axis, which may be given as one for all."""
    return attrs.field(
        default=attrs.NOTHING
        if default is None
        else attrs.Factory(lambda self: (default,) * self.n_spatial, takes_self=True),
        converter=attrs.Converter(per_axis, takes_self=True),
        validator=validator or all_of(1, "a positive integer"),
    )


def a_mode(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value names a way to fill padding."""
    if value not in FILLED:
        modes = ", ".join(map(repr, FILLED))
        raise ValueError(NO_SUCH_MODE.format(who=described(module), modes=modes, value=value))


def dividing_groups(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value divides the channels that come in and go out."""
    positive_int(module, field, value)
    n_in, n_out = module.in_channels, module.out_channels
    if n_in % value or n_out % value:
        common = max(n for n in range(1, value) if n_in % n == n_out % n == 0)
        raise ValueError(
            GROUPS.format(who=described(module), groups=value, n_in=n_in, n_out=n_out, common=common)
        )


def checked(layer: Any, X: TensorVariable) -> TensorVariable:
    """Check the dtype, the axes and the channels of what a layer of channels-last data is called on."""
    n_spatial = layer.n_spatial
    wants = wanted_axes(n_spatial, layer.in_channels)
    dtype = layer.W.type.dtype
    check_floating(layer, X, dtype=dtype)
    check_ndim(layer, X, minimum=n_spatial + 2, maximum=n_spatial + 2, wants=wants)
    check_layout(layer, X, LAYOUTS[n_spatial])
    return check_axis(layer, X, layer.in_channels, wants=wants).astype(dtype)


class _Convolution(Layer):
    """What convolutions have in common, whatever the number of their spatial axes."""

    in_channels: int = attrs.field(validator=positive_int)
    out_channels: int = attrs.field(validator=positive_int)
    kernel_size: Any = sizes()
    stride: Any = sizes(1)
    dilation: Any = sizes(1)
    padding: Any = attrs.field(default="valid", validator=a_padding(("valid", "same", "causal")))
    padding_mode: str = attrs.field(default="constant", validator=a_mode)
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
        spans = spans_of(self.kernel_size, self.dilation)
        pairs = resolved_padding(self.padding, spans)
        for axis, (span, pair) in enumerate(zip(spans, pairs, strict=True), start=1):
            added = f", to which padding adds {sum(pair)}" if any(pair) else ""
            X = check_length(
                self,
                X,
                span - sum(pair),
                axis=axis,
                of=f"positions (its window spans {span} in {SPATIAL[self.n_spatial][axis - 1]}{added})",
                hint="Shorten the kernel, lower the dilation, or pad more.",
            )
        filled = FILLED[self.padding_mode]
        if filled != "constant":
            X, pairs = pad(X, pairs, filled, layer=self), ((0, 0),) * self.n_spatial
        op = Convolve(self.kernel_size, self.stride, self.dilation, pairs, self.groups)
        return op(X, self.W) if self.b is None else op(X, self.W, self.b)


class Conv1D(_Convolution):
    r"""Slide a learned kernel along a sequence, for X of shape ``(batch, time, in_channels)``.

    The result is ``(batch, windows, out_channels)``. With stride s, dilation d and p elements of padding
    before,

    .. math:: y_{t,o} = b_o + \sum_{k, c} x_{t s + k d - p,\, c} \, W_{k,c,o}:

    the kernel is not turned round. This is the correlation that every library of networks calls convolution.

    Parameters
    ----------
    name : str, optional
    in_channels, out_channels : int
        The sizes of the last axis of the input and of the output.
    kernel_size : int
        How many elements a window takes.
    stride : int
        How far windows are apart; 1 unless given.
    dilation : int
        How far the elements of a window are apart; 1 unless given.
    padding : str, int or tuple
        ``"valid"``, no padding, unless given. ``"same"`` leaves ``ceil(time / stride)`` windows; where it
        needs an odd number of elements, one more is added after. ``"causal"`` adds them all before, so that
        no output sees what comes later. A number is added on either side, a pair ``(before, after)`` as it
        says.
    padding_mode : str
        What is added: ``"constant"``, which are zeros (and may be called so), unless given; ``"reflect"``,
        ``"replicate"`` (or ``"edge"``), or ``"circular"`` (or ``"wrap"``).
    groups : int
        1 unless given. Channels are divided into so many groups, which are convolved each by themselves:
        ``groups=in_channels`` is a depthwise convolution.
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
        size than `in_channels`, or if the padded input is shorter than a window.
    TypeError
        When called, if the input holds integers, or is wider than the parameters.

    Examples
    --------
    >>> from ptml.layers import Conv1D, Input
    >>> conv = Conv1D("conv", in_channels=16, out_channels=32, kernel_size=5, padding="same")
    >>> conv(Input("X", (None, 128, 16))).type.shape
    (None, 128, 32)
    >>> conv.W.slot
    Slot('conv/W', Role.PARAMETER, float64[5,16,32])
    """

    n_spatial = 1


class Conv2D(_Convolution):
    """Slide a learned kernel over images, for X of shape ``(batch, height, width, in_channels)``.

    The result is ``(batch, windows down, windows across, out_channels)``. Channels are last, here and
    everywhere: an image of another layout is refused where its sizes or its declared axes tell.

    Parameters
    ----------
    kernel_size, stride, dilation : int or tuple of int
        One for both axes, or one for each.
    padding : str, int or tuple
        As of :class:`Conv1D`, but not ``"causal"``; a tuple has a number, or a pair ``(before, after)``, for
        height and for width.
    name, in_channels, out_channels, padding_mode, groups, bias, weight_initializer, bias_initializer
        As of :class:`Conv1D`; ``W`` is ``(*kernel_size, in_channels / groups, out_channels)``.

    Examples
    --------
    >>> from ptml.layers import Conv2D, Input
    >>> conv = Conv2D("conv", in_channels=3, out_channels=16, kernel_size=3, stride=2, padding="same")
    >>> conv(Input("X", (None, 32, 32, 3))).type.shape
    (None, 16, 16, 16)
    """

    n_spatial = 2


class Conv3D(_Convolution):
    """Slide a learned kernel over volumes, for X of shape ``(batch, depth, height, width, in_channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation : int or tuple of int
        One for all three axes, or one for each.
    padding : str, int or tuple
        As of :class:`Conv2D`.
    name, in_channels, out_channels, padding_mode, groups, bias, weight_initializer, bias_initializer
        As of :class:`Conv1D`; ``W`` is ``(*kernel_size, in_channels / groups, out_channels)``.

    Examples
    --------
    >>> from ptml.layers import Conv3D, Input
    >>> conv = Conv3D("conv", in_channels=1, out_channels=8, kernel_size=(1, 3, 3))
    >>> conv(Input("X", (None, 5, 8, 8, 1))).type.shape
    (None, 5, 6, 6, 8)
    """

    n_spatial = 3
