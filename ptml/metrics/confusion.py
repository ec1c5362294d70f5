"""The confusion matrix, and what is read off it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.metrics.base import Metric, Totals, ratio
from ptml.metrics.classification import OfLabels
from ptml.validate import integer

__all__ = ["F1", "ConfusionMatrix", "Precision", "Recall"]

WRONG_COUNT = "{metric} is of {n} classes; the prediction has {given} (shape {shape})."
NO_NUMBER = "{metric} defines no of_classes(self, right, said, true): give there the number of each class."
BAD_AVERAGE = "{metric}: average must be one of 'macro', 'micro', 'weighted' and None; got {given!r}."
AVERAGES = ("macro", "micro", "weighted", None)


class ConfusionMatrix(OfLabels):
    """How many rows of each label got each class: ``matrix[label, class]``.

    A row gets the class of its highest score, the first of equal ones.

    Parameters
    ----------
    n_classes : int
    ignore_label : int, optional
        A label whose rows count nowhere.

    Raises
    ------
    ValueError
        When called, if the prediction is known to have another number of classes.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input
    >>> from ptml.metrics import ConfusionMatrix
    >>> confusion = ptml.compile_evaluate(Input("scores", shape=(None, 2)), ConfusionMatrix(n_classes=2))
    >>> confusion([[0.1, 0.9], [0.6, 0.4], [0.2, 0.8]], [1, 1, 0])
    array([[0, 1],
           [1, 1]])
    """

    n_classes: int = attrs.field(validator=integer(2, "an integer of 2 or more"))

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        n, shape = self.n_classes, prediction.type.shape
        if shape and shape[-1] not in (None, n):
            metric = type(self).__name__
            raise ValueError(WRONG_COUNT.format(metric=metric, n=n, given=shape[-1], shape=shape))
        labels, kept = self.labels(prediction, target)
        cell = (labels * np.int64(n) + prediction.argmax(axis=-1).astype("int64")).ravel()
        one = pt.ones_like(cell)
        if kept is not None:
            # What is ignored adds nothing, to any cell.
            one, cell = kept.ravel().astype("int64"), pt.switch(kept.ravel(), cell, np.int64(0))
        counts = pt.zeros((n * n,), dtype="int64")[cell].inc(one)
        return [counts.reshape((n, n))]

    def value(self, totals: Totals) -> Any:
        return totals[0]


def _an_average(metric: Metric, field: attrs.Attribute, value: Any) -> None:
    if value not in AVERAGES:
        raise ValueError(BAD_AVERAGE.format(metric=type(metric).__name__, given=value))


class _OfClasses(ConfusionMatrix):
    """A number for each class, read off the confusion matrix, and their average."""

    average: str | None = attrs.field(default="macro", validator=_an_average)

    def of_classes(self, right: np.ndarray, said: np.ndarray, true: np.ndarray) -> Any:
        """Give the number of each class, of how many rows are right, say it, and are its own."""
        raise TypeError(NO_NUMBER.format(metric=type(self).__name__))

    def value(self, totals: Totals) -> Any:
        matrix = totals[0]
        right, said, true = np.diagonal(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
        if self.average == "micro":
            return float(self.of_classes(right.sum(), said.sum(), true.sum()))
        numbers = self.of_classes(right, said, true)
        if self.average is None:
            return numbers
        if self.average == "weighted":
            return float(ratio((numbers * true).sum(), true.sum()))
        return float(numbers[(said + true) > 0].mean()) if (said + true).any() else float("nan")


class Precision(_OfClasses):
    """Of the rows that a class was said of, the share that is of it; 0 where it was said of none.

    Parameters
    ----------
    n_classes : int
    average : {"macro", "micro", "weighted", None}, default "macro"
        The mean over the classes that occur, as labels or as predictions; the number of all rows together;
        the mean weighted by the number of rows of each label; or an array of one number for each class.
    ignore_label : int, optional
        A label whose rows count nowhere.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.metrics import Precision
    >>> Precision(n_classes=2, average=None).value((np.array([[3, 1], [1, 1]]),))
    array([0.75, 0.5 ])
    """

    def of_classes(self, right: np.ndarray, said: np.ndarray, true: np.ndarray) -> Any:
        return ratio(right, said, empty=0.0)


class Recall(_OfClasses):
    """Of the rows of a class, the share that it was said of; 0 where there are none.

    Parameters
    ----------
    n_classes : int
    average : {"macro", "micro", "weighted", None}, default "macro"
        As for :class:`Precision`.
    ignore_label : int, optional
        A label whose rows count nowhere.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.metrics import Recall
    >>> Recall(n_classes=2, average=None).value((np.array([[3, 1], [1, 3]]),))
    array([0.75, 0.75])
    """

    def of_classes(self, right: np.ndarray, said: np.ndarray, true: np.ndarray) -> Any:
        return ratio(right, true, empty=0.0)


class F1(_OfClasses):
    """The harmonic mean of precision and recall.

    Parameters
    ----------
    n_classes : int
    average : {"macro", "micro", "weighted", None}, default "macro"
        As for :class:`Precision`.
    ignore_label : int, optional
        A label whose rows count nowhere.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.metrics import F1
    >>> F1(n_classes=2, average=None).value((np.array([[3, 1], [1, 3]]),))
    array([0.75, 0.75])
    """

    def of_classes(self, right: np.ndarray, said: np.ndarray, true: np.ndarray) -> Any:
        return ratio(2 * right, said + true, empty=0.0)
