"""What metrics share: totals that a graph computes of a batch, and the number that they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.type import float_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.module import Module

__all__ = ["Metric", "Totals", "mean", "ratio"]

NO_BUILD = "{metric} defines no build(self, prediction, target): give there the totals of a batch, as a list."
NO_VALUE = "{metric} defines no value(self, totals): give there the number that totals come to."
NOT_FLOAT = (
    "{metric}: the prediction must be floating-point; got {given}. The call is metric(prediction, target)."
)

#: What a metric adds up, in float64 or whole numbers.
type Totals = tuple[np.ndarray, ...]


class Metric(Module):
    """A number that says how good predictions are.

    A mean of the means of batches is wrong where batches differ in size, and for a ratio of sums always. So
    a metric computes *totals* of each batch, in the graph. Those of several batches are merged, and the
    number is what all of them come to: :func:`ptml.compile_evaluate` does that.

    A subclass says in ``build(prediction, target)`` what the totals of a batch are, and in ``value(totals)``
    what number they come to. Totals are added up, unless ``merged(one, other)`` says how else.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input
    >>> from ptml.metrics import Metric
    >>> class Largest(Metric):
    ...     def build(self, prediction, target):
    ...         return [abs(prediction - target).max()]
    ...
    ...     def merged(self, one, other):
    ...         return (np.maximum(one[0], other[0]),)
    ...
    ...     def value(self, totals):
    ...         return float(totals[0])
    >>> largest = ptml.compile_evaluate(Input("p", shape=(None,)), Largest())
    >>> largest([1.0, 2.0], [1.5, 2.0])
    0.5
    """

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        """Give the totals of a batch; a subclass must define it."""
        raise TypeError(NO_BUILD.format(metric=type(self).__name__))

    def value(self, totals: Totals) -> Any:
        """Give the number that totals come to; a subclass must define it."""
        raise TypeError(NO_VALUE.format(metric=type(self).__name__))

    def merged(self, one: Totals, other: Totals) -> Totals:
        """Give the totals of two batches together.

        Parameters
        ----------
        one, other : tuple of arrays
        """
        return tuple(a + b for a, b in zip(one, other, strict=True))

    def target_for(self, prediction: TensorVariable, name: str) -> TensorVariable:
        """Make the input that a program takes as the target: by default, of the prediction's type.

        Parameters
        ----------
        prediction : tensor
            What the target will be compared with.
        name : str
            Its name.
        """
        return prediction.type(name=name)

    def __call__(self, prediction: Any, target: Any) -> list[TensorVariable]:
        """Build the totals of a batch.

        Parameters
        ----------
        prediction : float tensor
        target : tensor

        Raises
        ------
        TypeError
            If the prediction is not floating-point, or the target of a type that the metric does not take.
        ValueError
            If the static shapes do not go together.
        """
        prediction, target = pt.as_tensor(prediction), pt.as_tensor(target)
        if prediction.type.dtype not in float_dtypes:
            raise TypeError(NOT_FLOAT.format(metric=type(self).__name__, given=prediction.type))
        return list(self.build(prediction, target))


def mean(totals: Totals) -> float:
    """Give the mean that a total and the number of what it is of come to; NaN of nothing."""
    total, over = totals
    return float(ratio(total, over))


def ratio(part: Any, whole: Any, empty: float = np.nan) -> Any:
    """Divide, and give something else where there is nothing to divide by.

    Parameters
    ----------
    part, whole : array-like
    empty : float, default NaN

    Examples
    --------
    >>> from ptml.metrics.base import ratio
    >>> ratio([1, 0], [4, 0])
    array([0.25,  nan])
    """
    part, whole = np.asarray(part, "float64"), np.asarray(whole, "float64")
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, empty), where=whole != 0)
