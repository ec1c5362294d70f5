"""How many rows get the right class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.type import integer_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.labels import CheckLabels
from ptml.loss.base import same_shape
from ptml.metrics.base import Metric, Totals, mean
from ptml.validate import finite, positive_int

__all__ = ["Accuracy", "BinaryAccuracy", "OfLabels", "TopKAccuracy"]

NOT_LABELS = (
    "{metric}: labels must be integers; got {given}. Write labels.astype('int64'); of one-hot rows, "
    "target.argmax(axis=-1)."
)
NO_CLASSES = "{metric}: the prediction is a scalar; its last axis must hold the classes."
MORE_THAN_CLASSES = "{metric}: the prediction has {classes} classes, and k is {k}: every row would be right."
NOT_AN_IGNORE = "{metric}: ignore_label must be an integer, or None; got {given!r}."
ONEHOT = " Integer labels have one axis less: of one-hot rows, target.argmax(axis=-1)."


def _an_ignored_label(metric: Metric, field: attrs.Attribute, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(NOT_AN_IGNORE.format(metric=type(metric).__name__, given=value))


class OfLabels(Metric):
    """A metric of scores of classes, the prediction's last axis, against integer labels.

    Parameters
    ----------
    ignore_label : int, optional
        A label whose rows count nowhere.
    """

    ignore_label: int | None = attrs.field(default=None, validator=_an_ignored_label)

    def target_for(self, prediction: TensorVariable, name: str) -> TensorVariable:
        return pt.tensor(name, dtype="int64", shape=prediction.type.shape[:-1])

    def labels(self, prediction: TensorVariable, target: TensorVariable) -> tuple[Any, Any]:
        """Give checked labels, and which rows count (None where all do).

        Parameters
        ----------
        prediction, target : tensor

        Raises
        ------
        TypeError
            If the labels are no integers.
        ValueError
            If the shapes do not go together; when run, if a label is no class.
        """
        metric = type(self).__name__
        if prediction.type.ndim == 0:
            raise ValueError(NO_CLASSES.format(metric=metric))
        if target.type.dtype not in integer_dtypes:
            raise TypeError(NOT_LABELS.format(metric=metric, given=target.type))
        hint = ONEHOT if target.type.ndim == prediction.type.ndim else ""
        target = same_shape(self, prediction, target, labels=True, hint=hint)
        count = prediction.type.shape[-1]
        n_classes = prediction.shape[-1] if count is None else np.int64(count)
        target = CheckLabels(metric, self.ignore_label)(target, n_classes).astype("int64")
        return target, None if self.ignore_label is None else pt.neq(target, np.int64(self.ignore_label))


class _Ranked(OfLabels):
    """The share of rows whose label is among so many classes of the highest scores."""

    def highest(self) -> int:
        """Give how many."""
        return 1

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        labels, kept = self.labels(prediction, target)
        ids = pt.arange(prediction.shape[-1], dtype="int64")
        own = pt.eq(ids, labels[..., None])
        score = pt.switch(own, prediction, np.zeros((), prediction.type.dtype)).sum(axis=-1, keepdims=True)
        before = pt.lt(ids, labels[..., None])
        higher = pt.gt(prediction, score) | (pt.eq(prediction, score) & before)
        # A label that is no class (where that cannot raise) is as little right as a score that is no number.
        known = own.any(axis=-1) & ~pt.isnan(prediction).any(axis=-1)
        right = pt.lt(higher.astype("int64").sum(axis=-1), np.int64(self.highest())) & known
        if kept is None:
            return [right.astype("int64").sum(), labels.size]
        return [(right & kept).astype("int64").sum(), kept.astype("int64").sum()]

    def value(self, totals: Totals) -> float:
        return mean(totals)


class Accuracy(_Ranked):
    """The share of rows whose label is the class of the highest score.

    Of equal scores the class that comes first is the highest, as for ``argmax``. A row with a score of NaN is
    not right.

    Parameters
    ----------
    ignore_label : int, optional
        A label whose rows count nowhere.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input
    >>> from ptml.metrics import Accuracy
    >>> accuracy = ptml.compile_evaluate(Input("scores", shape=(None, 3)), Accuracy())
    >>> accuracy([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], [1, 2])
    0.5
    """


class TopKAccuracy(_Ranked):
    """The share of rows whose label is among the `k` classes of the highest scores.

    Of equal scores the class that comes first is the higher. A row with a score of NaN is not right.

    Parameters
    ----------
    k : int, default 5
    ignore_label : int, optional
        A label whose rows count nowhere.

    Raises
    ------
    ValueError
        If `k` is less than 1; when called, if it is not less than the number of classes.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input
    >>> from ptml.metrics import TopKAccuracy
    >>> top = ptml.compile_evaluate(Input("scores", shape=(None, 3)), TopKAccuracy(k=2))
    >>> top([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], [2, 2])
    0.5
    """

    k: int = attrs.field(default=5, validator=positive_int)

    def highest(self) -> int:
        return self.k

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        classes = prediction.type.shape[-1] if prediction.type.ndim else None
        if classes is not None and classes <= self.k:
            metric = type(self).__name__
            raise ValueError(MORE_THAN_CLASSES.format(metric=metric, classes=classes, k=self.k))
        return super().build(prediction, target)


class BinaryAccuracy(Metric):
    """The share of predictions on the right side of a threshold, for targets of 0 and 1.

    Parameters
    ----------
    threshold : float, default 0.5
        Predictions above it say 1. Of logits, 0.0 is the middle. NaN is never right.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input
    >>> from ptml.metrics import BinaryAccuracy
    >>> accuracy = ptml.compile_evaluate(Input("p", shape=(None,)), BinaryAccuracy())
    >>> accuracy([0.9, 0.2, 0.1, 0.6], [1.0, 0.0, 0.0, 0.0])
    0.75
    """

    threshold: float = attrs.field(default=0.5, validator=finite)

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        target = same_shape(self, prediction, target)
        says = pt.gt(prediction, np.asarray(self.threshold, prediction.type.dtype))
        right = pt.eq(says.astype("int8"), target) & ~pt.isnan(prediction)
        return [right.astype("int64").sum(), right.size]

    def value(self, totals: Totals) -> float:
        return mean(totals)
