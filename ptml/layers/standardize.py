"""What normalizing layers share: mean 0 and variance 1 along axes, in a dtype that is wide enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["standardized", "working_dtype"]


def working_dtype(dtype: str) -> str:
    """Give the dtype in which layers compute what is rounded too coarsely, or overflows, in half precision.

    Examples
    --------
    >>> working_dtype("float16"), working_dtype("float32"), working_dtype("float64")
    ('float32', 'float32', 'float64')
    """
    return str(np.promote_types(dtype, "float32"))


def standardized(
    X: TensorVariable, axes: Sequence[int], epsilon: float, n: TensorVariable | None = None
) -> TensorVariable:
    """Shift and scale to mean 0 and variance 1 along axes.

    The variance is the mean square of what is left once the mean is subtracted, which does not cancel where
    the mean is large.

    Parameters
    ----------
    X : tensor
    axes : sequence of int
    epsilon : float
        What is added to the variance.
    n : integer scalar, optional
        The number of values along the axes, where it was checked.
    """
    dtype = X.type.dtype

    def mean(values: TensorVariable) -> TensorVariable:
        if n is None:
            return values.mean(axis=tuple(axes), keepdims=True)
        return values.sum(axis=tuple(axes), keepdims=True) / n.astype(dtype)

    centred = X - mean(X)
    return centred / pt.sqrt(mean(pt.sqr(centred)) + np.asarray(epsilon, dtype))
