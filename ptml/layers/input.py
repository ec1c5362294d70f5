"""The input of a network."""

from __future__ import annotations

from collections.abc import Sequence

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["Input"]

BAD_NAME = "Input's `name` must be a string; got {given!r}. Write Input({suggestion})."
BAD_SHAPE = (
    "Input {name!r}: shape must be a tuple of sizes, None where a size is not known, such as (None, 64); "
    "got {shape!r}."
)


def Input(name: str, shape: Sequence[int | None], dtype: str | None = None) -> TensorVariable:
    """Make a tensor that data enters by.

    Parameters
    ----------
    name : str
        Its name in printed graphs and errors.
    shape : tuple of int or None
        Its shape, None for sizes that differ from batch to batch.
    dtype : str, optional
        ``floatX`` unless given; ``"int64"`` for tokens and labels.

    Returns
    -------
    tensor
        An ordinary PyTensor variable.

    Raises
    ------
    TypeError
        If the name is no string, or the shape no tuple of sizes.
    ValueError
        If a size is negative.

    Examples
    --------
    >>> from ptml.layers import Input
    >>> Input("X", (None, 64)).type.shape
    (None, 64)
    >>> Input("tokens", (None, 128), dtype="int64").type.dtype
    'int64'
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
    return pt.tensor(name, dtype=dtype or pytensor.config.floatX, shape=sizes)
