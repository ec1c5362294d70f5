"""The input of a network."""

from __future__ import annotations

from collections.abc import Sequence

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.axes import declare_axes, parsed_axes

__all__ = ["Input"]

BAD_NAME = "Input's `name` must be a string; got {given!r}. Write Input({suggestion})."
BAD_SHAPE = (
    "Input {name!r}: shape must be a tuple of sizes, None where a size is not known, such as (None, 64); "
    "got {shape!r}."
)


def Input(
    name: str, shape: Sequence[int | None], dtype: str | None = None, *, axes: str | None = None
) -> TensorVariable:
    """Make a tensor that data enters by.

    Parameters
    ----------
    name : str
        Its name in printed graphs and errors.
    shape : tuple of int or None
        Its shape, None for sizes that differ from batch to batch.
    dtype : str, optional
        ``floatX`` unless given; ``"int64"`` for tokens and labels.
    axes : str, optional
        What the axes are, a letter for each: N batch, C channels, D depth, H height, W width, T time, L
        length, as in ``"NCHW"``. A layer that takes them in another order then refuses the input, also where
        the sizes would fit, and says which transpose to write. The declaration goes along with what keeps
        the axes apart: elementwise functions, transposes, reductions, slices, and layers of such a layout.

    Returns
    -------
    tensor
        An ordinary PyTensor variable.

    Raises
    ------
    TypeError
        If the name is no string, the shape no tuple of sizes, or `axes` no string.
    ValueError
        If a size is negative, or `axes` has not one letter of its own, of those above, for each axis.

    Examples
    --------
    >>> from ptml.layers import Input
    >>> Input("X", (None, 64)).type.shape
    (None, 64)
    >>> Input("tokens", (None, 128), dtype="int64").type.dtype
    'int64'
    >>> from ptml.layers import BatchNorm
    >>> images = Input("images", (None, 32, 32, 32), axes="NCHW")
    >>> BatchNorm("bn", n_in=32)(images.transpose(0, 2, 3, 1)).type.shape
    (None, 32, 32, 32)
    """
    if not isinstance(name, str):
        raise TypeError(BAD_NAME.format(given=name, suggestion=f"'X', {name!r}"))
    if not isinstance(shape, tuple | list) or not all(
        size is None or (hasattr(size, "__index__") and not isinstance(size, bool)) for size in shape
    ):
        raise TypeError(BAD_SHAPE.format(name=name, shape=shape))
    sizes = tuple(None if size is None else int(size) for size in shape)
    if any(size is not None and size < 0 for size in sizes):
        raise ValueError(BAD_SHAPE.format(name=name, shape=shape))
    X = pt.tensor(name, dtype=dtype or pytensor.config.floatX, shape=sizes)
    return X if axes is None else declare_axes(X, parsed_axes(axes, sizes, f"Input {name!r}"))
