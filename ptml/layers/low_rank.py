"""The low-rank adapter of a dense layer."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim
from ptml.declare import parameter, slot
from ptml.initializers import HeUniform, Initializer, Zeros
from ptml.layer import Layer
from ptml.layers.linear import Linear
from ptml.layout import check_layout
from ptml.ops.products import features_times
from ptml.validate import an_initializer, described, positive, positive_int

__all__ = ["LowRank"]

NOT_LINEAR = "{who}: base must be a Linear layer; got {given!r}."
ADAPTED = "{who}: base has a low-rank adapter already. Merge that first: ptml.surgery.merge_low_rank."
NOT_LOW = (
    "{who}: rank must be at most {most}, as the weight of {base} is {n_in} by {n_out}; got {rank}. At such a "
    "rank train the weight itself."
)


def _a_linear(module: Any, field: attrs.Attribute, value: Any) -> None:
    if isinstance(value, LowRank):
        raise TypeError(ADAPTED.format(who=described(module)))
    if not isinstance(value, Linear):
        raise TypeError(NOT_LINEAR.format(who=described(module), given=value))


class LowRank(Layer):
    """Add a trained product of two thin matrices to a dense layer: ``base(X) + alpha / rank * X @ A @ B``.

    A fresh one changes nothing, as ``B`` is zero. The base keeps its addresses, so that its state loads;
    ``chain(freeze(~where(LowRank)), adam(1e-3))`` trains the adapters alone. See
    :func:`ptml.surgery.low_rank`, which puts them into a network.

    Parameters
    ----------
    name : str, optional
    base : Linear
        The dense layer. It is a part of this one, with a name of its own.
    rank : int
        The number of columns of ``A`` and of rows of ``B``, at most the smaller side of the base's weight.
    alpha : float, optional
        Scales the product, by ``alpha / rank``; the rank, and so the scale 1, unless given.
    weight_initializer : Initializer
        Of ``A``; uniform within ``1 / sqrt(n_in)`` unless given. ``B`` starts at zero.

    Raises
    ------
    TypeError, ValueError
        If the base is no Linear layer, or the rank is more than its weight's; when called, as the base does.

    References
    ----------
    Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models", 2021, equation 3.

    Examples
    --------
    >>> from ptml.layers import Input, Linear, LowRank
    >>> adapted = LowRank("fc/low_rank", base=Linear("fc", n_in=64, n_out=10), rank=2)
    >>> adapted(Input("X", (None, 64))).type.shape
    (None, 10)
    >>> import ptml
    >>> [f"{handle.slot.address} {handle.type.shape}" for handle in ptml.slots(adapted)]
    ['fc/low_rank/A (64, 2)', 'fc/low_rank/B (2, 10)', 'fc/W (64, 10)', 'fc/b (10,)']
    """

    base: Linear = attrs.field(validator=_a_linear)
    rank: int = attrs.field(validator=positive_int)
    alpha: float | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    weight_initializer: Initializer = attrs.field(default=HeUniform(math.sqrt(5)), validator=an_initializer)

    n_inputs = 1

    def __attrs_post_init__(self) -> None:
        n_in, n_out = self.base.n_in, self.base.n_out
        if self.rank > min(n_in, n_out):
            raise ValueError(
                NOT_LOW.format(
                    who=described(self),
                    most=min(n_in, n_out),
                    base=described(self.base),
                    n_in=n_in,
                    n_out=n_out,
                    rank=self.rank,
                )
            )

    @slot
    def A(self) -> Any:
        """The first factor, ``(n_in, rank)``."""
        shape = (self.base.n_in, self.rank)
        return parameter(shape, self.weight_initializer, dtype=self.base.W.type.dtype)

    @slot
    def B(self) -> Any:
        """The second factor, ``(rank, n_out)``, zero at first."""
        return parameter((self.rank, self.base.n_out), Zeros(), dtype=self.base.W.type.dtype)

    @property
    def scale(self) -> float:
        """The factor of the product: ``alpha / rank``."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    def build(self, X: TensorVariable) -> TensorVariable:
        wants, dtype = f"(..., {self.base.n_in} features)", self.A.type.dtype
        check_floating(self, X, dtype=dtype)
        check_ndim(self, X, minimum=1, wants=wants)
        check_layout(self, X, "...C")
        X = check_axis(self, X, self.base.n_in, wants=wants)
        inner = features_times(X, self.A) * np.asarray(self.scale, dtype)
        return self.base(X) + features_times(inner, self.B)
