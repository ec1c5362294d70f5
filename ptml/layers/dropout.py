"""Dropout."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_floating
from ptml.declare import generator, slot
from ptml.layer import Layer
from ptml.marks import in_training
from ptml.random import bernoulli
from ptml.validate import real

__all__ = ["Dropout"]


class Dropout(Layer):
    """Replace elements by zero at random in training, and scale the others up so that the mean is kept.

    In prediction the input is given back. Each call of a program, and each application in a graph, draws a
    mask of its own; the mask is the same on every backend. What is dropped is exactly 0, also where the
    input is infinite or NaN.

    Parameters
    ----------
    name : str, optional
    p : float
        The probability that an element is dropped, in ``[0, 1)``; 0.5 unless given. At 0 nothing is drawn.

    Raises
    ------
    ValueError
        If `p` is outside ``[0, 1)``.
    TypeError
        When called, if the input holds integers.

    References
    ----------
    Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout: a simple way to prevent neural
    networks from overfitting" (2014); the scaling is that of section 10.

    Examples
    --------
    >>> from ptml.layers import Dropout
    >>> Dropout("drop", p=0.1)
    Dropout('drop', p=0.1)
    """

    p: float = attrs.field(default=0.5, validator=real(lambda p: 0 <= p < 1, "a probability in [0, 1)"))

    n_inputs = 1

    @slot
    def key(self) -> Any:
        """The generator of the masks; None where nothing is dropped."""
        return generator() if self.p > 0 else None

    def build(self, X: TensorVariable) -> TensorVariable:
        check_floating(self, X)
        if self.key is None:
            return X
        kept = bernoulli(self.key, 1 - self.p, X.shape)
        scale = np.asarray(1 / (1 - self.p), dtype=X.type.dtype)
        return in_training(pt.switch(kept, X * scale, np.zeros((), X.type.dtype)), X)
