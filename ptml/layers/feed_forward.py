"""The network that a transformer applies at each position."""

from __future__ import annotations

from typing import Any

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.activations import GELU
from ptml.declare import sublayer
from ptml.initializers import Initializer
from ptml.layer import Layer
from ptml.layers.dropout import Dropout, a_probability
from ptml.layers.linear import Linear
from ptml.validate import an_initializer, described, flag, positive_int

__all__ = ["FeedForward", "a_layer"]

NOT_A_LAYER = "{who}: {argument} must be a layer, such as {suggestion}; got {value!r}."


def a_layer(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is a layer, such as an activation."""
    if not isinstance(value, Layer):
        suggestion = f"{value.__name__}()" if isinstance(value, type) else "GELU()"
        raise TypeError(
            NOT_A_LAYER.format(
                who=described(module), argument=field.alias, suggestion=suggestion, value=value
            )
        )


class FeedForward(Layer):
    r"""Widen, apply an activation, and narrow again, for x of shape ``(..., d_model)``.

    .. math:: \phi(x W_1 + b_1) W_2 + b_2

    Gated, the first projection is twice as wide, and its first half is multiplied by the activation of the
    second:

    .. math:: \bigl(u \odot \phi(g)\bigr) W_2 + b_2, \quad [u, g] = x W_1 + b_1

    This is GEGLU with `GELU`, and SwiGLU with `SiLU`.

    Parameters
    ----------
    name : str, optional
    d_model : int
        The size of the last axis of input and output.
    hidden_dim : int, optional
        The width between; ``mlp_ratio * d_model`` unless given.
    mlp_ratio : int
        4 unless given.
    activation : Layer
        The :math:`\phi`; `GELU` unless given.
    gated : bool
        False unless given.
    bias : bool
        Whether both projections have biases; True unless given.
    fc_out_initializer : Initializer, optional
        Of the weight of the second projection; that of `Linear` unless given.
    dropout : float
        The probability that what the second projection takes is dropped in training; 0 unless given.

    Raises
    ------
    ValueError, TypeError
        When called, as `Linear` does.

    References
    ----------
    Vaswani and others, "Attention is all you need" (2017), equation 2. Shazeer, "GLU variants improve
    transformer" (2020), equation 6.

    Examples
    --------
    >>> import ptml
    >>> from ptml.activations import SiLU
    >>> from ptml.layers import FeedForward, Input
    >>> ff = FeedForward("ff", d_model=8, hidden_dim=12, activation=SiLU(), gated=True, bias=False)
    >>> ff(Input("x", (None, None, 8))).type.shape
    (None, None, 8)
    >>> [f"{handle.slot.address} {handle.type.shape}" for handle in ptml.slots(ff)]
    ['ff/fc_in/W (8, 24)', 'ff/fc_out/W (12, 8)']
    """

    d_model: int = attrs.field(validator=positive_int)
    hidden_dim: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive_int))
    mlp_ratio: int = attrs.field(default=4, validator=positive_int)
    activation: Layer = attrs.field(default=GELU(), validator=a_layer)
    gated: bool = attrs.field(default=False, validator=flag)
    bias: bool = attrs.field(default=True, validator=flag)
    fc_out_initializer: Initializer | None = attrs.field(
        default=None, validator=attrs.validators.optional(an_initializer)
    )
    dropout: float = attrs.field(default=0.0, validator=a_probability)

    n_inputs = 1

    @property
    def width(self) -> int:
        """The width between the projections."""
        return self.mlp_ratio * self.d_model if self.hidden_dim is None else self.hidden_dim

    @sublayer
    def fc_in(self) -> Any:
        """The first projection."""
        n_out = 2 * self.width if self.gated else self.width
        return Linear(f"{self.name}/fc_in", n_in=self.d_model, n_out=n_out, bias=self.bias)

    @sublayer
    def drop(self) -> Any:
        """What drops between the projections, or None without it."""
        return Dropout(f"{self.name}/dropout", p=self.dropout) if self.dropout > 0 else None

    @sublayer
    def fc_out(self) -> Any:
        """The second projection."""
        given = self.fc_out_initializer
        options = {} if given is None else {"weight_initializer": given}
        return Linear(f"{self.name}/fc_out", n_in=self.width, n_out=self.d_model, bias=self.bias, **options)

    def build(self, x: TensorVariable) -> TensorVariable:
        projected = self.fc_in(x)
        if self.gated:
            hidden = projected[..., : self.width] * self.activation(projected[..., self.width :])
        else:
            hidden = self.activation(projected)
        return self.fc_out(hidden if self.drop is None else self.drop(hidden))
