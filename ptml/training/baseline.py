"""What a network has to beat: the loss of the best prediction that is the same for every row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptml.loss import AbsoluteError, BinaryCrossEntropy, CrossEntropy, Huber, SquaredError
from ptml.loss.base import Loss

__all__ = ["constant_prediction"]


def constant_prediction(loss: Loss, target: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Give the prediction that is the same for every row, and best for some targets.

    Parameters
    ----------
    loss : Loss
    target : array
        What it is to be best for: the mean of squared errors, the median of absolute ones, the frequencies of
        classes.
    shape : tuple of int
        Of the predictions wanted; rows first.

    Returns
    -------
    array or None
        None for a loss of which this is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.loss import SquaredError
    >>> from ptml.training.baseline import constant_prediction
    >>> constant_prediction(SquaredError(), np.array([[1.0], [2.0]]), (3, 1)).tolist()
    [[1.5], [1.5], [1.5]]
    """
    one = _one(loss, target, shape[-1] if len(shape) > 1 else 1)
    return None if one is None else np.broadcast_to(one, shape)


def _one(loss: Loss, target: np.ndarray, n_classes: int) -> Any:
    match loss:
        case SquaredError() | Huber():
            return target.mean(axis=0)
        case AbsoluteError():
            return np.median(target, axis=0)
        case BinaryCrossEntropy():
            p = target.mean(axis=0)
            with np.errstate(divide="ignore"):
                return np.log(p) - np.log1p(-p) if loss.expect_logits else p
        case CrossEntropy(expect_onehot_labels=False):
            kept = target[target != loss.ignore_label] if loss.ignore_label is not None else target
            counts = np.bincount(kept.ravel(), minlength=n_classes).astype("float64")
        case CrossEntropy():
            counts = target.reshape(-1, n_classes).sum(axis=0)
        case _:
            return None
    p = counts / max(counts.sum(), 1.0)
    with np.errstate(divide="ignore"):
        return np.log(p) if loss.expect_logits else p
