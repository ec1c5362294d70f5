"""Cross entropies of logits, with their gradients, as fused ops: one walk over the logits gives both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused, one_float_dtype
from ptml.loss.softmax import Surprisal

__all__ = ["LabelEntropy", "TargetEntropy", "class_ids"]


def class_ids(prediction: TensorVariable) -> TensorVariable:
    """Number the classes: a constant where their count is known, which is all that MLX can do."""
    count = prediction.type.shape[-1]
    if count is not None:
        return pt.constant(np.arange(count, dtype="int32"))
    return pt.cumsum(pt.ones((prediction.shape[-1],), dtype="int32")) - np.int32(1)


def _number(value: float, like: Variable) -> TensorVariable:
    return pt.constant(value, dtype=like.type.dtype)


class _Entropy(Fused):
    """A fused op of logits and what is right, that gives the losses of rows and their slopes."""

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        if not one_float_dtype(inputs):
            return [output.type for output in self.build(*inputs)][:2]
        kind = inputs[0].type
        return [kind.clone(shape=kind.shape[:-1]), kind]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [tuple(shapes[0][:-1]), shapes[0]]

    def of_weights(self, logits: TensorVariable, weights: TensorVariable) -> list[Variable]:
        """Sum the surprisals over the classes, leaving out (not multiplying by zero) those of weight zero."""
        surprisals, probabilities = Surprisal()(logits)
        zero = _number(0.0, weights)
        losses = pt.switch(pt.eq(weights, zero), zero, weights * surprisals).sum(axis=-1)
        return [losses, probabilities * weights.sum(axis=-1, keepdims=True) - weights]

    def by_slopes(self, inputs: Any, outputs: Any, cotangents: Any) -> Variable | None:
        """Give what the losses' cotangents say about the logits, or None where there are none."""
        if isinstance(cotangents[0].type, DisconnectedType):
            return None
        return cotangents[0][..., None] * outputs[1]

    def through_slopes(self, inputs: Any, cotangents: Any) -> list[Any]:
        """Give what the slopes' cotangents say, by the graph: a second derivative."""
        rest = [disconnected_type(), *cotangents[1:]]
        if all(isinstance(cotangent.type, DisconnectedType) for cotangent in rest):
            return [disconnected_type() for _ in inputs]
        return self.defined_pullback(inputs, rest)


class TargetEntropy(_Entropy):
    r"""The cross entropy :math:`-\sum_c q_c \log p_c` of logits and the weights of the classes in each row.

    The op is applied to ``(logits, weights)``, of one shape and dtype. It gives the losses of the rows, and
    their slopes, the derivatives by the logits: :math:`p_c \sum_k q_k - q_c`.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss.entropy import TargetEntropy
    >>> losses, slopes = TargetEntropy()(pt.constant([[0.0, 0.0]]), pt.constant([[1.0, 0.0]]))
    >>> slopes.eval()
    array([[-0.5,  0.5]])
    """

    def build(self, logits: TensorVariable, weights: TensorVariable) -> list[Variable]:
        return self.of_weights(logits, weights)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        by_slopes = self.by_slopes(inputs, outputs, cotangents)
        of_logits, of_weights = self.through_slopes(inputs, cotangents)
        if by_slopes is None:
            return [of_logits, of_weights]
        logits, weights = inputs
        zero = _number(0.0, weights)
        own = pt.switch(pt.eq(weights, zero), zero, cotangents[0][..., None] * Surprisal()(logits)[0])
        return [_sum(by_slopes, of_logits), _sum(own, of_weights)]


class LabelEntropy(_Entropy):
    r"""The cross entropy of logits and integer labels.

    The op is applied to ``(logits, labels)``, and, if it is weighted, a vector of class weights of the same
    dtype as the logits. It gives the losses of the rows and their slopes, as :class:`TargetEntropy` does,
    with the weights

    .. math:: q_c = w_c \Bigl((1 - \epsilon)\, [c = y] + \frac{\epsilon}{C}\Bigr)

    and, if it is weighted, :math:`w_y` as well. No one-hot is made on the way. Where a label is no class, and
    not ignored either, the loss and the slopes are NaN.

    Parameters
    ----------
    smoothing : float
        The part :math:`\epsilon`. Default 0.0.
    ignore : int, optional
        The label whose rows have a loss, slopes and weight of zero whatever their logits are.
    weighted : bool
        Default False.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss.entropy import LabelEntropy
    >>> losses, slopes = LabelEntropy()(pt.constant([[0.0, 0.0]]), pt.constant([1]))
    >>> slopes.eval()
    array([[ 0.5, -0.5]])
    """

    __props__ = ("smoothing", "ignore", "weighted")

    def __init__(self, smoothing: float = 0.0, ignore: int | None = None, weighted: bool = False) -> None:
        self.smoothing = smoothing
        self.ignore = ignore
        self.weighted = weighted

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        losses, slopes = super().output_types(*inputs)
        return [losses, slopes, losses] if self.weighted else [losses, slopes]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        losses, slopes = super().infer_shape(node, shapes)
        return [losses, slopes, losses] if self.weighted else [losses, slopes]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        # What a row weighs does not depend on its logits.
        rows = [[True, True], [False, False], [False, False]][: len(node.inputs)]
        return [[*row, False] for row in rows] if self.weighted else rows

    def build(
        self, logits: TensorVariable, labels: TensorVariable, class_weights: TensorVariable | None = None
    ) -> list[Variable]:
        count = logits.type.shape[-1]
        n_classes = logits.shape[-1] if count is None else np.int64(count)
        zero, one = _number(0.0, logits), _number(1.0, logits)
        possible = pt.ge(labels, np.int8(0)) & pt.lt(labels, n_classes)
        # int32 lanes are as wide as float32's; a label that this wraps is not possible.
        right = pt.eq(labels.astype("int32")[..., None], class_ids(logits))
        onehot = pt.switch(right, one, zero)
        weights = smoothed(onehot, self.smoothing)
        picked = [] if class_weights is None else [(class_weights * onehot).sum(axis=-1)]
        if class_weights is not None:
            weights = class_weights * weights
        if self.ignore is not None:
            kept = pt.neq(labels, self.ignore)
            possible = possible | ~kept
            weights = pt.switch(kept[..., None], weights, zero)
            picked = [pt.switch(kept, weight, zero) for weight in picked]
            # Padding may hold anything, NaN included, and zero times its gradient would not be zero.
            logits = pt.switch(kept[..., None], logits, zero)
        weights = pt.switch(possible[..., None], weights, _number(np.nan, logits))
        return [*self.of_weights(logits, weights), *picked]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        by_slopes = self.by_slopes(inputs, outputs, cotangents)
        unweighted = [*cotangents[:2], *(disconnected_type() for _ in cotangents[2:])]
        of_logits = self.through_slopes(inputs, unweighted)[0]
        rest = [disconnected_type() for _ in inputs[1:]]
        return [of_logits if by_slopes is None else _sum(by_slopes, of_logits), *rest]


def smoothed(target: TensorVariable, smoothing: float) -> TensorVariable:
    """Spread a part of each target over all classes.

    Parameters
    ----------
    target : float tensor, (..., classes)
    smoothing : float
        The part, from 0 to 1.
    """
    if not smoothing:
        return target
    count = target.type.shape[-1]
    share: TensorVariable
    if count is None:
        share = _number(smoothing, target) / target.shape[-1].astype(target.type.dtype)
    else:
        share = _number(smoothing / count, target)
    return _number(1 - smoothing, target) * target + share


def _sum(first: Variable, second: Variable) -> Variable:
    return first if isinstance(second.type, DisconnectedType) else first + second
