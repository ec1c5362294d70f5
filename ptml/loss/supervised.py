"""A loss together with the input that its target comes in by."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.loss.base import Loss

__all__ = ["supervised_loss"]

NO_LOSS = "supervised_loss(prediction, loss) takes a loss such as SquaredError(); got {given!r}.{hint}"


def supervised_loss(
    prediction: Any, loss: Loss, *, name: str = "target"
) -> tuple[TensorVariable, TensorVariable]:
    """Build the loss of a prediction, and the input for its target.

    Parameters
    ----------
    prediction : float tensor
        What a network computes.
    loss : Loss
        Says what the target is: of the prediction's type for a regression, one-hot rows and probabilities;
        ``int64``, with one axis less, for integer labels.
    name : str
        The target's name. Default "target".

    Returns
    -------
    loss, target : tensor
        The loss, and the variable to give among a program's inputs.

    Raises
    ------
    TypeError
        If `loss` is not a loss.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import CrossEntropy, supervised_loss
    >>> logits = pt.tensor("logits", shape=(None, 10))
    >>> loss, target = supervised_loss(logits, CrossEntropy(expect_logits=True))
    >>> target.name, target.type.dtype, target.type.shape
    ('target', 'int64', (None,))
    """
    if not isinstance(loss, Loss):
        hint = ""
        if isinstance(loss, type) and issubclass(loss, Loss):
            hint = f" Write {loss.__name__}()."
        elif isinstance(prediction, Loss):
            hint = " The prediction comes first."
        raise TypeError(NO_LOSS.format(given=loss, hint=hint))
    prediction = pt.as_tensor(prediction)
    target = loss.target_for(prediction, name)
    return loss(prediction, target), target
