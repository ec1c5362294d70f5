"""Types as they are read in errors and printouts."""

from __future__ import annotations

import reprlib
from typing import Any

__all__ = ["type_text"]


def type_text(value: Any) -> str:
    """Write an array's type as it is read: ``float32[64,128]``.

    Parameters
    ----------
    value : array-like
        Anything with a dtype and a shape: an array, a slot, the type of a tensor, some of whose sizes may be
        unknown; anything else is shown itself.

    Examples
    --------
    >>> import numpy as np
    >>> type_text(np.zeros((64, 128), "float32"))
    'float32[64,128]'
    >>> type_text(np.float64(1.0))
    'float64[]'
    >>> import pytensor.tensor as pt
    >>> type_text(pt.matrix("X", dtype="float32").type)
    'float32[?,?]'
    """
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        return reprlib.repr(value)
    return f"{dtype}[{','.join('?' if size is None else str(size) for size in shape)}]"
