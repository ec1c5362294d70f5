"""Evaluation: a program that computes metrics of a network over any number of batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from ptml.compile.function import compile_predict
from ptml.compile.program import Program
from ptml.loss.base import Loss
from ptml.loss.weight import weight_of
from ptml.metrics.average import Average
from ptml.metrics.base import Metric, Totals, mean
from ptml.training.baseline import constant_prediction
from ptml_state import State, Store

__all__ = ["Evaluator", "compile_evaluate"]

#: What is computed once: nothing is compiled.
PYTHON = Mode(linker="py", optimizer="fast_compile")

NOT_A_METRIC = (
    "compile_evaluate(prediction, metrics): metrics are values such as Accuracy(), losses such as "
    "SquaredError(), or scalar tensors; {name} is {given!r}.{hint}"
)
NO_METRICS = "compile_evaluate(prediction, metrics) was given no metrics."
SWAPPED = "compile_evaluate(prediction, metrics): the prediction, a tensor, comes first; got {given!r}."
NO_TARGET = "The metrics are all tensors, and know their target: leave target= out."
NO_BATCHES = "There was no batch to evaluate."
NOT_A_BATCH = "A batch is a tuple of arrays, {n} of them here; got {given}."


@attrs.frozen
class _Mean(Metric):
    """The mean of a scalar that the graph computes of each batch, by what it averages over."""

    def value(self, totals: Totals) -> float:
        return mean(totals)


@attrs.frozen(eq=False, repr=False)
class Evaluator:
    """A compiled evaluation, made by :func:`compile_evaluate`: call it with data, or go over a loader.

    Attributes
    ----------
    program : Program
        What computes the totals of a batch.
    metrics : dict
        The metrics by name.
    """

    program: Program
    metrics: dict[str, Metric]
    _counts: tuple[int, ...]
    _single: bool
    _compared: tuple[TensorVariable, TensorVariable | None]

    def __call__(self, *data: Any, batch_size: int | None = None) -> Any:
        """Evaluate data.

        Parameters
        ----------
        *data : array-like
            The inputs of the program, in order; the target is the last.
        batch_size : int, optional
            How many rows are computed at once; all of them unless given.

        Returns
        -------
        float, array or dict
            The number of a single metric; else numbers by name.
        """
        if batch_size is None:
            return self.over([data])
        rows = len(data[0])
        return self.over(
            tuple(array[start : start + batch_size] for array in data) for start in range(0, rows, batch_size)
        )

    def over(self, batches: Iterable[Sequence[Any]]) -> Any:
        """Evaluate batches, of any sizes: as if they had been one.

        Parameters
        ----------
        batches : iterable of tuples
            Such as a :class:`ptml.data.DataLoader`.

        Raises
        ------
        ValueError
            If there is none.
        """
        sums: list[Totals] | None = None
        for batch in batches:
            if not isinstance(batch, Sequence):
                given = type(batch).__name__
                raise TypeError(NOT_A_BATCH.format(n=len(self.program.inputs), given=given))
            found = self._totals(batch)
            if sums is None:
                sums = found
            else:
                every = zip(self.metrics.values(), sums, found, strict=True)
                sums = [metric.merged(one, other) for metric, one, other in every]
        if sums is None:
            raise ValueError(NO_BATCHES)
        values = [metric.value(totals) for metric, totals in zip(self.metrics.values(), sums, strict=True)]
        return values[0] if self._single else dict(zip(self.metrics, values, strict=True))

    def _totals(self, batch: Sequence[Any]) -> list[Totals]:
        found = iter(self.program(*batch))
        # In float32 a sum over many batches would lose what each adds.
        wide = (np.asarray(x, "float64") if x.dtype.kind == "f" else np.asarray(x) for x in found)
        return [tuple(next(wide) for _ in range(n)) for n in self._counts]

    def baseline(self, learned: Any, target: Any) -> dict[str, float]:
        """Give the losses of one and the same prediction for every row: what a network has to beat.

        Parameters
        ----------
        learned : array-like
            Targets that the prediction is the best for: those of training.
        target : array-like
            Targets that it is measured on.

        Returns
        -------
        dict
            By name, of those metrics that are losses of which the best constant prediction is known.
        """
        prediction, right = self._compared
        found: dict[str, float] = {}
        if right is None:
            return found
        learned, target = np.asarray(learned), np.asarray(target)
        for name, metric in self.metrics.items():
            if type(metric) is not Average:
                continue
            shape = _shape_of(prediction, target)
            constant = constant_prediction(metric.loss, learned, shape)
            if constant is not None:
                totals = pytensor.function([prediction, right], metric(prediction, right), mode=PYTHON)(
                    constant.astype(prediction.type.dtype), target.astype(right.type.dtype)
                )
                found[name] = metric.value(tuple(map(np.asarray, totals)))
        return found

    def __repr__(self) -> str:
        return f"<Evaluator({', '.join(self.metrics)}) of {self.program!r}>"


def compile_evaluate(
    prediction: TensorVariable,
    metrics: Any,
    *,
    target: TensorVariable | None = None,
    inputs: Sequence[Any] | None = None,
    state: State | Store | Program | None = None,
    seed: int | None = None,
    backend: str | None = None,
    compile_kwargs: Mapping[str, Any] | None = None,
) -> Evaluator:
    """Compile what measures a network: specialized for prediction, and exact over batches of any sizes.

    Parameters
    ----------
    prediction : float tensor
        What the network computes.
    metrics : Metric, Loss, or mapping of them by name
        A loss stands for its mean over all rows. A scalar tensor of the graph's may stand in a mapping too:
        its mean over batches, by what a loss of :mod:`ptml.loss` averages over, and else by rows.
    target : tensor, optional
        The input for what is right; the first metric makes one unless given.
    inputs : sequence of Variable or In, optional
        What a call takes, in order; the roots of the graph in the order in which they were made, then a
        target that was made here, unless given.
    state : State, Store or Program
        The trained state. Given a program, the evaluation sees every step that it makes.
    seed, backend, compile_kwargs
        As for :func:`ptml.compile_predict`.

    Returns
    -------
    Evaluator

    Raises
    ------
    TypeError
        If something is no metric.
    ValueError
        If there is none, or the graph has parameters and there is no state.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input, Linear
    >>> from ptml.loss import SquaredError
    >>> from ptml.metrics import R2
    >>> X, fc = Input("X", shape=(None, 1)), Linear("fc", n_in=1, n_out=1)
    >>> state = ptml.init(fc, seed=0).replace({"fc/W": [[2.0]]})
    >>> evaluate = ptml.compile_evaluate(fc(X), {"loss": SquaredError(), "R2": R2()}, state=state)
    >>> evaluate([[0.0], [1.0]], [[1.0], [2.0]])
    {'loss': 0.5, 'R2': -1.0}
    """
    if not isinstance(prediction, Variable):
        raise TypeError(SWAPPED.format(given=prediction))
    single = not isinstance(metrics, Mapping)
    named = {_name_of(metrics): metrics} if single else dict(metrics)
    if not named:
        raise ValueError(NO_METRICS)
    for name, metric in named.items():
        named[name] = Average(metric) if isinstance(metric, Loss) else metric
        if not isinstance(named[name], Metric) and not (
            isinstance(metric, Variable) and getattr(metric.type, "ndim", None) == 0
        ):
            hint = f" Write {metric.__name__}()." if isinstance(metric, type) else ""
            raise TypeError(NOT_A_METRIC.format(name=name, given=metric, hint=hint))
    measured = [metric for metric in named.values() if isinstance(metric, Metric)]
    if target is None and measured:
        target = measured[0].target_for(prediction, "target")
    elif target is not None and not measured:
        raise ValueError(NO_TARGET)
    totals = [
        metric(prediction, target) if isinstance(metric, Metric) else _of_scalar(metric, prediction)
        for metric in named.values()
    ]
    program = compile_predict(
        [total for of_metric in totals for total in of_metric],
        inputs=inputs,
        state=state,
        seed=seed,
        backend=backend,
        compile_kwargs=compile_kwargs,
    )
    return Evaluator(
        program,
        {name: metric if isinstance(metric, Metric) else _Mean() for name, metric in named.items()},
        tuple(len(of_metric) for of_metric in totals),
        single,
        (prediction.type(), None if target is None else target.type()),
    )


def _name_of(metric: Any) -> str:
    return type(metric).__name__ if isinstance(metric, Metric | Loss) else "metric"


def _shape_of(prediction: TensorVariable, target: np.ndarray) -> tuple[int, ...]:
    """Give the shape of predictions for some targets: theirs, with classes where labels have none."""
    if prediction.type.ndim == target.ndim:
        return target.shape
    return (*target.shape, prediction.type.shape[-1] or int(target.max()) + 1)


def _of_scalar(scalar: TensorVariable, prediction: TensorVariable) -> list[TensorVariable]:
    weight = weight_of(scalar)
    over = prediction.shape[0] if isinstance(weight, str) else weight
    return [scalar * over.astype(scalar.type.dtype), over]
