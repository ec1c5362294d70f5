"""Positions that act in attention: rotary embeddings of queries and keys, and the linear bias of scores."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_floating, check_ndim
from ptml.decoding import decoding, numbered
from ptml.layer import Layer
from ptml.layers.standardize import working_dtype
from ptml.validate import an_axis, described, flag, positive

__all__ = ["RotaryPositions", "alibi_bias", "alibi_slopes"]

ODD = "{who} turns features in pairs, and so takes an even number of them; got shape {shape}."
BAD_AXIS = "{who}: axis must be -2 or less, counted from the end; got {value!r}."
NO_LENGTH = "{who} has axis={axis}; got a tensor of {ndim} axes, {shape}."
BAD_POSITIONS = "{who} takes positions of shape (length,) or (batch, length), numbers; got {given}."
BAD_HEADS = "alibi_bias: n_heads must be a positive integer; got {value!r}."


def _before_the_last(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that an axis is counted from the end, and not the last."""
    an_axis(module, field, value)
    if value > -2:
        raise ValueError(BAD_AXIS.format(who=described(module), value=value))


class RotaryPositions(Layer):
    r"""Turn pairs of features by angles that grow with the position: rotary position embedding.

    The inner product of a turned query and a turned key depends on how far apart their positions are. The
    pair :math:`i` of :math:`n / 2` at position :math:`t` is turned by :math:`t / b^{2i/n}`.

    Called on X of shape ``(..., length, n_features)``, and on ``positions=`` where they are not 0, 1, 2, ...:
    numbers of shape ``(length,)``, or ``(batch, length)`` where the first axis of X is the batch.

    Parameters
    ----------
    name : str, optional
    base : float
        The :math:`b`, 10000 unless given.
    interleaved : bool
        Whether a pair is features ``2i`` and ``2i + 1``, as in the paper and GPT-J; False unless given: a
        pair is ``i`` and ``i + n / 2``, as in GPT-NeoX and Llama.
    axis : int
        The axis of the positions, counted from the end: -2 unless given; -3 for X of shape
        ``(batch, length, heads, n_features)``.

    Raises
    ------
    ValueError
        When called, if the number of features is odd or not known, or there is no such axis.
    TypeError
        When called, if the input holds integers.

    References
    ----------
    Su and others, "RoFormer: enhanced transformer with rotary position embedding" (2021), equations 14, 15
    and 34.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, RotaryPositions
    >>> X = Input("X", (None, 2))
    >>> turned = ptml.function([X], RotaryPositions("rotary")(X))(np.array([[1.0, 0.0], [1.0, 0.0]]))
    >>> turned.round(3)
    array([[1.   , 0.   ],
           [0.54 , 0.841]])
    """

    base: float = attrs.field(default=10000.0, validator=positive)
    interleaved: bool = attrs.field(default=False, validator=flag)
    axis: int = attrs.field(default=-2, validator=_before_the_last)

    n_inputs = 1

    def build(self, X: TensorVariable, positions: Any = None) -> TensorVariable:
        who, ndim, shape = described(self), X.type.ndim, X.type.shape
        check_floating(self, X)
        check_ndim(self, X, minimum=2, wants="(..., length, features)")
        if ndim + self.axis < 0:
            raise ValueError(NO_LENGTH.format(who=who, axis=self.axis, ndim=ndim, shape=shape))
        n = shape[-1]
        if n is None or n % 2:
            raise ValueError(ODD.format(who=who, shape=shape))
        work = working_dtype(X.type.dtype)
        cosine, sine = self._turns(X, positions, n, work)
        wide = X.astype(work)
        if self.interleaved:
            one, other = wide[..., 0::2], wide[..., 1::2]
        else:
            one, other = wide[..., : n // 2], wide[..., n // 2 :]
        turned = [one * cosine - other * sine, other * cosine + one * sine]
        if self.interleaved:
            sizes = [X.shape[axis] if size is None else size for axis, size in enumerate(shape)]
            return pt.stack(turned, axis=-1).reshape(sizes).astype(X.type.dtype)
        return pt.concatenate(turned, axis=-1).astype(X.type.dtype)

    def _turns(self, X: TensorVariable, positions: Any, n: int, work: str) -> tuple[Any, Any]:
        """Give the cosines and sines, with an axis for each of X's from that of the positions on."""
        frequencies = self.base ** (-np.arange(0, n, 2) / n)
        length, between = X.type.shape[self.axis], (1,) * (-self.axis - 2)
        now = decoding.get()
        if positions is None and now is not None:
            positions = now.positions(X.shape[self.axis])
        if positions is None and length is not None:
            turned = np.arange(length)[:, None] * frequencies
            turned = turned.reshape(length, *between, n // 2)
            return np.cos(turned).astype(work), np.sin(turned).astype(work)
        if positions is None:
            positions = numbered(X.shape[self.axis])
        positions = pt.as_tensor(positions)
        numeric = np.dtype(positions.type.dtype).kind in "iuf"
        if (
            not numeric
            or positions.type.ndim not in (1, 2)
            or positions.type.ndim - 1 > X.type.ndim + self.axis
        ):
            raise ValueError(BAD_POSITIONS.format(who=described(self), given=positions.type))
        # (length,) becomes (length, 1..., 1), and (batch, length) (batch, 1..., length, 1..., 1).
        order: list[Any] = [positions.type.ndim - 1, *["x"] * (-self.axis - 1)]
        if positions.type.ndim == 2:
            order = [0, *["x"] * (X.type.ndim + self.axis - 1), *order]
        angle = positions.astype(work).dimshuffle(*order) * frequencies.astype(work)
        return pt.cos(angle), pt.sin(angle)


def alibi_slopes(n_heads: int) -> np.ndarray:
    """Give the slope of each head in :func:`alibi_bias`, for a positive number of heads."""
    power = 2 ** int(math.log2(n_heads))
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    finer = 2.0 ** (-8 * np.arange(1, 2 * power + 1) / (2 * power))
    return np.concatenate([slopes, finer[::2][: n_heads - power]])


def alibi_bias(n_heads: int, n_queries: Any, n_keys: Any = None, *, dtype: str | None = None) -> Any:
    """Give what attention with linear biases adds to its scores: minus the distance, times a head's slope.

    Parameters
    ----------
    n_heads : int
        The number of heads. For a power of two the slopes are ``2 ** (-8 * k / n_heads)`` for k from 1; for
        others, those of the power below, then every other one of the power above.
    n_queries, n_keys : int or integer scalar
        The numbers of queries and keys; as many keys as queries unless given. The last query stands at the
        last key.
    dtype : str, optional
        ``floatX`` unless given.

    Returns
    -------
    tensor
        Shape ``(n_heads, n_queries, n_keys)``, to be added to scores of shape ``(..., n_heads, n_queries,
        n_keys)`` before the softmax.

    Raises
    ------
    ValueError
        If `n_heads` is no positive integer.

    References
    ----------
    Press, Smith and Lewis, "Train short, test long: attention with linear biases enables input length
    extrapolation" (2022), section 3.

    Examples
    --------
    >>> from ptml.layers import alibi_bias
    >>> alibi_bias(2, 2).eval()[0]
    array([[-0.    , -0.0625],
           [-0.0625, -0.    ]])
    """
    if not isinstance(n_heads, int) or isinstance(n_heads, bool) or n_heads < 1:
        raise ValueError(BAD_HEADS.format(value=n_heads))
    dtype = dtype or pytensor.config.floatX
    n_keys = n_queries if n_keys is None else n_keys
    keys, queries = numbered(n_keys), numbered(n_queries) + (n_keys - n_queries)
    distance = abs(queries[:, None] - keys[None, :]).astype(dtype)
    return -alibi_slopes(n_heads).astype(dtype)[:, None, None] * distance
