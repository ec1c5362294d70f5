"""Layers that pad the spatial axes of data."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.layers.spatial import Spatial
from ptml.ops.padding import PaddingMode, pad
from ptml.ops.windows import a_padding, resolved_padding
from ptml.validate import described

__all__ = [
    "CircularPad1D",
    "CircularPad2D",
    "CircularPad3D",
    "ConstantPad1D",
    "ConstantPad2D",
    "ConstantPad3D",
    "ReflectionPad1D",
    "ReflectionPad2D",
    "ReflectionPad3D",
    "ReplicationPad1D",
    "ReplicationPad2D",
    "ReplicationPad3D",
    "ZeroPad1D",
    "ZeroPad2D",
    "ZeroPad3D",
]

NO_NUMBER = "{who}: value must be a number; got {value!r}."


def a_number(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is a number, an infinite one or NaN included."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(NO_NUMBER.format(who=described(module), value=value))


class _Pads(Spatial):
    """What layers that pad have in common."""

    padding: Any = attrs.field(default=0, validator=a_padding(()))

    mode: ClassVar[PaddingMode] = "constant"

    def build(self, X: TensorVariable) -> TensorVariable:
        X = self.checked(X, floating=False)
        pairs = resolved_padding(self.padding, (1,) * self.n_spatial)
        return pad(X, pairs, self.mode, getattr(self, "value", 0.0), layer=self)


class _ConstantPad(_Pads):
    """What layers that pad with a value have in common."""

    value: float = attrs.field(default=0.0, validator=a_number)


class ZeroPad1D(_Pads):
    """Put zeros before and after a sequence, for X of shape ``(batch, time, channels)``.

    Parameters
    ----------
    name : str, optional
    padding : int or pair of int
        How much is put at either end, or ``(before, after)``; 0 unless given.

    Examples
    --------
    >>> from ptml.layers import Input, ZeroPad1D
    >>> ZeroPad1D(padding=(2, 1))(Input("X", (None, 100, 16))).type.shape
    (None, 103, 16)
    """

    n_spatial = 1


class ZeroPad2D(_Pads):
    """Put zeros around images, for X of shape ``(batch, height, width, channels)``.

    Parameters
    ----------
    name : str, optional
    padding : int, pair of int or pair of pair of int
        How much is put on all sides, along each axis, or ``((top, bottom), (left, right))``; 0 unless given.

    Examples
    --------
    >>> from ptml.layers import Input, ZeroPad2D
    >>> ZeroPad2D(padding=1)(Input("X", (None, 32, 32, 3))).type.shape
    (None, 34, 34, 3)
    """

    n_spatial = 2


class ZeroPad3D(_Pads):
    """Put zeros around volumes, for X of shape ``(batch, depth, height, width, channels)``.

    Parameters
    ----------
    name : str, optional
    padding : int, tuple of int or tuple of pair of int
        How much is put on all sides, along each axis, or before and after each; 0 unless given.

    Examples
    --------
    >>> from ptml.layers import Input, ZeroPad3D
    >>> ZeroPad3D(padding=(0, 1, 1))(Input("X", (None, 8, 32, 32, 1))).type.shape
    (None, 8, 34, 34, 1)
    """

    n_spatial = 3


class ConstantPad1D(_ConstantPad):
    """Put a value before and after a sequence, for X of shape ``(batch, time, channels)``.

    Parameters
    ----------
    name : str, optional
    padding : int or pair of int
        How much is put at either end, or ``(before, after)``; 0 unless given.
    value : float
        What is put there; 0 unless given.

    Examples
    --------
    >>> from ptml.layers import ConstantPad1D, Input
    >>> ConstantPad1D(padding=(2, 1), value=-1.0)(Input("X", (None, 100, 16))).type.shape
    (None, 103, 16)
    """

    n_spatial = 1


class ConstantPad2D(_ConstantPad):
    """Put a value around images, for X of shape ``(batch, height, width, channels)``.

    Parameters
    ----------
    name : str, optional
    padding : int, pair of int or pair of pair of int
        How much is put on all sides, along each axis, or ``((top, bottom), (left, right))``; 0 unless given.
    value : float
        What is put there; 0 unless given.

    Examples
    --------
    >>> from ptml.layers import ConstantPad2D, Input
    >>> ConstantPad2D(padding=1, value=-1.0)(Input("X", (None, 32, 32, 3))).type.shape
    (None, 34, 34, 3)
    """

    n_spatial = 2


class ConstantPad3D(_ConstantPad):
    """Put a value around volumes, for X of shape ``(batch, depth, height, width, channels)``.

    Parameters
    ----------
    name : str, optional
    padding : int, tuple of int or tuple of pair of int
        How much is put on all sides, along each axis, or before and after each; 0 unless given.
    value : float
        What is put there; 0 unless given.

    Examples
    --------
    >>> from ptml.layers import ConstantPad3D, Input
    >>> ConstantPad3D(padding=(0, 1, 1), value=-1.0)(Input("X", (None, 8, 32, 32, 1))).type.shape
    (None, 8, 34, 34, 1)
    """

    n_spatial = 3


class ReflectionPad1D(_Pads):
    """Continue a sequence by mirror image, for X of shape ``(batch, time, channels)``.

    The value at the edge is the mirror's place, and is not repeated: ``abcd`` becomes ``cbabcdcb``.

    Parameters
    ----------
    name : str, optional
    padding : int or pair of int
        How much is put at either end, or ``(before, after)``; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is no longer than what is put there.

    Examples
    --------
    >>> from ptml.layers import Input, ReflectionPad1D
    >>> ReflectionPad1D(padding=(2, 1))(Input("X", (None, 100, 16))).type.shape
    (None, 103, 16)
    """

    n_spatial = 1
    mode = "reflect"


class ReflectionPad2D(_Pads):
    """Continue images by mirror images, for X of shape ``(batch, height, width, channels)``.

    Along each axis as in :class:`ReflectionPad1D`.

    Parameters
    ----------
    name : str, optional
    padding : int, pair of int or pair of pair of int
        How much is put on all sides, along each axis, or ``((top, bottom), (left, right))``; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is no longer than what is put there.

    Examples
    --------
    >>> from ptml.layers import Input, ReflectionPad2D
    >>> ReflectionPad2D(padding=1)(Input("X", (None, 32, 32, 3))).type.shape
    (None, 34, 34, 3)
    """

    n_spatial = 2
    mode = "reflect"


class ReflectionPad3D(_Pads):
    """Continue volumes by mirror images, for X of shape ``(batch, depth, height, width, channels)``.

    Along each axis as in :class:`ReflectionPad1D`.

    Parameters
    ----------
    name : str, optional
    padding : int, tuple of int or tuple of pair of int
        How much is put on all sides, along each axis, or before and after each; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is no longer than what is put there.

    Examples
    --------
    >>> from ptml.layers import Input, ReflectionPad3D
    >>> ReflectionPad3D(padding=(0, 1, 1))(Input("X", (None, 8, 32, 32, 1))).type.shape
    (None, 8, 34, 34, 1)
    """

    n_spatial = 3
    mode = "reflect"


class ReplicationPad1D(_Pads):
    """Continue a sequence by the values at its ends, for X of shape ``(batch, time, channels)``.

    ``abcd`` becomes ``aaabcddd``.

    Parameters
    ----------
    name : str, optional
    padding : int or pair of int
        How much is put at either end, or ``(before, after)``; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is empty.

    Examples
    --------
    >>> from ptml.layers import Input, ReplicationPad1D
    >>> ReplicationPad1D(padding=(2, 1))(Input("X", (None, 100, 16))).type.shape
    (None, 103, 16)
    """

    n_spatial = 1
    mode = "replicate"


class ReplicationPad2D(_Pads):
    """Continue images by the values at their edges, for X of shape ``(batch, height, width, channels)``.

    Along each axis as in :class:`ReplicationPad1D`.

    Parameters
    ----------
    name : str, optional
    padding : int, pair of int or pair of pair of int
        How much is put on all sides, along each axis, or ``((top, bottom), (left, right))``; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is empty.

    Examples
    --------
    >>> from ptml.layers import Input, ReplicationPad2D
    >>> ReplicationPad2D(padding=1)(Input("X", (None, 32, 32, 3))).type.shape
    (None, 34, 34, 3)
    """

    n_spatial = 2
    mode = "replicate"


class ReplicationPad3D(_Pads):
    """Continue volumes by their outermost values, for X of shape ``(batch, depth, height, width, channels)``.

    Along each axis as in :class:`ReplicationPad1D`.

    Parameters
    ----------
    name : str, optional
    padding : int, tuple of int or tuple of pair of int
        How much is put on all sides, along each axis, or before and after each; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is empty.

    Examples
    --------
    >>> from ptml.layers import Input, ReplicationPad3D
    >>> ReplicationPad3D(padding=(0, 1, 1))(Input("X", (None, 8, 32, 32, 1))).type.shape
    (None, 8, 34, 34, 1)
    """

    n_spatial = 3
    mode = "replicate"


class CircularPad1D(_Pads):
    """Continue a sequence periodically, for X of shape ``(batch, time, channels)``.

    ``abcd`` becomes ``cdabcdab``.

    Parameters
    ----------
    name : str, optional
    padding : int or pair of int
        How much is put at either end, or ``(before, after)``; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is shorter than what is put there.

    Examples
    --------
    >>> from ptml.layers import CircularPad1D, Input
    >>> CircularPad1D(padding=(2, 1))(Input("X", (None, 100, 16))).type.shape
    (None, 103, 16)
    """

    n_spatial = 1
    mode = "circular"


class CircularPad2D(_Pads):
    """Continue images periodically, for X of shape ``(batch, height, width, channels)``.

    Along each axis as in :class:`CircularPad1D`.

    Parameters
    ----------
    name : str, optional
    padding : int, pair of int or pair of pair of int
        How much is put on all sides, along each axis, or ``((top, bottom), (left, right))``; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is shorter than what is put there.

    Examples
    --------
    >>> from ptml.layers import CircularPad2D, Input
    >>> CircularPad2D(padding=1)(Input("X", (None, 32, 32, 3))).type.shape
    (None, 34, 34, 3)
    """

    n_spatial = 2
    mode = "circular"


class CircularPad3D(_Pads):
    """Continue volumes periodically, for X of shape ``(batch, depth, height, width, channels)``.

    Along each axis as in :class:`CircularPad1D`.

    Parameters
    ----------
    name : str, optional
    padding : int, tuple of int or tuple of pair of int
        How much is put on all sides, along each axis, or before and after each; 0 unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis that is padded
        is shorter than what is put there.

    Examples
    --------
    >>> from ptml.layers import CircularPad3D, Input
    >>> CircularPad3D(padding=(0, 1, 1))(Input("X", (None, 8, 32, 32, 1))).type.shape
    (None, 8, 34, 34, 1)
    """

    n_spatial = 3
    mode = "circular"
