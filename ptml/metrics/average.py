"""Losses as metrics: their mean over all rows, and its exponential."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from pytensor.tensor.variable import TensorVariable

from ptml.loss import CrossEntropy
from ptml.loss.base import Loss
from ptml.metrics.base import Metric, Totals, mean

__all__ = ["Average", "Perplexity"]

NOT_A_LOSS = "{metric} averages a loss, such as SquaredError(); got {given!r}."


def _a_loss(metric: Metric, field: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, Loss):
        hint = f" Write {value.__name__}()." if isinstance(value, type) and issubclass(value, Loss) else ""
        raise TypeError(NOT_A_LOSS.format(metric=type(metric).__name__, given=value) + hint)


class Average(Metric, kw_only=False):
    """The mean of a loss over all rows, whatever batches they came in.

    Ignored labels count nowhere, and class weights weigh, as in the loss itself.

    Parameters
    ----------
    loss : Loss
        Its reduction is of no matter.

    Raises
    ------
    TypeError
        If it is no loss.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input
    >>> from ptml.loss import SquaredError
    >>> from ptml.metrics import Average
    >>> loss = ptml.compile_evaluate(Input("p", shape=(None,)), Average(SquaredError()))
    >>> loss([0.0, 0.0], [1.0, 2.0])
    2.5
    """

    loss: Loss = attrs.field(validator=_a_loss)

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Sequence[TensorVariable]:
        work = prediction.astype("float32") if prediction.type.dtype == "float16" else prediction
        built = self.loss.build(work, target)
        losses, weights = built if isinstance(built, tuple) else (built, None)
        return [losses.sum(), losses.size if weights is None else weights.sum()]

    def value(self, totals: Totals) -> float:
        return mean(totals)

    def target_for(self, prediction: TensorVariable, name: str) -> TensorVariable:
        return self.loss.target_for(prediction, name)


class Perplexity(Average):
    r"""The exponential of the mean cross entropy, :math:`e^{\ell}`: among how many classes a model wavers.

    Parameters
    ----------
    loss : Loss
        ``CrossEntropy(expect_logits=True)`` unless given.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.metrics import Perplexity
    >>> round(Perplexity().value((np.array(3 * np.log(8.0)), np.array(3))), 6)
    8.0
    """

    loss: Loss = attrs.field(default=CrossEntropy(expect_logits=True), validator=_a_loss)

    def value(self, totals: Totals) -> float:
        # A mean above 709 is an infinite perplexity, and no reason for a warning.
        with np.errstate(over="ignore"):
            return float(np.exp(super().value(totals)))
