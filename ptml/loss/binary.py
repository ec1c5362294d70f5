"""The loss of probabilities of yes and no."""

from __future__ import annotations

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.labels import CheckProbabilities
from ptml.loss.base import Loss, number, same_shape
from ptml.validate import flag, positive

__all__ = ["BinaryCrossEntropy"]


class BinaryCrossEntropy(Loss):
    r"""The cross entropy of yes-or-no targets, element by element.

    With the target :math:`t` and the probability :math:`p`, or the logit :math:`z` of it,

    .. math:: -w\, t \log p - (1 - t) \log(1 - p), \qquad p = 1 / (1 + e^{-z}).

    Values and gradients are exact for every logit, infinite ones included: a term of weight zero is left out,
    so that being infinitely right costs 0 and being infinitely wrong costs infinity. On logits, each
    logarithm is a softplus.

    Parameters
    ----------
    expect_logits : bool
        Whether the prediction holds logits (True) or probabilities (False). Default False.
    positive_weight : float
        The factor :math:`w`, positive, of what the yes-targets contribute. The mean is over elements,
        whatever it is. Default 1.0.
    reduction : {"mean", "sum", "none"}
        Default "mean".

    Raises
    ------
    TypeError
        If `expect_logits` is not a boolean.
    ValueError
        If `positive_weight` is not positive and finite, or `reduction` something else; when called, if the
        target has not the prediction's shape; when run, if a target, or a predicted probability, is below 0
        or above 1. JAX, MLX and PyTorch cannot raise: there the loss of such a target, and its gradient, is
        NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import BinaryCrossEntropy
    >>> logits, target = pt.constant([0.0, np.inf, -np.inf]), pt.constant([1.0, 1.0, 0.0])
    >>> BinaryCrossEntropy(expect_logits=True, reduction="none")(logits, target).eval().round(4)
    array([0.6931, 0.    , 0.    ])
    """

    expect_logits: bool = attrs.field(default=False, validator=flag)
    positive_weight: float = attrs.field(default=1.0, validator=positive)

    def build(self, prediction: TensorVariable, target: TensorVariable) -> TensorVariable:
        target = same_shape(self, prediction, target)
        zero, one = number(0.0, prediction), number(1.0, prediction)
        target = CheckProbabilities(type(self).__name__)(target.astype(prediction.type.dtype))
        possible = pt.ge(target, zero) & pt.le(target, one)
        yes = pt.switch(possible, target, number(np.nan, prediction))
        no = one - yes
        # Where a term has no weight, it is computed from a value that is sure to be finite.
        if self.expect_logits:
            if_yes = pt.softplus(pt.switch(pt.eq(yes, zero), zero, -prediction))
            if_no = pt.softplus(pt.switch(pt.eq(no, zero), zero, prediction))
        else:
            prediction = CheckProbabilities(type(self).__name__, predicted=True)(prediction)
            if_yes = -pt.log(pt.switch(pt.eq(yes, zero), one, prediction))
            if_no = -pt.log1p(pt.switch(pt.eq(no, zero), zero, -prediction))
        if self.positive_weight != 1:
            yes = number(self.positive_weight, prediction) * yes
        return yes * if_yes + no * if_no
