"""Losses of distributions over classes, which are the prediction's last axis."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.type import integer_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.labels import CheckLabels, CheckProbabilities
from ptml.loss.base import Loss, number, same_shape
from ptml.loss.entropy import LabelEntropy, TargetEntropy, class_ids, smoothed
from ptml.validate import flag, real

__all__ = ["CrossEntropy", "KLDivergence"]

LABELS_NOT_INTEGER = (
    "{loss}: labels must be integers; got {given}. Write labels.astype('int64'), or, for one-hot rows and "
    "probabilities, {loss}(expect_onehot_labels=True)."
)
WANTS_ONEHOT = " Integer labels need {loss}(expect_onehot_labels=False)."
WANTS_LABELS = " One-hot rows need {loss}(expect_onehot_labels=True)."
NO_CLASSES = "{loss}: the prediction is a scalar; its last axis must hold the classes."
BAD_WEIGHTS = "{loss}: class_weights must be finite numbers of 0 or more, one for each class; got {given!r}."
WEIGHTS_COUNT = "{loss} has {given} class_weights, and the prediction {classes} classes (shape {shape})."
IGNORE_NEEDS_LABELS = (
    "{loss}: ignore_label={ignore} is for integer labels, and expect_onehot_labels=True was given. Leave "
    "out a one-hot row by making it all zeros under reduction='sum'."
)
IGNORE_NOT_INTEGER = "{loss}: ignore_label must be an integer, or None; got {given!r}."


def _weighted_surprisal(
    loss: CrossEntropy | KLDivergence, prediction: TensorVariable, weights: TensorVariable
) -> TensorVariable:
    """Sum the surprisals over the classes, leaving out (not multiplying by zero) those of weight zero."""
    if loss.expect_logits:
        return TargetEntropy()(prediction, weights)[0]
    prediction = CheckProbabilities(type(loss).__name__, predicted=True)(prediction)
    absent = pt.eq(weights, number(0.0, weights))
    return (-weights * pt.log(pt.switch(absent, number(1.0, weights), prediction))).sum(axis=-1)


def _as_weights(value: Any) -> Any:
    return tuple(np.asarray(value).tolist()) if isinstance(value, list | tuple | np.ndarray) else value


def _check_weights(loss: Loss, field: attrs.Attribute, value: Any) -> None:
    def fits(weight: Any) -> bool:
        return isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0

    if value is not None and not (isinstance(value, tuple) and value and all(map(fits, value))):
        raise ValueError(BAD_WEIGHTS.format(loss=type(loss).__name__, given=value))


def _check_ignore(loss: CrossEntropy, field: attrs.Attribute, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(IGNORE_NOT_INTEGER.format(loss=type(loss).__name__, given=value))
    if loss.expect_onehot_labels:
        raise ValueError(IGNORE_NEEDS_LABELS.format(loss=type(loss).__name__, ignore=value))


class CrossEntropy(Loss):
    r"""The surprisal of the right class, for classification.

    The classes are the prediction's last axis. With the target distribution :math:`t` (of an integer label,
    one-hot), class weights :math:`w`, smoothing :math:`\epsilon` and :math:`C` classes, the loss of a row is

    .. math:: \ell = -\sum_c w_c \Bigl((1 - \epsilon)\, t_c + \frac{\epsilon}{C}\Bigr) \log p_c

    and the mean over rows is :math:`\sum_i \ell_i / \sum_i \sum_c w_c t_{ic}`: the divisor is the number of
    rows, or, where there are class weights, the sum of those that the labels pick. Smoothing does not change
    it. (PyTorch's formula; there, though, one-hot rows are divided by their number, while here they and
    integer labels always agree.)

    Ignored rows count nowhere: their loss is 0, their gradient is 0 whatever their logits are, and they are
    not in the divisor. The mean of no rows but ignored ones is 0.0, and so are its gradients.

    Values and gradients are exact for infinite logits and for probabilities of zero, because a class of
    weight zero is left out of the sum. Under smoothing every class has weight, so that a class which a mask
    made impossible costs infinity.

    Parameters
    ----------
    expect_onehot_labels : bool
        Whether the target is one-hot, or a distribution, of the prediction's shape (True), or integer labels
        of the shape of the prediction without its last axis (False). Default False.
    expect_logits : bool
        Whether the prediction holds logits, which any log-probabilities are too (True), or probabilities
        (False). Default False.
    class_weights : sequence of float, optional
        A weight of 0 or more for each class. Default none, all ones.
    label_smoothing : float
        The part :math:`\epsilon`, from 0 to 1, of each label that is spread over all classes. Default 0.0.
    ignore_label : int, optional
        An integer label, often -100, whose rows are left out. Default none.
    reduction : {"mean", "sum", "none"}
        Default "mean".

    Raises
    ------
    TypeError
        If a flag is not a boolean, or `ignore_label` not an integer; when called, if integer labels were
        promised and the target is not of an integer dtype.
    ValueError
        If another hyperparameter is outside what is said above, or `ignore_label` meets one-hot labels; when
        called, if static shapes do not go together, or the number of `class_weights` is not that of classes;
        when run, if a label is no class and is not ignored, or a predicted probability is below 0 or above 1.
        JAX, MLX and PyTorch cannot raise: there the loss of a row with such a label, and its gradient, is
        NaN.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import CrossEntropy
    >>> logits, labels = pt.constant([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), pt.constant([0, 1])
    >>> CrossEntropy(expect_logits=True)(logits, labels).eval().round(6)
    np.float64(0.360645)
    """

    expect_onehot_labels: bool = attrs.field(default=False, validator=flag)
    expect_logits: bool = attrs.field(default=False, validator=flag)
    class_weights: tuple[float, ...] | None = attrs.field(
        default=None, converter=_as_weights, validator=_check_weights
    )
    label_smoothing: float = attrs.field(
        default=0.0, validator=real(lambda value: 0 <= value <= 1, "a number from 0 to 1")
    )
    ignore_label: int | None = attrs.field(default=None, validator=_check_ignore)

    def target_for(self, prediction: TensorVariable, name: str) -> TensorVariable:
        """Make the input that a program takes as the target; see :func:`ptml.loss.supervised_loss`."""
        if self.expect_onehot_labels:
            return super().target_for(prediction, name)
        return pt.tensor(name, dtype="int64", shape=prediction.type.shape[:-1])

    def build(self, prediction: TensorVariable, target: TensorVariable) -> Any:
        loss = type(self).__name__
        if prediction.type.ndim == 0:
            raise ValueError(NO_CLASSES.format(loss=loss))
        prediction = self._with_class_count(prediction)
        if self.expect_onehot_labels:
            hint = WANTS_ONEHOT if target.type.ndim == prediction.type.ndim - 1 else ""
            target = same_shape(self, prediction, target, hint=hint.format(loss=loss))
            target = target.astype(prediction.type.dtype)
            picked = None if self.class_weights is None else (self._weights(target) * target).sum(axis=-1)
            losses = self._of_rows(prediction, self._smoothed(target))
            return losses if picked is None else (losses, picked)
        return self._of_labels(prediction, target)

    def _of_labels(self, prediction: TensorVariable, labels: TensorVariable) -> Any:
        loss = type(self).__name__
        if labels.type.dtype not in integer_dtypes:
            raise TypeError(LABELS_NOT_INTEGER.format(loss=loss, given=labels.type))
        hint = WANTS_LABELS if labels.type.ndim == prediction.type.ndim else ""
        labels = same_shape(self, prediction, labels, labels=True, hint=hint.format(loss=loss))
        count = prediction.type.shape[-1]
        n_classes = prediction.shape[-1] if count is None else np.int64(count)
        labels = CheckLabels(loss, self.ignore_label)(labels, n_classes)
        if self.expect_logits:
            return self._of_logits(prediction, labels)
        possible = pt.ge(labels, np.int8(0)) & pt.lt(labels, n_classes)
        # int32 lanes are as wide as float32's; a label that this wraps is not possible.
        right = pt.eq(labels.astype("int32")[..., None], class_ids(prediction))
        one, zero = number(1.0, prediction), number(0.0, prediction)
        onehot = pt.switch(right, one, zero)
        weights = self._smoothed(onehot)
        picked = None if self.class_weights is None else (self._weights(prediction) * onehot).sum(axis=-1)
        if self.ignore_label is not None:
            kept = pt.neq(labels, self.ignore_label)
            possible = possible | ~kept
            weights = pt.switch(kept[..., None], weights, zero)
            picked = kept.astype("int64") if picked is None else pt.switch(kept, picked, zero)
            # Padding may hold anything, NaN included, and zero times its gradient would not be zero.
            prediction = pt.switch(kept[..., None], prediction, zero)
        weights = pt.switch(possible[..., None], weights, number(np.nan, prediction))
        losses = self._of_rows(prediction, weights)
        return losses if picked is None else (losses, picked)

    def _of_logits(self, logits: TensorVariable, labels: TensorVariable) -> Any:
        weights = [] if self.class_weights is None else [self._weights(logits)]
        op = LabelEntropy(float(self.label_smoothing), self.ignore_label, bool(weights))
        losses, _, *picked = op(logits, labels, *weights)
        if self.ignore_label is not None and not weights:
            picked = [pt.neq(labels, self.ignore_label).astype("int64")]
        return (losses, *picked) if picked else losses

    def _of_rows(self, prediction: TensorVariable, weights: TensorVariable) -> TensorVariable:
        return _weighted_surprisal(self, prediction, weights)

    def _smoothed(self, target: TensorVariable) -> TensorVariable:
        """Give each class's weight in the loss of a row: smoothed target times class weight."""
        target = smoothed(target, self.label_smoothing)
        return target if self.class_weights is None else self._weights(target) * target

    def _weights(self, like: TensorVariable) -> TensorVariable:
        return pt.constant(np.asarray(self.class_weights, dtype=like.type.dtype))

    def _with_class_count(self, prediction: TensorVariable) -> TensorVariable:
        if self.class_weights is None:
            return prediction
        given, shape = len(self.class_weights), prediction.type.shape
        if shape[-1] not in (None, given):
            raise ValueError(
                WEIGHTS_COUNT.format(loss=type(self).__name__, given=given, classes=shape[-1], shape=shape)
            )
        return pt.specify_shape(prediction, (*shape[:-1], given))


class KLDivergence(Loss):
    r"""The Kullback-Leibler divergence of the predicted distribution from the target's.

    Over the classes of the last axis,

    .. math:: \mathrm{KL}(t \,\|\, p) = \sum_c t_c (\log t_c - \log p_c), \qquad 0 \log 0 = 0.

    The mean is over distributions, not over elements. Values and gradients are exact for infinite logits and
    for probabilities of zero. The gradient flows into the target too, unless it is a constant or an input.

    Parameters
    ----------
    expect_logits : bool
        Whether the prediction holds logits, which any log-probabilities are too (True), or probabilities
        (False). The target always holds probabilities. Default False.
    reduction : {"mean", "sum", "none"}
        Default "mean".

    Raises
    ------
    TypeError
        If `expect_logits` is not a boolean.
    ValueError
        If `reduction` is something else; when called, if the target has not the prediction's shape; when run,
        if a predicted probability is below 0 or above 1 (JAX, MLX and PyTorch do not raise).

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import KLDivergence
    >>> KLDivergence()(pt.constant([[0.25, 0.75]]), pt.constant([[0.0, 1.0]])).eval().round(4)
    np.float64(0.2877)
    """

    expect_logits: bool = attrs.field(default=False, validator=flag)

    def build(self, prediction: TensorVariable, target: TensorVariable) -> TensorVariable:
        if prediction.type.ndim == 0:
            raise ValueError(NO_CLASSES.format(loss=type(self).__name__))
        target = same_shape(self, prediction, target)
        target = target.astype(prediction.type.dtype)
        absent = pt.eq(target, number(0.0, target))
        own = target * pt.log(pt.switch(absent, number(1.0, target), target))
        return own.sum(axis=-1) + _weighted_surprisal(self, prediction, target)
