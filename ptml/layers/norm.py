"""Batch normalization."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim, row_count
from ptml.declare import parameter, slot, statistic
from ptml.initializers import Ones, Zeros
from ptml.layer import Layer
from ptml.marks import advance, in_training
from ptml.validate import flag, positive, positive_int, real

__all__ = ["BatchNorm"]

ONE_ROW = (
    "One value has no variance. Leave a last batch of one out (drop_last=True in the DataLoader), take "
    "larger batches, or compile_predict if this is not training."
)


class BatchNorm(Layer):
    """Normalize each feature over the batch, for X of shape ``(batch, ..., n_in)``.

    In training every feature is normalized by its mean and variance over all axes but the last, and the
    running statistics move towards those. In prediction the running statistics normalize. The gradient
    flows through the batch's mean and variance.

    Parameters
    ----------
    name : str, optional
    n_in : int
        The size of the last axis: channels are last.
    momentum : float
        The weight of the new batch, in ``[0, 1]``; 0.1 unless given:
        ``running = (1 - momentum) * running + momentum * batch``.
    epsilon : float
        What is added to a variance before its root is taken, 1e-5 unless given.
    affine : bool
        Whether what is normalized is multiplied by a trained ``scale`` and shifted by a trained ``b``; True
        unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if the last axis has
        another size than `n_in`; by the running graph, if in training there is one value per feature.
    TypeError
        When called, if the input holds integers, or is wider than the parameters.

    Notes
    -----
    The variance is the biased one, divided by the number of values, both where it normalizes and where it
    is stored as ``running_var``. PyTorch stores the unbiased one.

    References
    ----------
    Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing internal covariate
    shift" (2015), algorithms 1 and 2.

    Examples
    --------
    >>> from ptml.layers import BatchNorm, Input
    >>> bn = BatchNorm("bn", n_in=3)
    >>> bn(Input("X", (None, 3))).type.shape
    (None, 3)
    >>> bn.running_var.slot
    Slot('bn/running_var', Role.STATISTIC, float64[3])
    """

    n_in: int = attrs.field(validator=positive_int)
    momentum: float = attrs.field(
        default=0.1, validator=real(lambda momentum: 0 <= momentum <= 1, "a number in [0, 1]")
    )
    epsilon: float = attrs.field(default=1e-5, validator=positive)
    affine: bool = attrs.field(default=True, validator=flag)

    n_inputs = 1

    @slot
    def scale(self) -> Any:
        """The trained scale, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Ones()) if self.affine else None

    @slot
    def b(self) -> Any:
        """The trained shift, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Zeros()) if self.affine else None

    @slot
    def running_mean(self) -> Any:
        """The running mean, ``(n_in,)``."""
        return statistic((self.n_in,), Zeros())

    @slot
    def running_var(self) -> Any:
        """The running variance, ``(n_in,)``."""
        return statistic((self.n_in,), Ones())

    def build(self, X: TensorVariable) -> TensorVariable:
        dtype = self.running_mean.type.dtype
        wants = f"(batch, ..., {self.n_in} channels)"
        check_floating(self, X, dtype=dtype)
        check_ndim(self, X, minimum=2, wants=wants)
        # A narrower input is summed and normalized in the dtype of the statistics.
        X = check_axis(self, X, self.n_in, wants=wants).astype(dtype)
        axes = tuple(range(X.type.ndim - 1))
        n = row_count(self, X, axes, minimum=2, wants="values per channel in training", hint=ONE_ROW)
        mean = X.sum(axis=axes) / n.astype(dtype)
        variance = pt.sqr(X - mean).sum(axis=axes) / n.astype(dtype)

        centre = in_training(mean, self.running_mean)
        spread = pt.sqrt(in_training(variance, self.running_var) + np.asarray(self.epsilon, dtype))
        # Dividing features once each, rather than every element, costs nothing in accuracy.
        factor = (np.ones((), dtype) if self.scale is None else self.scale) / spread
        Y = (X - centre) * factor
        if self.b is not None:
            Y = Y + self.b
        kept, new = np.asarray(1 - self.momentum, dtype), np.asarray(self.momentum, dtype)
        return advance(
            Y,
            {
                self.running_mean: kept * self.running_mean + new * mean,
                self.running_var: kept * self.running_var + new * variance,
            },
        )
