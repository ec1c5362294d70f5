"""Losses of numbers against numbers."""

from __future__ import annotations

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.loss.base import Loss, number, same_shape
from ptml.validate import positive

__all__ = ["AbsoluteError", "Huber", "SquaredError"]


def _residual(loss: Loss, prediction: TensorVariable, target: TensorVariable) -> TensorVariable:
    target = same_shape(loss, prediction, target)
    return prediction - target.astype(prediction.type.dtype)


class SquaredError(Loss):
    """The square of the residual.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        Default "mean".

    Raises
    ------
    ValueError
        If `reduction` is something else; when called, if the target has not the prediction's shape.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import SquaredError
    >>> SquaredError()(pt.constant([1.0, 2.0]), pt.constant([1.0, 5.0])).eval()
    array(4.5)
    """

    def build(self, prediction: TensorVariable, target: TensorVariable) -> TensorVariable:
        return pt.sqr(_residual(self, prediction, target))


class AbsoluteError(Loss):
    """The magnitude of the residual; its gradient where the residual is 0 is 0.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        Default "mean".

    Raises
    ------
    ValueError
        If `reduction` is something else; when called, if the target has not the prediction's shape.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import AbsoluteError
    >>> AbsoluteError()(pt.constant([1.0, 2.0]), pt.constant([1.0, 5.0])).eval()
    array(1.5)
    """

    def build(self, prediction: TensorVariable, target: TensorVariable) -> TensorVariable:
        return pt.abs(_residual(self, prediction, target))


class Huber(Loss):
    r"""The squared error near zero, continued by straight lines.

    With the residual :math:`r`, the loss is :math:`r^2 / 2` where :math:`|r| \le \delta`, and
    :math:`\delta (|r| - \delta / 2)` elsewhere. Value and slope are continuous. (The smooth L1 loss of other
    libraries is this one divided by :math:`\delta`.)

    Parameters
    ----------
    delta : float
        The magnitude, positive, at which the parabola ends. Default 1.0.
    reduction : {"mean", "sum", "none"}
        Default "mean".

    Raises
    ------
    ValueError
        If `delta` is not positive and finite, or `reduction` something else; when called, if the target has
        not the prediction's shape.

    Notes
    -----
    P. J. Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35 (1964).

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import Huber
    >>> Huber(delta=2.0)(pt.constant([0.5, 3.0]), pt.constant([0.0, 0.0])).eval()
    array(2.0625)
    """

    delta: float = attrs.field(default=1.0, validator=positive)

    def build(self, prediction: TensorVariable, target: TensorVariable) -> TensorVariable:
        residual = _residual(self, prediction, target)
        magnitude = pt.abs(residual)
        near = pt.le(magnitude, number(self.delta, residual))
        # The parabola sees nothing of a residual beyond it, whose square may overflow.
        inner = pt.switch(near, residual, number(0.0, residual))
        parabola = number(0.5, residual) * pt.sqr(inner)
        line = number(self.delta, residual) * (magnitude - number(self.delta / 2, residual))
        return pt.switch(near, parabola, line)
