"""Positions added to vectors: sinusoids, and a learned table."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim
from ptml.declare import parameter, slot
from ptml.decoding import decoding, numbered
from ptml.initializers import Initializer, Normal
from ptml.labels import CheckIds
from ptml.layer import Layer
from ptml.layers.standardize import working_dtype
from ptml.layout import check_layout
from ptml.validate import an_initializer, described, positive, positive_int

__all__ = ["LearnedPositions", "SinusoidalPositions"]

SHORTER = "{who} has {n_positions} positions, and cannot decode {length}: write length={n_positions} or less."
TOO_LONG = "{who} has {n_positions} positions; got {shape}: axis -2 is {length}."


class SinusoidalPositions(Layer):
    r"""Add sines and cosines of the position, for X of shape ``(..., length, n_features)``.

    To feature :math:`2i` of position :math:`t` is added :math:`\sin(t / b^{2i/n})`, to feature
    :math:`2i + 1` :math:`\cos(t / b^{2i/n})`. An odd width ends in a sine.

    Parameters
    ----------
    name : str, optional
    n_features : int
        The size :math:`n` of the last axis.
    base : float
        The :math:`b`, 10000 unless given.

    Raises
    ------
    ValueError
        When called, if there are fewer than two axes; when called, or by the running graph where the shape is
        not known before, if the last axis has another size than `n_features`.
    TypeError
        When called, if the input holds integers.

    References
    ----------
    Vaswani and others, "Attention is all you need" (2017), section 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, SinusoidalPositions
    >>> X = Input("X", (2, 4))
    >>> ptml.function([X], SinusoidalPositions("positions", n_features=4)(X))(np.zeros((2, 4))).round(2)
    array([[0.  , 1.  , 0.  , 1.  ],
           [0.84, 0.54, 0.01, 1.  ]])
    """

    n_features: int = attrs.field(validator=positive_int)
    base: float = attrs.field(default=10000.0, validator=positive)

    n_inputs = 1

    def build(self, X: TensorVariable) -> TensorVariable:
        wants = f"(..., length, {self.n_features} features)"
        check_floating(self, X)
        check_ndim(self, X, minimum=2, wants=wants)
        check_layout(self, X, "...TC")
        X = check_axis(self, X, self.n_features, wants=wants)
        length = X.type.shape[-2]
        exponents = np.arange(self.n_features) // 2 * 2 / self.n_features
        # A cosine is a sine a quarter turn on, but for rounding: each is computed as what it is.
        even = np.arange(self.n_features) % 2 == 0
        now = decoding.get()
        if now is None and length is not None:
            turned = np.arange(length)[:, None] * self.base**-exponents
            table: Any = np.where(even, np.sin(turned), np.cos(turned)).astype(X.type.dtype)
        else:
            work = working_dtype(X.type.dtype)
            at = numbered(X.shape[-2]) if now is None else now.positions(X.shape[-2])
            turned = at.astype(work)[..., None] * (self.base**-exponents).astype(work)
            table = pt.switch(even, pt.sin(turned), pt.cos(turned)).astype(X.type.dtype)
        return X + table


class LearnedPositions(Layer):
    """Add a trained vector for each position, for X of shape ``(..., length, n_features)``.

    Parameters
    ----------
    name : str, optional
    n_positions : int
        The number of positions; X may be shorter.
    n_features : int
        The size of the last axis.
    weight_initializer : Initializer
        Of ``W``; ``Normal(scale=0.02)`` unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if X is longer than there
        are positions, or the last axis has another size than `n_features`. Where only the run of JAX, MLX or
        PyTorch shows the length, they cannot raise, and positions past the last give NaN.
    TypeError
        When called, if the input holds integers, or is wider than the parameters.

    Examples
    --------
    >>> from ptml.layers import Input, LearnedPositions
    >>> positions = LearnedPositions("positions", n_positions=128, n_features=16)
    >>> positions(Input("X", (None, 100, 16))).type.shape
    (None, 100, 16)
    """

    n_positions: int = attrs.field(validator=positive_int)
    n_features: int = attrs.field(validator=positive_int)
    weight_initializer: Initializer = attrs.field(default=Normal(scale=0.02), validator=an_initializer)

    n_inputs = 1

    @slot
    def W(self) -> Any:
        """The vectors, ``(n_positions, n_features)``."""
        return parameter((self.n_positions, self.n_features), self.weight_initializer)

    def build(self, X: TensorVariable) -> TensorVariable:
        wants = f"(..., length, {self.n_features} features)"
        check_floating(self, X, dtype=self.W.type.dtype)
        check_ndim(self, X, minimum=2, wants=wants)
        check_layout(self, X, "...TC")
        X = check_axis(self, X, self.n_features, wants=wants)
        length, now = X.type.shape[-2], decoding.get()
        if now is not None:
            if now.length > self.n_positions:
                raise ValueError(
                    SHORTER.format(who=described(self), n_positions=self.n_positions, length=now.length)
                )
            return X + self.W[now.positions(X.shape[-2])]
        if length is not None:
            if length > self.n_positions:
                raise ValueError(
                    TOO_LONG.format(
                        who=described(self),
                        n_positions=self.n_positions,
                        shape=X.type.shape,
                        length=length,
                    )
                )
            return X + self.W[:length]
        at = CheckIds(described(self))(numbered(X.shape[-2]), np.int64(self.n_positions))
        possible = pt.lt(at, np.int64(self.n_positions))
        rows = self.W[pt.switch(possible, at, np.int8(0))]
        return X + pt.switch(possible[:, None], rows, np.asarray(np.nan, self.W.type.dtype))
