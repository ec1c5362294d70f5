"""Networks that are sized from data."""

from __future__ import annotations

from typing import Any

import attrs

from ptml.activations import ReLU
from ptml.layer import Layer
from ptml.layers import Dropout, LayerNorm, Linear, Sequential
from ptml.module import Module
from ptml.validate import flag, real

__all__ = ["Mlp", "network_for"]

BAD_WIDTHS = "Mlp: hidden must be a tuple of positive integers, such as (64, 64); got {given!r}."
NOT_A_NETWORK = (
    "network must be a layer, such as a Sequential, a function of the numbers of inputs and outputs that "
    "gives one, such as Mlp(hidden=(64,)), or None; got {given!r}."
)


def _widths(module: Any, field: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, tuple) or not all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in value
    ):
        raise ValueError(BAD_WIDTHS.format(given=value))


class Mlp(Module):
    """Dense layers with an activation between them, sized from data: called with the numbers of both ends.

    Parameters
    ----------
    hidden : tuple of int, default (64, 64)
        The widths of the hidden layers; none makes a linear model.
    activation : layer, default ReLU()
    dropout : float, default 0.0
        The rate of a dropout after each activation.
    norm : bool, default False
        Whether a layer norm stands ahead of each activation.

    Examples
    --------
    >>> from ptml.sklearn import Mlp
    >>> Mlp(hidden=(8,))(n_in=4, n_out=3)
    Sequential(
        Linear('hidden0', n_in=4, n_out=8),
        ReLU(),
        Linear('output', n_in=8, n_out=3),
    )
    """

    hidden: tuple[int, ...] = attrs.field(default=(64, 64), validator=_widths)
    activation: Layer = ReLU()
    dropout: float = attrs.field(default=0.0, validator=real(lambda p: 0 <= p < 1, "a number in [0, 1)"))
    norm: bool = attrs.field(default=False, validator=flag)

    def __call__(self, n_in: int, n_out: int) -> Sequential:
        """Give the network of so many inputs and outputs."""
        layers: list[Layer] = []
        for k, width in enumerate(self.hidden):
            layers.append(Linear(f"hidden{k}", n_in=n_in, n_out=width))
            if self.norm:
                layers.append(LayerNorm(f"norm{k}", n_in=width))
            layers.append(self.activation)
            if self.dropout:
                layers.append(Dropout(f"dropout{k}", p=self.dropout))
            n_in = width
        return Sequential(*layers, Linear("output", n_in=n_in, n_out=n_out))


def network_for(given: Any, n_in: int, n_out: int) -> Layer:
    """Give the network that an estimator is to train.

    Parameters
    ----------
    given : Layer, callable or None
        What the estimator was made with.
    n_in, n_out : int
        How many features there are, and how many numbers are predicted of each row.

    Raises
    ------
    TypeError
        If it is no network, and makes none.
    """
    made = Mlp() if given is None else given
    if not isinstance(made, Layer) and callable(made) and not isinstance(made, type):
        made = made(n_in, n_out)
    if not isinstance(made, Layer):
        raise TypeError(NOT_A_NETWORK.format(given=given))
    return made
