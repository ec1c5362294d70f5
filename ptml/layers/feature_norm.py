"""Normalization of each example by itself: over features, groups of channels, or positions."""

from __future__ import annotations

from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim, row_count
from ptml.declare import parameter, slot
from ptml.initializers import Ones, Zeros
from ptml.layer import Layer
from ptml.layers.standardize import standardized, working_dtype
from ptml.layout import check_layout
from ptml.ops.normalization import Normalize
from ptml.validate import described, flag, positive, positive_int

__all__ = ["GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]

UNEVEN = "{who}: n_in must be a multiple of n_groups; got n_in={n_in} and n_groups={n_groups}."
ONE_VALUE = "One value has no variance."


def _checked(layer: Any, X: TensorVariable, *, minimum: int, wants: str) -> TensorVariable:
    """Check an input by its dtype, number of axes and width."""
    check_floating(layer, X, dtype=None if layer.scale is None else layer.scale.type.dtype)
    check_ndim(layer, X, minimum=minimum, wants=wants)
    check_layout(layer, X, "...C" if minimum == 1 else "N...C")
    return check_axis(layer, X, layer.n_in, wants=wants)


def _affine(layer: Any, Y: TensorVariable, given: str) -> TensorVariable:
    """Scale and shift what was normalized, and give it the dtype that input and parameters have together."""
    scale, b = layer.scale, getattr(layer, "b", None)
    if scale is None:
        return Y.astype(given)
    Y = Y * pt.shape_padleft(scale.astype(Y.type.dtype), Y.type.ndim - 1)
    if b is not None:
        Y = Y + pt.shape_padleft(b.astype(Y.type.dtype), Y.type.ndim - 1)
    return Y.astype(scale.type.dtype)


def _normalized(layer: Any, X: TensorVariable, given: str, *, centred: bool) -> TensorVariable:
    """Normalize each vector along the last axis."""
    X = _widened(layer, X)
    affine = [v.astype(X.type.dtype) for v in (layer.scale, getattr(layer, "b", None)) if v is not None]
    Y = Normalize(layer.epsilon, centred)(X, *affine)[0]
    return Y.astype(given if layer.scale is None else layer.scale.type.dtype)


class LayerNorm(Layer):
    """Normalize the features at each position, for X of shape ``(..., n_in)``.

    Each vector along the last axis is shifted and scaled to mean 0 and variance 1, in training and in
    prediction. Half precision is computed in single.

    Parameters
    ----------
    name : str, optional
    n_in : int
        The size of the last axis.
    epsilon : float
        What is added to a variance before its root is taken, 1e-6 unless given (1e-5 in PyTorch).
    affine : bool
        Whether what is normalized is multiplied by a trained ``scale`` and shifted by a trained ``b``; True
        unless given.
    bias : bool
        Whether an affine one has the ``b``; True unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if the last axis has
        another size than `n_in`.
    TypeError
        When called, if the input holds integers, or is wider than the parameters.

    References
    ----------
    Ba, Kiros and Hinton, "Layer normalization" (2016), equation 3.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, LayerNorm
    >>> X = Input("X", (None, 2))
    >>> ptml.function([X], LayerNorm("norm", n_in=2)(X), seed=0)(np.array([[1.0, 5.0]])).round(3)
    array([[-1.,  1.]])
    """

    n_in: int = attrs.field(validator=positive_int)
    epsilon: float = attrs.field(default=1e-6, validator=positive)
    affine: bool = attrs.field(default=True, validator=flag)
    bias: bool = attrs.field(default=True, validator=flag)

    n_inputs = 1

    @slot
    def scale(self) -> Any:
        """The trained scale, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Ones()) if self.affine else None

    @slot
    def b(self) -> Any:
        """The trained shift, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Zeros()) if self.affine and self.bias else None

    def build(self, X: TensorVariable) -> TensorVariable:
        given = X.type.dtype
        X = _checked(self, X, minimum=1, wants=f"(..., {self.n_in} features)")
        return _normalized(self, X, given, centred=True)


class RMSNorm(Layer):
    """Divide the features at each position by their root mean square, for X of shape ``(..., n_in)``.

    Parameters
    ----------
    name : str, optional
    n_in : int
        The size of the last axis.
    epsilon : float
        What is added to a mean square before its root is taken, 1e-6 unless given.
    affine : bool
        Whether what is normalized is multiplied by a trained ``scale``; True unless given.

    Raises
    ------
    ValueError, TypeError
        As :class:`LayerNorm` does.

    References
    ----------
    Zhang and Sennrich, "Root mean square layer normalization" (2019), equation 4.

    Examples
    --------
    >>> from ptml.layers import Input, RMSNorm
    >>> RMSNorm("norm", n_in=64)(Input("X", (None, 10, 64))).type.shape
    (None, 10, 64)
    """

    n_in: int = attrs.field(validator=positive_int)
    epsilon: float = attrs.field(default=1e-6, validator=positive)
    affine: bool = attrs.field(default=True, validator=flag)

    n_inputs = 1

    @slot
    def scale(self) -> Any:
        """The trained scale, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Ones()) if self.affine else None

    def build(self, X: TensorVariable) -> TensorVariable:
        given = X.type.dtype
        X = _checked(self, X, minimum=1, wants=f"(..., {self.n_in} features)")
        return _normalized(self, X, given, centred=False)


class GroupNorm(Layer):
    """Normalize groups of channels of each example, for X of shape ``(batch, ..., n_in)``.

    The channels are divided into `n_groups` groups of neighbours. The values of a group, at all positions
    of one example together, are shifted and scaled to mean 0 and variance 1.

    Parameters
    ----------
    name : str, optional
    n_groups : int
        The number of groups, of which `n_in` is a multiple.
    n_in : int
        The size of the last axis: channels are last.
    epsilon : float
        What is added to a variance before its root is taken, 1e-6 unless given (1e-5 in PyTorch).
    affine : bool
        Whether what is normalized is multiplied by a trained ``scale`` and shifted by a trained ``b``, one
        number for each channel; True unless given.

    Raises
    ------
    ValueError
        If `n_in` is no multiple of `n_groups`. When called, or by the running graph where the shape is not
        known before, if the last axis has another size than `n_in`. By the running graph, if a group has a
        single value.
    TypeError
        When called, if the input holds integers, or is wider than the parameters.

    References
    ----------
    Wu and He, "Group normalization" (2018), equations 1, 2 and 7.

    Examples
    --------
    >>> from ptml.layers import GroupNorm, Input
    >>> GroupNorm("norm", n_groups=4, n_in=16)(Input("X", (None, 8, 8, 16))).type.shape
    (None, 8, 8, 16)
    """

    n_groups: int = attrs.field(validator=positive_int)
    n_in: int = attrs.field(validator=positive_int)
    epsilon: float = attrs.field(default=1e-6, validator=positive)
    affine: bool = attrs.field(default=True, validator=flag)

    n_inputs = 1

    def __attrs_post_init__(self) -> None:
        if self.n_in % self.n_groups:
            raise ValueError(UNEVEN.format(who=described(self), n_in=self.n_in, n_groups=self.n_groups))

    @slot
    def scale(self) -> Any:
        """The trained scale, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Ones()) if self.affine else None

    @slot
    def b(self) -> Any:
        """The trained shift, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Zeros()) if self.affine else None

    def build(self, X: TensorVariable) -> TensorVariable:
        given, last = X.type.dtype, X.type.ndim - 1
        X = _checked(self, X, minimum=2, wants=f"(batch, ..., {self.n_in} channels)")
        together = self.n_in // self.n_groups
        n = None
        if together == 1:
            n = row_count(self, X, range(1, last), minimum=2, wants="values per group", hint=ONE_VALUE)
        sizes = [X.shape[axis] if size is None else size for axis, size in enumerate(X.type.shape)]
        grouped = _widened(self, X).reshape((*sizes[:-1], self.n_groups, together))
        Y = standardized(grouped, (*range(1, last), last + 1), self.epsilon, n).reshape(sizes)
        return _affine(self, Y, given)


class InstanceNorm(Layer):
    """Normalize each channel of each example over its positions, for X of shape ``(batch, ..., n_in)``.

    Parameters
    ----------
    name : str, optional
    n_in : int
        The size of the last axis: channels are last.
    epsilon : float
        What is added to a variance before its root is taken, 1e-6 unless given (1e-5 in PyTorch).
    affine : bool
        Whether what is normalized is multiplied by a trained ``scale`` and shifted by a trained ``b``; True
        unless given (False in PyTorch).

    Raises
    ------
    ValueError
        When called, if there is no axis of positions. When called, or by the running graph where the shape is
        not known before, if the last axis has another size than `n_in`. By the running graph, if there is a
        single position.
    TypeError
        When called, if the input holds integers, or is wider than the parameters.

    References
    ----------
    Ulyanov, Vedaldi and Lempitsky, "Instance normalization: the missing ingredient for fast stylization"
    (2016), equation 2.

    Examples
    --------
    >>> from ptml.layers import Input, InstanceNorm
    >>> InstanceNorm("norm", n_in=3)(Input("X", (None, 8, 8, 3))).type.shape
    (None, 8, 8, 3)
    """

    n_in: int = attrs.field(validator=positive_int)
    epsilon: float = attrs.field(default=1e-6, validator=positive)
    affine: bool = attrs.field(default=True, validator=flag)

    n_inputs = 1

    @slot
    def scale(self) -> Any:
        """The trained scale, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Ones()) if self.affine else None

    @slot
    def b(self) -> Any:
        """The trained shift, ``(n_in,)``, or None without one."""
        return parameter((self.n_in,), Zeros()) if self.affine else None

    def build(self, X: TensorVariable) -> TensorVariable:
        given, axes = X.type.dtype, range(1, X.type.ndim - 1)
        X = _checked(self, X, minimum=3, wants=f"(batch, positions, ..., {self.n_in} channels)")
        n = row_count(self, X, axes, minimum=2, wants="positions", hint=ONE_VALUE)
        return _affine(self, standardized(_widened(self, X), axes, self.epsilon, n), given)


def _widened(layer: Any, X: TensorVariable) -> TensorVariable:
    """Give an input the dtype that it is normalized in."""
    dtype = X.type.dtype if layer.scale is None else layer.scale.type.dtype
    return X.astype(working_dtype(dtype))
