"""Dropout: of elements, of channels, of whole examples, and the one that keeps mean and variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.activations import SELU_ALPHA, SELU_SCALE
from ptml.checks import check_floating, check_ndim
from ptml.declare import generator, slot
from ptml.layer import Layer
from ptml.layout import check_layout
from ptml.marks import in_training
from ptml.random import bernoulli
from ptml.validate import real

__all__ = ["AlphaDropout", "DropPath", "Dropout", "SpatialDropout"]

a_probability = real(lambda p: 0 <= p < 1, "a probability in [0, 1)")


class _Drops(Layer):
    """What every kind of dropout has: a probability, and a generator where it is not 0."""

    p: float = attrs.field(default=0.5, validator=a_probability)

    n_inputs = 1

    @slot
    def key(self) -> Any:
        """The generator of the masks; None where nothing is dropped."""
        return generator() if self.p > 0 else None


def _scaled(layer: _Drops, X: TensorVariable, axes: Sequence[int] | None = None) -> TensorVariable:
    """Drop what has one index along some axes (along all, unless they are given) together."""
    if layer.key is None:
        return X
    if axes is None:
        kept = bernoulli(layer.key, 1 - layer.p, X.shape)
    else:
        kept = bernoulli(layer.key, 1 - layer.p, tuple(X.shape[axis] for axis in axes))
        order = [axes.index(axis) if axis in axes else "x" for axis in range(X.type.ndim)]
        kept = kept.dimshuffle(*order)
    scale = np.asarray(1 / (1 - layer.p), dtype=X.type.dtype)
    return in_training(pt.switch(kept, X * scale, np.zeros((), X.type.dtype)), X)


class Dropout(_Drops):
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

    def build(self, X: TensorVariable) -> TensorVariable:
        check_floating(self, X)
        return _scaled(self, X)


class SpatialDropout(_Drops):
    """Drop whole channels at random in training, for X of shape ``(batch, ..., channels)``.

    A channel of an example is dropped at all its positions, or scaled up at all of them so that the mean is
    kept. Neighbouring positions are much alike, and dropping single ones takes little away.

    Parameters
    ----------
    name : str, optional
    p : float
        The probability that a channel is dropped, in ``[0, 1)``; 0.5 unless given. At 0 nothing is drawn.

    Raises
    ------
    ValueError
        If `p` is outside ``[0, 1)``; when called, if the input has fewer than two axes.
    TypeError
        When called, if the input holds integers.

    References
    ----------
    Tompson, Goroshin, Jain, LeCun and Bregler, "Efficient object localization using convolutional networks"
    (2015), section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, SpatialDropout
    >>> X = Input("X", (None, 4, 1))
    >>> Y = ptml.function([X], SpatialDropout("drop")(X), seed=0)(np.ones((8, 4, 1)))
    >>> sorted({tuple(map(float, example)) for example in Y[..., 0]})
    [(0.0, 0.0, 0.0, 0.0), (2.0, 2.0, 2.0, 2.0)]
    """

    def build(self, X: TensorVariable) -> TensorVariable:
        check_floating(self, X)
        check_ndim(self, X, minimum=2, wants="(batch, ..., channels)")
        check_layout(self, X, "N...C")
        return _scaled(self, X, (0, X.type.ndim - 1))


class DropPath(_Drops):
    """Replace whole examples by zero at random in training: stochastic depth.

    It stands at the end of a residual branch, ``Residual(..., DropPath(p=0.1))``, which an example then
    skips with probability `p`; the others are scaled up so that the mean is kept.

    Parameters
    ----------
    name : str, optional
    p : float
        The probability that an example is dropped, in ``[0, 1)``; 0.5 unless given. At 0 nothing is drawn.

    Raises
    ------
    ValueError
        If `p` is outside ``[0, 1)``; when called, if the input has no axis.
    TypeError
        When called, if the input holds integers.

    References
    ----------
    Huang, Sun, Liu, Sedra and Weinberger, "Deep networks with stochastic depth" (2016). There a branch is
    scaled down in prediction; here it is scaled up in training, by the same factor.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import DropPath, Input
    >>> X = Input("X", (None, 3))
    >>> Y = ptml.function([X], DropPath("path", p=0.5)(X), seed=0)(np.ones((8, 3)))
    >>> sorted({tuple(map(float, row)) for row in Y})
    [(0.0, 0.0, 0.0), (2.0, 2.0, 2.0)]
    """

    def build(self, X: TensorVariable) -> TensorVariable:
        check_floating(self, X)
        check_ndim(self, X, minimum=1, wants="(batch, ...)")
        check_layout(self, X, "N...")
        return _scaled(self, X, (0,))


class AlphaDropout(_Drops):
    """Drop elements so that mean 0 and variance 1 stay what they are: the dropout for `SELU` networks.

    A dropped element becomes the value that SELU gives for very negative inputs, and the whole is then
    scaled and shifted. In prediction the input is given back.

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
    Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks" (2017), section "New
    dropout technique".

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import AlphaDropout, Input
    >>> X = Input("X", (None, 500))
    >>> x = np.random.default_rng(0).normal(size=(500, 500))
    >>> Y = ptml.function([X], AlphaDropout("drop", p=0.2)(X), seed=0)(x)
    >>> bool(abs(Y.mean()) < 0.01), bool(abs(Y.var() - 1) < 0.01)
    (True, True)
    """

    def build(self, X: TensorVariable) -> TensorVariable:
        check_floating(self, X)
        if self.key is None:
            return X
        dropped = -SELU_SCALE * SELU_ALPHA
        scale = 1 / math.sqrt((1 - self.p) * (1 + self.p * dropped**2))
        scaled, shift, instead = (
            np.asarray(value, X.type.dtype)
            for value in (scale, -scale * self.p * dropped, scale * dropped * (1 - self.p))
        )
        kept = bernoulli(self.key, 1 - self.p, X.shape)
        return in_training(pt.switch(kept, X * scaled + shift, instead), X)
