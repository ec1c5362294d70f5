"""Scaling of data by their own means and standard deviations, kept in the state."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim
from ptml.declare import slot, statistic
from ptml.initializers import Ones, Zeros
from ptml.layer import Layer
from ptml.start import init
from ptml.validate import described, positive_int
from ptml_state import State

__all__ = ["Standardize"]

WRONG_DATA = "{who}.fit(X) takes rows of {n} features, (rows, ..., {n}); got shape {shape}."
NO_ROWS = "{who}.fit(X) has no rows to learn from; got shape {shape}."
NOT_FINITE = (
    "{who}.fit(X): feature {feature} has {n} values that are not finite. Fill them in, or drop the rows."
)


class Standardize(Layer):
    """Shift and scale each feature by numbers that were learned from data: ``(X - mean) / std``.

    The numbers are statistics in the state, which no training moves: they come with it into every checkpoint,
    every prediction and every other program. :meth:`fit` learns them. Give it the training rows only; a
    scaler that has seen the validation rows leaks what they are like.

    Parameters
    ----------
    name : str, optional
    n_in : int
        The size of the last axis.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if the last axis has
        another size than `n_in`.
    TypeError
        When called, if the input holds integers, or is wider than the statistics.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, Standardize
    >>> rows = np.array([[1.0, 10.0], [3.0, 10.0]])
    >>> scaler = Standardize("scaler", n_in=2)
    >>> scale = ptml.compile_predict(scaler(Input("X", shape=(None, 2))), state=scaler.fit(rows))
    >>> scale(rows)
    array([[-1.,  0.],
           [ 1.,  0.]])
    """

    n_in: int = attrs.field(validator=positive_int)

    n_inputs = 1

    @slot
    def mean(self) -> Any:
        """The mean of each feature, ``(n_in,)``; 0 until it is learned."""
        return statistic((self.n_in,), Zeros())

    @slot
    def std(self) -> Any:
        """The standard deviation of each feature, ``(n_in,)``; 1 until it is learned, and of constants."""
        return statistic((self.n_in,), Ones())

    def build(self, X: TensorVariable) -> TensorVariable:
        X = self._checked(X)
        return (X - self.mean) / self.std

    def inverse(self, Y: TensorVariable) -> TensorVariable:
        """Undo it: ``Y * std + mean``, for predictions of scaled targets.

        Parameters
        ----------
        Y : tensor, ``(..., n_in)``
        """
        Y = self._checked(pt.as_tensor(Y))
        return Y * self.std + self.mean

    def _checked(self, X: TensorVariable) -> TensorVariable:
        wants = f"(..., {self.n_in} features)"
        check_floating(self, X, dtype=self.mean.type.dtype)
        check_ndim(self, X, minimum=1, wants=wants)
        return check_axis(self, X, self.n_in, wants=wants)

    def fit(self, X: Any) -> State:
        """Learn the numbers from data.

        Parameters
        ----------
        X : array-like, ``(rows, ..., n_in)``
            The training rows.

        Returns
        -------
        State
            The two leaves; give it as ``state=`` to what compiles, where all that it lacks is drawn, or load
            it into a store that is there. The standard deviation divides by the number of rows, as
            scikit-learn's ``StandardScaler`` does, and of a constant feature it is 1.

        Raises
        ------
        ValueError
            If the features are of another number, there are no rows, or something is not finite.
        """
        who = described(self)
        rows = np.asarray(X, dtype="float64")
        if rows.ndim < 2 or rows.shape[-1] != self.n_in:
            raise ValueError(WRONG_DATA.format(who=who, n=self.n_in, shape=rows.shape))
        rows = rows.reshape(-1, self.n_in)
        if not len(rows):
            raise ValueError(NO_ROWS.format(who=who, shape=np.shape(X)))
        unusable = (~np.isfinite(rows)).sum(axis=0)
        if unusable.any():
            feature = int(unusable.argmax())
            raise ValueError(NOT_FINITE.format(who=who, feature=feature, n=unusable[feature]))
        mean = rows.mean(axis=0)
        std = np.sqrt(((rows - mean) ** 2).mean(axis=0))
        # What rounding leaves of a constant is no spread.
        std[std <= np.finfo("float64").eps * np.abs(mean)] = 1.0
        std[std == 0] = 1.0
        start = init(self, seed=0)
        return start.replace(
            {
                address: value.astype(start[address].dtype)
                for address, value in zip(start, (mean, std), strict=True)
            }
        )
