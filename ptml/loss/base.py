"""What losses share: how they are called, what they check first, and how they reduce."""

from __future__ import annotations

import difflib
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.tensor.type import float_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.labels import CheckShape, shapes_differ
from ptml.loss.weight import averages_over
from ptml.module import Module

__all__ = ["Loss", "number", "same_shape"]

REDUCTIONS = ("mean", "sum", "none")

BAD_REDUCTION = "{loss}: reduction must be one of 'mean', 'sum' and 'none' (or None); got {given!r}{hint}."
NO_FUNCTION = ". Write reduction='none', and apply the function to what the call gives"
NOT_FLOAT = (
    "{loss}: the prediction must be floating-point; got {given}. The call is loss(prediction, target); if "
    "the prediction really holds {dtype}, cast it with .astype('float32')."
)
NO_BUILD = "{loss} defines no build(self, prediction, target): give there the losses before their reduction."
LAST_AXIS = " Write {shorter}[..., None], or {longer}[..., 0]."


def number(value: float, like: TensorVariable) -> TensorVariable:
    """Make a constant of the dtype of another tensor, which it therefore never widens."""
    return pt.constant(value, dtype=like.type.dtype)


def _as_reduction(value: Any, loss: Any) -> str:
    if value is None:
        return "none"
    if value in REDUCTIONS:
        return value
    if isinstance(value, str):
        near = difflib.get_close_matches(value.lower(), REDUCTIONS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
    else:
        hint = NO_FUNCTION if callable(value) else ""
    message = BAD_REDUCTION.format(loss=type(loss).__name__, given=value, hint=hint)
    raise ValueError(message.replace("?.", "?"))


class Loss(Module):
    """A module that is called as ``loss(prediction, target)``.

    A subclass says in ``build(prediction, target)`` what the losses are before they are reduced: an array, or
    a pair of the array and the weight that each loss has in the mean. Their dtype is the prediction's (of a
    float16 prediction, `build` is given a float32 copy, so that squares and sums do not overflow on the way).

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        What is done with the array of losses. The weighted mean of losses whose weights sum to zero (all
        labels are ignored) is 0, with a gradient of zero. None means "none". Default "mean".

    Raises
    ------
    ValueError
        If `reduction` is something else.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import Loss
    >>> class Hinge(Loss):
    ...     def build(self, prediction, target):
    ...         return pt.maximum(1 - prediction * target, 0)
    >>> Hinge(reduction="sum")(pt.constant([0.5, -2.0]), pt.constant([1.0, 1.0])).eval()
    array(3.5)
    """

    reduction: str | None = attrs.field(
        default="mean", converter=attrs.Converter(_as_reduction, takes_self=True)
    )

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Any:
        """Give the losses before their reduction; a subclass must define it."""
        raise TypeError(NO_BUILD.format(loss=type(self).__name__))

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

    def __call__(self, prediction: Any, target: Any) -> TensorVariable:
        """Build the loss of a prediction.

        Parameters
        ----------
        prediction : float tensor
            What a network computes.
        target : tensor
            What is right.

        Returns
        -------
        tensor
            A scalar, or the array of losses where ``reduction="none"``, of the prediction's dtype.

        Raises
        ------
        TypeError
            If the prediction is not floating-point, or the target of a type that the loss does not take.
        ValueError
            If the static shapes do not go together.
        """
        prediction, target = pt.as_tensor(prediction), pt.as_tensor(target)
        dtype = prediction.type.dtype
        if dtype not in float_dtypes:
            raise TypeError(NOT_FLOAT.format(loss=type(self).__name__, given=prediction.type, dtype=dtype))
        built = self.build(prediction.astype("float32") if dtype == "float16" else prediction, target)
        losses, weights = built if isinstance(built, tuple) else (built, None)
        if self.reduction == "none":
            return losses.astype(dtype)
        over = losses.size if weights is None else weights.sum()
        reduced = self._reduced(losses, weights).astype(dtype)
        return averages_over(reduced, over if self.reduction == "mean" else None)

    def _reduced(self, losses: TensorVariable, weights: TensorVariable | None) -> TensorVariable:
        if self.reduction == "sum":
            return losses.sum()
        if weights is None:
            return losses.mean()
        total = weights.sum().astype(losses.type.dtype)
        # Where nothing weighs, the losses are zero as well: any divisor but zero will do.
        return losses.sum() / pt.switch(pt.gt(total, number(0.0, total)), total, number(1.0, total))


def same_shape(
    loss: Module, prediction: TensorVariable, target: TensorVariable, *, labels: bool = False, hint: str = ""
) -> TensorVariable:
    """Give a target back, checked to have the prediction's shape: now where both are known, else at run time.

    Parameters
    ----------
    loss : Loss or Metric
        What the error names.
    prediction, target : tensor
        The two. An axis of length 1 agrees with no other length: nothing is broadcast by accident.
    labels : bool
        Whether the target holds labels, and so lacks the prediction's last axis. Default False.
    hint : str
        What the error says to do about a wrong number of axes.

    Raises
    ------
    ValueError
        If the numbers of axes differ, or the lengths of one of them.
    """
    shape, given = prediction.type.shape, target.type.shape
    wanted = shape[:-1] if labels else shape
    if len(wanted) != len(given):
        if not hint and len(shape) == len(given) + 1:
            hint = LAST_AXIS.format(shorter="target", longer="prediction")
        elif not hint and len(given) == len(shape) + 1:
            hint = LAST_AXIS.format(shorter="prediction", longer="target")
    elif all(None in pair or pair[0] == pair[1] for pair in zip(wanted, given, strict=True)):
        complete = None not in wanted and None not in given
        return target if complete else CheckShape(type(loss).__name__, labels)(target, prediction)
    else:
        hint = ""
    raise ValueError(shapes_differ(type(loss).__name__, shape, given, labels=labels, hint=hint))
