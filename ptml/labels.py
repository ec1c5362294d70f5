"""Checks of what a loss is told is right: ops that look at a target and give it back.

A target of the wrong shape is an error on every backend. A label that cannot be is an error that names it
where a backend can raise (Python, C, numba); a traced one (JAX, MLX, PyTorch) cannot: there the labels pass,
and the loss that reads them says NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.type import float_dtypes, integer_dtypes

__all__ = ["CheckIds", "CheckLabels", "CheckProbabilities", "CheckShape", "shapes_differ"]

_OUTSIDE = "{loss}: label {{0}} is not one of the {{1}} classes, which are numbered 0 to {{2}}{also}"
_NO_ROW = "{loss}: there is no row {{0}} in its table of {{1}}, whose rows are numbered 0 to {{2}}."
_UNDECLARED = ". If it marks what to leave out, write {loss}(ignore_label={{0}})."
_DECLARED = ", nor the declared ignore_label={ignore}."
_NO_PROBABILITY = (
    "{loss}: target {{0}} is not between 0 and 1. Targets are the labels 0 and 1, or probabilities "
    "between them."
)
_NO_PREDICTED_PROBABILITY = (
    "{loss}: the prediction holds {{0}}, which is no probability. If it holds logits, write "
    "{loss}(expect_logits=True)."
)
#: How far above 1 the rounding of a softmax may carry a predicted probability.
_ROUNDING = 1e-3
_SHAPES_DIFFER = (
    "{loss}: prediction has shape {prediction}, {what} {target}; they must be the same{but}.{hint}"
)
_BUT = " but for the last axis, the classes"
_NOT_INTEGER = "{op} takes integer labels, and was given {given}. Write labels.astype('int64')."
_NOT_FLOAT = "{op} takes float targets, and was given {given}. Write target.astype('float32')."
_BATCHED_COUNT = (
    "vectorize_graph gave {op} a batched number of classes ({given}). Build the loss on inputs that have "
    "the batch axis already."
)


def shapes_differ(loss: str, prediction: Any, target: Any, *, labels: bool = False, hint: str = "") -> str:
    """Write the error of a target that has not the prediction's shape.

    Parameters
    ----------
    loss
        The name of who asks.
    prediction, target
        The shapes, or places for them.
    labels
        Whether the target holds labels, and so lacks the last axis.
    hint
        What to do about it, after a space.

    Examples
    --------
    >>> from ptml.labels import shapes_differ
    >>> shapes_differ("SquaredError", (8, 1), (8,))
    'SquaredError: prediction has shape (8, 1), target (8,); they must be the same.'
    """
    what, but = ("labels", _BUT) if labels else ("target", "")
    return _SHAPES_DIFFER.format(
        loss=loss, prediction=prediction, what=what, target=target, but=but, hint=hint
    )


class _Check(Op):
    """Give the first input back, once it was found possible."""

    view_map: ClassVar[dict[int, list[int]]] = {0: [0]}
    #: What the error says, with the offending value, and numbers that explain it, to be formatted in.
    message: str

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        # The error belongs to the call, not to the rewriting of the graph.
        return False


class CheckShape(_Check):
    """Raise where a target has not the prediction's shape, so that nothing is broadcast by accident.

    The op is applied to ``(target, prediction)``, whose numbers of axes go together, and gives the target
    back, of a type that knows what is known of either shape, with its gradient.

    Parameters
    ----------
    loss
        The name of who asks, for the error.
    labels
        Whether the target holds labels, and so lacks the prediction's last axis. Default False.

    Raises
    ------
    ValueError
        When run (on JAX, MLX and PyTorch: when traced), if the shapes differ.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.labels import CheckShape
    >>> target, prediction = pt.tensor(shape=(None, 1)), pt.tensor(shape=(8, None))
    >>> CheckShape("SquaredError")(target, prediction).type.shape
    (8, 1)
    """

    __props__ = ("loss", "labels")

    def __init__(self, loss: str, labels: bool = False) -> None:
        self.loss = loss
        self.labels = labels
        self.message = shapes_differ(loss, "{0}", "{1}", labels=labels)

    def make_node(self, target: Any, prediction: Any) -> Apply:
        target, prediction = pt.as_tensor(target), pt.as_tensor(prediction)
        known = zip(target.type.shape, self.compared(prediction.type.shape), strict=True)
        shape = tuple(b if a is None else a for a, b in known)
        return Apply(self, [target, prediction], [target.type.clone(shape=shape)()])

    def compared(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give those of the prediction's axes that the target has too."""
        return shape[:-1] if self.labels else shape

    def check(self, target: Any, prediction: Any) -> Any:
        """Give a target back, an array of any library that knows its shape."""
        if tuple(target.shape) != self.compared(tuple(prediction.shape)):
            raise ValueError(self.message.format(tuple(prediction.shape), tuple(target.shape)))
        return target

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        # The prediction's, so that PyTensor need not compare the two to know the shape of their difference.
        return [self.compared(tuple(shapes[1]))]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        output_storage[0][0] = self.check(*inputs)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [cotangents[0], disconnected_type()]


class CheckLabels(_Check):
    """Raise where an integer label is no class.

    The op is applied to ``(labels, n_classes)``: integers of any shape, and an integer scalar. It gives the
    labels back as they are. No gradient flows through it.

    Parameters
    ----------
    loss
        The name of who asks, for the error.
    ignore
        A label to let pass although it is no class. Default none.

    Raises
    ------
    TypeError
        When applied, if the labels are no integers.
    ValueError
        When run, if a label is below 0 or not below the number of classes. JAX, MLX and PyTorch do not raise.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.labels import CheckLabels
    >>> labels = pt.constant([0, 2, -100], dtype="int64")
    >>> CheckLabels("CrossEntropy", ignore=-100)(labels, 3).eval()
    array([   0,    2, -100])
    >>> CheckLabels("CrossEntropy").message.format(3, 3, 2)
    'CrossEntropy: label 3 is not one of the 3 classes, which are numbered 0 to 2. If it marks what to
    leave out, write CrossEntropy(ignore_label=3).'
    """

    __props__ = ("loss", "ignore")

    def __init__(self, loss: str, ignore: int | None = None) -> None:
        self.loss = loss
        self.ignore = ignore
        also = _UNDECLARED if ignore is None else _DECLARED
        self.message = _OUTSIDE.format(loss=loss, also=also.format(loss=loss, ignore=ignore))

    def make_node(self, labels: Any, n_classes: Any) -> Apply:
        labels = pt.as_tensor(labels)
        if labels.type.dtype not in integer_dtypes:
            raise TypeError(_NOT_INTEGER.format(op=self, given=labels.type))
        count = pt.as_tensor(n_classes)
        count = count if count.type.dtype == "int64" else count.astype("int64")
        return Apply(self, [labels, count], [labels.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        labels, n_classes = inputs
        outside = (labels < 0) | (labels >= n_classes)
        if self.ignore is not None:
            outside &= labels != self.ignore
        if outside.any():
            label = np.extract(outside, labels)[0]
            raise ValueError(self.message.format(label, n_classes, n_classes - 1))
        output_storage[0][0] = labels

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [disconnected_type(), disconnected_type()]


class CheckIds(CheckLabels):
    """Raise where an integer is the number of no row of a table.

    The op is applied to ``(ids, n_rows)``, as :class:`CheckLabels` is.

    Parameters
    ----------
    loss
        The name of who asks, for the error.
    ignore
        A number to let pass although there is no such row. Default none.

    Raises
    ------
    TypeError
        When applied, if the ids are no integers.
    ValueError
        When run, if there is no such row. JAX, MLX and PyTorch do not raise.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.labels import CheckIds
    >>> CheckIds("tokens (Embedding)").message.format(4, 4, 3)
    'tokens (Embedding): there is no row 4 in its table of 4, whose rows are numbered 0 to 3.'
    """

    def __init__(self, loss: str, ignore: int | None = None) -> None:
        super().__init__(loss, ignore)
        self.message = _NO_ROW.format(loss=loss.replace("{", "{{").replace("}", "}}"))


class CheckProbabilities(_Check):
    """Raise where a float is not between 0 and 1; NaN passes.

    The op is applied to ``(probabilities)``, of any shape, and gives them back as they are, with their
    gradient.

    Parameters
    ----------
    loss
        The name of who asks, for the error.
    predicted
        Whether they are a prediction, which may exceed 1 by a rounding, and not a target.

    Raises
    ------
    TypeError
        When applied, if the probabilities are no floats.
    ValueError
        When run, if one is below 0 or above 1. JAX, MLX and PyTorch do not raise.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.labels import CheckProbabilities
    >>> CheckProbabilities("BinaryCrossEntropy")(pt.constant([0.0, 0.3, 1.0])).eval()
    array([0. , 0.3, 1. ])
    """

    __props__ = ("loss", "predicted")

    def __init__(self, loss: str, predicted: bool = False) -> None:
        self.loss = loss
        self.predicted = predicted
        self.message = (_NO_PREDICTED_PROBABILITY if predicted else _NO_PROBABILITY).format(loss=loss)
        self.most = 1.0 + _ROUNDING if predicted else 1.0

    def make_node(self, probabilities: Any) -> Apply:
        probabilities = pt.as_tensor(probabilities)
        if probabilities.type.dtype not in float_dtypes:
            raise TypeError(_NOT_FLOAT.format(op=self, given=probabilities.type))
        return Apply(self, [probabilities], [probabilities.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        (probabilities,) = inputs
        outside = (probabilities < 0) | (probabilities > self.most)
        if outside.any():
            raise ValueError(self.message.format(np.extract(outside, probabilities)[0]))
        output_storage[0][0] = probabilities

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [cotangents[0]]


@_vectorize_node.register(CheckLabels)
@_vectorize_node.register(CheckProbabilities)
def _vectorize_check(op: _Check, node: Apply, *batched: Variable) -> Apply:
    for count in batched[1:]:
        if count.type.ndim:
            raise ValueError(_BATCHED_COUNT.format(op=op, given=count.type))
    return op.make_node(*batched)


@_vectorize_node.register(CheckShape)
def _vectorize_shape(op: CheckShape, node: Apply, target: Variable, prediction: Variable) -> Apply:
    core = node.inputs[0].type.ndim
    missing = (prediction.type.ndim - node.inputs[1].type.ndim) - (target.type.ndim - core)
    # Either may have batch axes that the other lacks; only what both have had to agree.
    if missing > 0:
        batch = prediction.shape[: prediction.type.ndim - node.inputs[1].type.ndim]
        target = pt.broadcast_to(target, (*batch, *target.shape[target.type.ndim - core :]))
    elif missing < 0:
        batch = target.shape[: target.type.ndim - core]
        prediction = pt.broadcast_to(prediction, (*batch, *prediction.shape))
    return op.make_node(target, prediction)
