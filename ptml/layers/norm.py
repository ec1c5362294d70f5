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
from ptml.layers.standardize import working_dtype
from ptml.layout import check_layout
from ptml.marks import advance, in_training
from ptml.ops.moments import Moments
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
    track_running_stats : bool
        Whether there are running statistics; True unless given. Without them the batch's own statistics
        normalize in prediction too, which so depends on what is predicted together.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if the last axis has
        another size than `n_in`; by the running graph, if the batch's statistics are wanted of one value.
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
    track_running_stats: bool = attrs.field(default=True, validator=flag)

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
        """The running mean, ``(n_in,)``, or None without one."""
        return statistic((self.n_in,), Zeros()) if self.track_running_stats else None

    @slot
    def running_var(self) -> Any:
        """The running variance, ``(n_in,)``, or None without one."""
        return statistic((self.n_in,), Ones()) if self.track_running_stats else None

    def build(self, X: TensorVariable) -> TensorVariable:
        wants = f"(batch, ..., {self.n_in} channels)"
        held = next((h for h in (self.running_mean, self.scale) if h is not None), None)
        check_floating(self, X, dtype=None if held is None else held.type.dtype)
        check_ndim(self, X, minimum=2, wants=wants)
        check_layout(self, X, "...C")
        X = check_axis(self, X, self.n_in, wants=wants)
        # A narrower input is summed and normalized in the dtype of the statistics, half precision in single.
        dtype = X.type.dtype if held is None else held.type.dtype
        work = working_dtype(dtype)
        X = X.astype(work)
        axes = tuple(range(X.type.ndim - 1))
        tracked = self.running_mean is not None
        n = row_count(
            self,
            X,
            axes,
            minimum=2,
            wants="values per channel in training" if tracked else "values per channel",
            hint=ONE_ROW if tracked else "One value has no variance.",
        )
        mean, variance = Moments()(X, n)

        # Vectors become rows before anything is computed of them. PyTensor's rewrites move such a change of
        # axes about, and where the gradient computes the same once more, may move it to another place.
        def row(vector: Any) -> TensorVariable:
            return pt.shape_padleft(vector, X.type.ndim - 1)

        if tracked:
            centre = row(in_training(mean, self.running_mean.astype(work)))
            spread = row(in_training(variance, self.running_var.astype(work)))
        else:
            centre, spread = row(mean), row(variance)
        spread = pt.sqrt(spread + np.asarray(self.epsilon, work))
        # Dividing features once each, rather than every element, costs nothing in accuracy.
        factor = (np.ones((), work) if self.scale is None else row(self.scale.astype(work))) / spread
        Y = (X - centre) * factor
        if self.b is not None:
            Y = Y + row(self.b.astype(work))
        Y = Y.astype(dtype)
        if not tracked:
            return Y
        kept, new = np.asarray(1 - self.momentum, work), np.asarray(self.momentum, work)

        def moved(running: TensorVariable, value: TensorVariable) -> TensorVariable:
            return (kept * running.astype(work) + new * value).astype(dtype)

        return advance(
            Y,
            {
                self.running_mean: moved(self.running_mean, mean),
                self.running_var: moved(self.running_var, variance),
            },
        )
