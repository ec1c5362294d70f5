"""How far predictions of numbers are off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.loss.base import same_shape
from ptml.metrics.base import Metric, Totals, mean, ratio

__all__ = ["R2", "MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError"]


class _OfErrors(Metric):
    """A metric of the differences between predictions and targets."""

    def errors(self, prediction: TensorVariable, target: TensorVariable) -> TensorVariable:
        """Give the differences, in the prediction's dtype (float32 for half precision)."""
        target = same_shape(self, prediction, target)
        work = "float32" if prediction.type.dtype == "float16" else prediction.type.dtype
        return prediction.astype(work) - target.astype(work)


class MeanSquaredError(_OfErrors):
    """The mean of the squared errors, over all rows and outputs.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input
    >>> from ptml.metrics import MeanSquaredError
    >>> error = ptml.compile_evaluate(Input("p", shape=(None,)), MeanSquaredError())
    >>> error([0.0, 1.0], [2.0, 1.0])
    2.0
    """

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        errors = self.errors(prediction, target)
        return [pt.sqr(errors).sum(), errors.size]

    def value(self, totals: Totals) -> float:
        return mean(totals)


class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of the squared errors, in the unit of the target.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.metrics import RootMeanSquaredError
    >>> RootMeanSquaredError().value((np.array(18.0), np.array(2)))
    3.0
    """

    def value(self, totals: Totals) -> float:
        return float(np.sqrt(mean(totals)))


class MeanAbsoluteError(_OfErrors):
    """The mean of the absolute errors, over all rows and outputs, in the unit of the target.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input
    >>> from ptml.metrics import MeanAbsoluteError
    >>> error = ptml.compile_evaluate(Input("p", shape=(None,)), MeanAbsoluteError())
    >>> error([0.0, 1.0], [2.0, 1.0])
    1.0
    """

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        errors = self.errors(prediction, target)
        return [abs(errors).sum(), errors.size]

    def value(self, totals: Totals) -> float:
        return mean(totals)


class R2(_OfErrors):
    r"""The coefficient of determination, :math:`1 - \sum e^2 / \sum (y - \bar y)^2`.

    1 is perfect, 0 is what predicting the mean of these targets gives, and less is worse than that. Of
    several outputs, the last axis of predictions of two axes and more, it is the mean. Where all targets are
    equal it is 1 if all predictions are right, else 0.

    Targets far from zero lose nothing: deviations are taken from the mean of their batch, and joined.

    References
    ----------
    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    (1979), for joining the sums of squares of two batches.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.metrics import R2
    >>> R2().value((np.array(2), np.array([1.0]), np.array([2.0]), np.array([0.5])))
    0.75
    """

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        errors = self.errors(prediction, target)
        target = same_shape(self, prediction, target).astype(errors.type.dtype)
        if target.type.ndim < 2:
            errors, target = (x.reshape((-1, 1)) for x in (errors, target))
        else:
            errors, target = (x.reshape((-1, x.shape[-1])) for x in (errors, target))
        rows = target.shape[0]
        mean = target.sum(axis=0) / pt.maximum(rows, 1).astype(target.type.dtype)
        deviations = pt.sqr(target - mean).sum(axis=0)
        return [rows, mean, deviations, pt.sqr(errors).sum(axis=0)]

    def merged(self, one: Totals, other: Totals) -> Totals:
        (n, mean, deviations, errors), (m, its_mean, its_deviations, its_errors) = one, other
        rows = n + m
        gap = its_mean - mean
        share = m / max(int(rows), 1)
        between = gap**2 * n * share
        return rows, mean + gap * share, deviations + its_deviations + between, errors + its_errors

    def value(self, totals: Totals) -> float:
        rows, _, deviations, errors = totals
        if rows < 2:
            return float("nan")
        whole = np.where(errors == 0, 1.0, 0.0)
        explained = 1 - ratio(errors, deviations)
        return float(np.where(deviations == 0, whole, explained).mean())
