"""Layers beside each other: residual connections and parallel branches."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_same_size
from ptml.layer import Layer
from ptml.layers.combinators import layers_of, one_after_the_other
from ptml.layers.shape import joined
from ptml.validate import an_axis, described

__all__ = ["Parallel", "Residual"]

COMBINES = ("concatenate", "add", "mean", "multiply", "tuple")

BAD_COMBINE = "{who}: combine must be one of {known}; got {value!r}."
BAD_SHORTCUT = "{who}: shortcut must be a layer or None; got {value!r}."
SEVERAL = "{who} takes layers that give one tensor each; {layer} gives {count}."
DIFFERENT_NDIM = "{who} takes {wants}; got {shape} and {other}."


def _one(layer: Layer, part: Layer, outputs: Any) -> TensorVariable:
    """Give the only output of a part of a layer."""
    if isinstance(outputs, tuple):
        if len(outputs) != 1:
            raise ValueError(SEVERAL.format(who=described(layer), layer=described(part), count=len(outputs)))
        return outputs[0]
    return outputs


def _alike(layer: Layer, Y: TensorVariable, other: TensorVariable, wants: str) -> TensorVariable:
    """Check that two tensors have one shape, so that neither is broadcast."""
    if Y.type.ndim != other.type.ndim:
        shape, beside = Y.type.shape, other.type.shape
        raise ValueError(DIFFERENT_NDIM.format(who=described(layer), wants=wants, shape=shape, other=beside))
    for axis in range(Y.type.ndim):
        Y = check_same_size(layer, Y, other, axis=axis, wants=wants)
    return Y


def _a_layer_or_none(module: Any, field: attrs.Attribute, value: Any) -> None:
    if value is not None and not isinstance(value, Layer):
        raise TypeError(BAD_SHORTCUT.format(who=described(module), value=value))


class Residual(Layer):
    """Add what layers make of a tensor to the tensor: ``X + layers(X)``.

    Parameters
    ----------
    *layers : Layer
        One or more, applied one after the other. What the last gives has the shape of the input.
    shortcut : Layer, optional
        What the input goes through before it is added, such as a `Linear` where the width changes.
    name : str, optional
        By keyword, since the layers are positional. It is no part of the addresses of their state.

    Raises
    ------
    TypeError, ValueError
        If an argument is no layer, or there are none. When called, or by the running graph where the shapes
        are not known before, if what is added differs in shape: nothing is broadcast.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2016), equations 1 and 2.

    Examples
    --------
    >>> from ptml.layers import Input, LayerNorm, Linear, Residual
    >>> block = Residual(LayerNorm("norm", n_in=8), Linear("fc", n_in=8, n_out=8))
    >>> block
    Residual(LayerNorm('norm', n_in=8), Linear('fc', n_in=8, n_out=8))
    >>> block(Input("X", (None, 8))).type.shape
    (None, 8)
    """

    layers: tuple[Layer, ...]
    shortcut: Layer | None = attrs.field(default=None, validator=_a_layer_or_none)

    _varargs = "layers"

    n_inputs = 1

    def __init__(
        self,
        *args: Layer,
        layers: Sequence[Layer] | None = None,
        shortcut: Layer | None = None,
        name: str | None = None,
    ) -> None:
        given = args if layers is None else (*args, *layers)
        layers_of(type(self), given)
        self.__attrs_init__(name=name, layers=given, shortcut=shortcut)  # type: ignore[attr-defined]

    def build(self, X: TensorVariable) -> TensorVariable:
        Y = _one(self, self.layers[-1], one_after_the_other(self.layers, (X,)))
        beside = X if self.shortcut is None else _one(self, self.shortcut, self.shortcut(X))
        return beside + _alike(self, Y, beside, "layers whose output has the shape of what it is added to")


def _a_combination(module: Any, field: attrs.Attribute, value: Any) -> None:
    if value not in COMBINES:
        known = ", ".join(map(repr, COMBINES))
        raise ValueError(BAD_COMBINE.format(who=described(module), known=known, value=value))


class Parallel(Layer):
    """Apply branches to the same input, and combine what they give.

    Parameters
    ----------
    *branches : Layer
        One or more. Each takes all that the whole is called on.
    combine : {"concatenate", "add", "mean", "multiply", "tuple"}
        Whether the outputs are joined along an axis (the default), added, averaged, multiplied, or given
        back as they are, in the order of the branches.
    axis : int
        The axis along which they are joined; the last unless given.
    name : str, optional
        By keyword, since the branches are positional. It is no part of the addresses of their state.

    Raises
    ------
    TypeError
        If a branch is no layer.
    ValueError
        If there are none, or `combine` is something else. When called, or by the running graph where the
        shapes are not known before, if the outputs do not go together: nothing is broadcast.

    Examples
    --------
    >>> from ptml.layers import Input, Linear, Parallel
    >>> both = Parallel(Linear("one", n_in=8, n_out=2), Linear("other", n_in=8, n_out=3))
    >>> both(Input("X", (None, 8))).type.shape
    (None, 5)
    """

    branches: tuple[Layer, ...]
    combine: str = attrs.field(default="concatenate", validator=_a_combination)
    axis: int = attrs.field(default=-1, validator=an_axis)

    _varargs = "branches"

    def __init__(
        self,
        *args: Layer,
        branches: Sequence[Layer] | None = None,
        combine: str = "concatenate",
        axis: int = -1,
        name: str | None = None,
    ) -> None:
        given = args if branches is None else (*args, *branches)
        layers_of(type(self), given)
        self.__attrs_init__(name=name, branches=given, combine=combine, axis=axis)  # type: ignore[attr-defined]

    def build(self, *inputs: Any) -> Any:
        results = [branch(*inputs) for branch in self.branches]
        if self.combine == "tuple":
            return tuple(
                Y for result in results for Y in (result if isinstance(result, tuple) else (result,))
            )
        outputs = [_one(self, *pair) for pair in zip(self.branches, results, strict=True)]
        if self.combine == "concatenate":
            return joined(self, outputs, self.axis)
        first, *rest = outputs
        rest = [_alike(self, Y, first, "branches whose outputs have one shape") for Y in rest]
        together = operator.mul if self.combine == "multiply" else operator.add
        Y = functools.reduce(together, rest, first)
        return Y / np.asarray(len(outputs), Y.type.dtype) if self.combine == "mean" else Y
