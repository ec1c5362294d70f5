"""The product of features and a matrix."""

from __future__ import annotations

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["features_times"]


def features_times(X: TensorVariable, W: TensorVariable) -> TensorVariable:
    """Multiply the last axis of X by a matrix.

    The axes before it are taken together. So there is one matrix product, and each of its gradients is one
    too, where a product by batches gives a matrix of gradients for each example, and then their sum.

    Parameters
    ----------
    X : tensor
        ``(..., n_in)``.
    W : tensor
        ``(n_in, n_out)``.

    Returns
    -------
    tensor
        ``(..., n_out)``.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.products import features_times
    >>> X, W = pt.tensor("X", shape=(None, 7, 3)), pt.matrix("W", shape=(3, 5))
    >>> features_times(X, W).type.shape
    (None, 7, 5)
    """
    if X.type.ndim <= 2:
        return pt.dot(X, W)
    sizes = [X.shape[axis] if n is None else n for axis, n in enumerate(X.type.shape[:-1])]
    n_in, n_out = (W.shape[axis] if n is None else n for axis, n in enumerate(W.type.shape))
    # PyTensor asks of any other size than -1 whether it is -1, which JAX cannot say while it traces.
    return pt.dot(X.reshape((-1, n_in)), W).reshape((*sizes, n_out))
