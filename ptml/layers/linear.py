"""The dense layer."""

from __future__ import annotations

from typing import Any

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim
from ptml.declare import parameter, slot
from ptml.initializers import Initializer, XavierNormal, Zeros
from ptml.layer import Layer
from ptml.layout import check_layout
from ptml.ops.products import features_times
from ptml.validate import an_initializer, flag, positive_int

__all__ = ["Linear"]


class Linear(Layer):
    """Map features linearly: ``X @ W + b``, for X of shape ``(..., n_in)``.

    The weight is ``(n_in, n_out)``, the transpose of PyTorch's.

    Parameters
    ----------
    name : str, optional
    n_in, n_out : int
        The sizes of the last axis of the input and of the output.
    bias : bool
        Whether there is a ``b``; True unless given.
    weight_initializer : Initializer
        Of ``W``; ``XavierNormal()`` unless given.
    bias_initializer : Initializer
        Of ``b``; ``Zeros()`` unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if the last axis has
        another size than `n_in`.
    TypeError
        When called, if the input holds integers, or is wider than the parameters.

    Examples
    --------
    >>> from ptml.layers import Input, Linear
    >>> fc = Linear("fc", n_in=64, n_out=10)
    >>> fc(Input("X", (None, 64))).type.shape
    (None, 10)
    >>> fc.W.slot
    Slot('fc/W', Role.PARAMETER, float64[64,10])
    """

    n_in: int = attrs.field(validator=positive_int)
    n_out: int = attrs.field(validator=positive_int)
    bias: bool = attrs.field(default=True, validator=flag)
    weight_initializer: Initializer = attrs.field(default=XavierNormal(), validator=an_initializer)
    bias_initializer: Initializer = attrs.field(default=Zeros(), validator=an_initializer)

    n_inputs = 1

    @slot
    def W(self) -> Any:
        """The weight, ``(n_in, n_out)``."""
        return parameter((self.n_in, self.n_out), self.weight_initializer)

    @slot
    def b(self) -> Any:
        """The bias, ``(n_out,)``, or None without one."""
        return parameter((self.n_out,), self.bias_initializer) if self.bias else None

    def build(self, X: TensorVariable) -> TensorVariable:
        wants = f"(..., {self.n_in} features)"
        check_floating(self, X, dtype=self.W.type.dtype)
        check_ndim(self, X, minimum=1, wants=wants)
        check_layout(self, X, "...C")
        X = check_axis(self, X, self.n_in, wants=wants)
        product = features_times(X, self.W)
        return product if self.b is None else product + self.b
