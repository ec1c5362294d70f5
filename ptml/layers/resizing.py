"""Layers that resize images, sequences and volumes."""

from __future__ import annotations

from typing import Any

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.layers.spatial import Spatial, check_nonempty
from ptml.ops.resizing import Resize, Resizing
from ptml.ops.windows import all_of, per_axis
from ptml.validate import described, flag

__all__ = ["Upsample1D", "Upsample2D", "Upsample3D"]

ONE_OF_THEM = (
    "{who} takes either scale_factor or size; got scale_factor={factor} and size={size}. Write "
    "scale_factor=2 to double the axes, or size for what they are to become."
)
NO_SUCH_MODE = "{who}: mode must be one of {modes}; got {mode!r}."
NO_CORNERS = (
    "{who}: align_corners is of no meaning for mode='nearest', which takes elements as they are. Leave it "
    "out, or write mode={mode!r}."
)

#: The names of interpolation, by how many axes there are: PyTorch has one for each.
MODES: dict[int, dict[str, Resizing]] = {
    1: {"nearest": "nearest", "linear": "linear", "cubic": "cubic"},
    2: {
        "nearest": "nearest",
        "bilinear": "linear",
        "bicubic": "cubic",
        "linear": "linear",
        "cubic": "cubic",
    },
    3: {
        "nearest": "nearest",
        "trilinear": "linear",
        "tricubic": "cubic",
        "linear": "linear",
        "cubic": "cubic",
    },
}

sizes_or_none = attrs.validators.optional(all_of(1, "a positive integer"))
each_axis: Any = attrs.Converter(per_axis, takes_self=True)


def a_mode(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value names a way to interpolate."""
    known = MODES[module.n_spatial]
    if not isinstance(value, str) or value not in known:
        modes = ", ".join(map(repr, known))
        raise ValueError(NO_SUCH_MODE.format(who=described(module), modes=modes, mode=value))


class _Upsample(Spatial):
    """What resizing has in common, whatever the number of axes."""

    scale_factor: Any = attrs.field(default=None, converter=each_axis, validator=sizes_or_none)
    size: Any = attrs.field(default=None, converter=each_axis, validator=sizes_or_none)
    mode: str = attrs.field(default="nearest", validator=a_mode)
    align_corners: bool = attrs.field(default=False, validator=flag)

    def __attrs_post_init__(self) -> None:
        if (self.scale_factor is None) == (self.size is None):
            raise ValueError(
                ONE_OF_THEM.format(who=described(self), factor=self.scale_factor, size=self.size)
            )
        if self.align_corners and self.mode == "nearest":
            mode = list(MODES[self.n_spatial])[1]
            raise ValueError(NO_CORNERS.format(who=described(self), mode=mode))

    def build(self, X: TensorVariable) -> TensorVariable:
        X = check_nonempty(self, self.checked(X), "of none there is nothing to enlarge")
        mode, none = MODES[self.n_spatial][self.mode], (0,) * self.n_spatial
        for axis, size, factor in zip(
            range(1, self.n_spatial + 1), self.size or none, self.scale_factor or none, strict=True
        ):
            if factor != 1 and size != X.type.shape[axis]:
                X = Resize(axis, mode, size, factor, self.align_corners)(X)
        return X


class Upsample1D(_Upsample):
    """Resize sequences, for X of shape ``(batch, time, channels)``.

    Parameters
    ----------
    name : str, optional
    scale_factor : int, optional
        By what the number of positions is multiplied. Either this or `size` is given.
    size : int, optional
        The number of positions there are to be: fewer than before will do too.
    mode : {"nearest", "linear", "cubic"}
        Whether new positions have the value of an old one (the one before, of several), or lie on the line or
        the cubic through their neighbours; ``"nearest"`` unless given.
    align_corners : bool
        Whether the first and the last position stay at the ends, and all others are spread between them. Else
        each position is the middle of an interval of length 1, and what these cover together is kept. False
        unless given.

    Raises
    ------
    ValueError
        If not one of `scale_factor` and `size` is given, or `align_corners` with ``"nearest"``. When called,
        or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    References
    ----------
    Keys, "Cubic convolution interpolation for digital image processing" (1981), with a = -0.75.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, Upsample1D
    >>> X = Input("X", (None, 2, 1))
    >>> twice = Upsample1D(scale_factor=2, mode="linear")(X)
    >>> ptml.function([X], twice)(np.array([0.0, 1.0]).reshape(1, 2, 1)).ravel()
    array([0.  , 0.25, 0.75, 1.  ])
    """

    n_spatial = 1


class Upsample2D(_Upsample):
    """Resize images, for X of shape ``(batch, height, width, channels)``, along one axis after the other.

    Parameters
    ----------
    scale_factor, size : int or tuple of int, optional
        As of :class:`Upsample1D`, for both axes or for each.
    mode : {"nearest", "bilinear", "bicubic"}
        As of :class:`Upsample1D`; ``"linear"`` and ``"cubic"`` mean the same here.
    align_corners : bool
        As of :class:`Upsample1D`.

    Raises
    ------
    ValueError, TypeError
        As :class:`Upsample1D` does.

    Examples
    --------
    >>> from ptml.layers import Input, Upsample2D
    >>> Upsample2D(scale_factor=2, mode="bilinear")(Input("X", (None, 16, 16, 3))).type.shape
    (None, 32, 32, 3)
    """

    n_spatial = 2


class Upsample3D(_Upsample):
    """Resize volumes, for X of shape ``(batch, depth, height, width, channels)``.

    Parameters
    ----------
    scale_factor, size : int or tuple of int, optional
        As of :class:`Upsample1D`, for all axes or for each.
    mode : {"nearest", "trilinear", "tricubic"}
        As of :class:`Upsample1D`; ``"linear"`` and ``"cubic"`` mean the same here.
    align_corners : bool
        As of :class:`Upsample1D`.

    Raises
    ------
    ValueError, TypeError
        As :class:`Upsample1D` does.

    Examples
    --------
    >>> from ptml.layers import Input, Upsample3D
    >>> Upsample3D(size=(4, 16, 16))(Input("X", (None, 2, 8, 8, 3))).type.shape
    (None, 4, 16, 16, 3)
    """

    n_spatial = 3
