"""Layers around a layer that compute its weight: weight normalization and spectral normalization."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import clone_get_equiv
from pytensor.tensor.variable import TensorVariable

from ptml.declare import parameter, slot, statistic
from ptml.layer import DefaultName, Layer, name_by_keyword
from ptml.marks import advance, in_training
from ptml.network import lay_out, walk
from ptml.validate import described, positive, positive_int
from ptml_state import Role, SlotVariable
from ptml_state.slot import Derived

__all__ = ["SpectralNorm", "WeightNorm"]

NOT_A_LAYER = "{who} takes a layer; got {given!r}."
NO_SUCH_WEIGHT = "{who}: {layer} has no parameter {weight!r}; it has {known}. Write weight={example!r}."
SEVERAL = "{who}: {weight!r} stands for {matches} of {layer}. Write more of the address: weight={example!r}."
NORMALIZED = "{who}: {weight!r} is normalized by {other} already. Leave one of the two out."
FEW_AXES = "{who}: {weight!r} is of shape {shape}; a weight has two axes or more."
NO_SUCH_AXIS = "{who}: {weight!r} is of shape {shape} and has no axis {axis}."
BAD_AXIS = "{who}: axis must be an integer{or_none}; got {axis!r}."
#: How often the start of spectral normalization multiplies by the weight.
FIRST_ITERATIONS = 30


def _a_layer(module: Any, field: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, Layer):
        raise TypeError(NOT_A_LAYER.format(who=type(module).__name__, given=value))


class _Around(Layer):
    """What layers around a layer's weight have: the layer, the weight's name, and the axis of its outputs."""

    layer: Layer = attrs.field(validator=_a_layer, kw_only=False)
    weight: str = attrs.field(default="W", validator=attrs.validators.instance_of(str))
    axis: Any = -1
    name: str = name_by_keyword()

    _leaf = ""
    _whole = False

    def __attrs_post_init__(self) -> None:
        if isinstance(self.name, DefaultName) and not isinstance(self.layer.name, DefaultName):
            vars(self)["name"] = f"{self.layer.name}/{self._leaf}"
        whole = self._whole and self.axis is None
        if not whole and (not isinstance(self.axis, int) or isinstance(self.axis, bool)):
            or_none = " or None" if self._whole else ""
            raise TypeError(BAD_AXIS.format(who=described(self), or_none=or_none, axis=self.axis))
        shape = self.weight_slot.type.shape
        shown = {"who": described(self), "weight": self.weight, "shape": shape}
        for part in walk(self.layer):
            if isinstance(part, _Around) and part.weight_slot is self.weight_slot:
                raise ValueError(NORMALIZED.format(**shown, other=described(part)))
        if len(shape) < 2:
            raise ValueError(FEW_AXES.format(**shown))
        if self.axis is not None and not -len(shape) <= self.axis < len(shape):
            raise ValueError(NO_SUCH_AXIS.format(**shown, axis=self.axis))

    @functools.cached_property
    def weight_slot(self) -> SlotVariable:
        """The handle of the weight, in the layer or in a layer that is a part of it."""
        known = {p.address: p.slot.handle for p in lay_out([self.layer]) if p.role is Role.PARAMETER}
        found = [address for address in known if f"/{address}".endswith(f"/{self.weight}")]
        if len(found) == 1:
            return known[found[0]]
        shown = {"who": described(self), "layer": described(self.layer), "weight": self.weight}
        if found:
            raise ValueError(SEVERAL.format(**shown, matches=", ".join(found), example=found[0]))
        example = next(iter(known), "W").rpartition("/")[2]
        listed = ", ".join(known) or "none"
        raise ValueError(NO_SUCH_WEIGHT.format(**shown, known=listed, example=example))

    @property
    def _others(self) -> tuple[int, ...]:
        """The axes that a norm is taken over."""
        ndim = self.weight_slot.type.ndim
        kept = None if self.axis is None else self.axis % ndim
        return tuple(axis for axis in range(ndim) if axis != kept)

    def _called(self, weight: TensorVariable, inputs: Sequence[Any], options: Any) -> Any:
        """Call the layer with another weight."""
        built = self.layer(*inputs, **options)
        outputs = list(built) if isinstance(built, tuple) else [built]
        memo: dict[Any, Any] = {self.weight_slot: weight}
        equiv = clone_get_equiv(inputs, outputs, copy_inputs=False, copy_orphans=False, memo=memo)
        replaced = [equiv[output] for output in outputs]
        return tuple(replaced) if isinstance(built, tuple) else replaced[0]


@attrs.frozen
class Norms:
    """Give the norms of a weight over some axes."""

    axes: tuple[int, ...]

    def __call__(self, W: np.ndarray) -> np.ndarray:
        return np.sqrt(np.square(W, dtype="float64").sum(axis=self.axes))


class WeightNorm(_Around):
    """Train a layer's weight as a direction and a length: ``g * W / norm(W)``, with one length per output.

    The layer keeps its addresses, so that its state loads. Of ``W`` the direction alone counts. ``g`` starts
    at the norm of the ``W`` that the state has or that is drawn, and the layer so at the function that it has
    by itself. :func:`ptml.surgery.merge_norms` takes it out again.

    Parameters
    ----------
    layer : Layer
        The layer, with a name of its own.
    weight : str
        The name of its weight, ``"W"`` unless given; ``"W_hh"``, or more of an address, such as
        ``"cell/W_hh"``, where the layer has others.
    axis : int or None
        The axis that keeps its norms apart; the last, that of a weight's outputs, unless given. None for one
        length of the whole weight.
    name : str, optional
        By keyword; that of the layer with ``/weight_norm`` behind it, where the layer has a name.

    Raises
    ------
    TypeError, ValueError
        If the layer is none or has no such weight, or the weight has fewer than two axes or no such one.

    Notes
    -----
    In PyTorch's ``weight_norm`` the direction is called ``v`` (``original1``) and the length ``g``
    (``original0``). The weight is zero where its direction is.

    References
    ----------
    Salimans and Kingma, "Weight normalization: a simple reparameterization to accelerate training of deep
    neural networks" (2016), equation 2.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Linear, WeightNorm
    >>> fc = WeightNorm(Linear("fc", n_in=8, n_out=3))
    >>> fc
    WeightNorm(Linear('fc', n_in=8, n_out=3), name='fc/weight_norm')
    >>> list(ptml.init(fc, seed=0))
    ['fc/weight_norm/g', 'fc/W', 'fc/b']
    """

    _leaf = "weight_norm"
    _whole = True

    @slot
    def g(self) -> Any:
        """The lengths, one for each index of the axis; a scalar without one."""
        W = self.weight_slot
        shape = () if self.axis is None else (W.type.shape[self.axis],)
        return parameter(shape, Derived(W.slot, Norms(self._others)), dtype=W.type.dtype)

    def build(self, *inputs: Any, **options: Any) -> Any:
        W = self.weight_slot
        square = pt.sqr(W).sum(axis=self._others, keepdims=True)
        length = pt.sqrt(pt.switch(square > 0, square, np.ones((), W.type.dtype)))
        g = self.g if self.axis is None else pt.expand_dims(self.g, self._others)
        return self._called(W * (g / length), inputs, options)


@attrs.frozen
class SingularVector:
    """Give a first singular vector of a weight, as a matrix of one row for each index of an axis.

    Parameters
    ----------
    axis : int
    left : bool
        Whether the one of the rows, ``u``, is given, rather than the one of the columns, ``v``.
    """

    axis: int
    left: bool

    def __call__(self, W: np.ndarray) -> np.ndarray:
        matrix = np.moveaxis(W, self.axis, 0).reshape(W.shape[self.axis], -1).astype("float64")
        # Its longest row is no worse a start than a random one, and the same wherever it is computed.
        v = matrix[np.argmax(np.square(matrix).sum(axis=1))]
        v = _unit(v, np.ones_like(v))
        u = _unit(matrix @ v, np.ones(len(matrix)))
        for _ in range(FIRST_ITERATIONS):
            v = _unit(matrix.T @ u, v)
            u = _unit(matrix @ v, u)
        return u if self.left else v


def _unit(vector: np.ndarray, instead: np.ndarray) -> np.ndarray:
    """Give a vector the length 1; if it is zero, another."""
    length = np.linalg.norm(vector)
    return vector / length if length > 0 else instead / np.linalg.norm(instead)


class SpectralNorm(_Around):
    """Divide a layer's weight by its largest singular value, so that the layer is 1-Lipschitz.

    The weight is a matrix here, with a row for each output. Its first singular vectors ``u`` and ``v`` are
    statistics: they start at those of the ``W`` that the state has or that is drawn, and in training move
    by a power iteration in each call. In prediction they are read. The layer keeps its addresses.
    :func:`ptml.surgery.merge_norms` takes it out again.

    Parameters
    ----------
    layer, weight, name
        As for :class:`WeightNorm`; the name ends in ``/spectral_norm``.
    axis : int
        The axis of the outputs; the last unless given.
    n_power_iterations : int
        How many iterations a training call makes; 1 unless given.
    epsilon : float
        A weight whose largest singular value is not above it is left as it is; 1e-12 unless given.

    Raises
    ------
    TypeError, ValueError
        As :class:`WeightNorm` does.

    References
    ----------
    Miyato, Kataoka, Koyama and Yoshida, "Spectral normalization for generative adversarial networks" (2018),
    section 2.1 and algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, Linear, SpectralNorm
    >>> fc = SpectralNorm(Linear("fc", n_in=4, n_out=4, bias=False))
    >>> list(ptml.init(fc, seed=0))
    ['fc/spectral_norm/u', 'fc/spectral_norm/v', 'fc/W']
    >>> X = Input("X", (None, 4))
    >>> weight = ptml.compile_predict(fc(X), state=ptml.init(fc, seed=0))(np.eye(4))
    >>> float(np.linalg.norm(weight, 2).round(4))
    1.0
    """

    n_power_iterations: int = attrs.field(default=1, validator=positive_int)
    epsilon: float = attrs.field(default=1e-12, validator=positive)

    _leaf = "spectral_norm"

    @slot
    def u(self) -> Any:
        """The singular vector of the outputs."""
        W = self.weight_slot
        start = Derived(W.slot, SingularVector(self.axis, left=True))
        return statistic((W.type.shape[self.axis],), start, dtype=W.type.dtype)

    @slot
    def v(self) -> Any:
        """The singular vector of all other axes."""
        W = self.weight_slot
        size = int(np.prod([W.type.shape[axis] for axis in self._others]))
        return statistic((size,), Derived(W.slot, SingularVector(self.axis, left=False)), dtype=W.type.dtype)

    def build(self, *inputs: Any, **options: Any) -> Any:
        W, u, v = self.weight_slot, self.u, self.v
        matrix = W.dimshuffle(self.axis % W.type.ndim, *self._others).reshape((u.type.shape[0], -1))
        fixed = disconnected_grad(matrix)
        for _ in range(self.n_power_iterations):
            u = _normalized(fixed @ v, u)
            v = _normalized(u @ fixed, v)
        # No gradient comes of how the vectors are found, as the largest value does not change with them.
        u, v = disconnected_grad(u), disconnected_grad(v)
        sigma = pt.dot(in_training(u, self.u), matrix @ in_training(v, self.v))
        one, least = (np.asarray(value, W.type.dtype) for value in (1, self.epsilon))
        built = self._called(W / pt.switch(sigma > least, sigma, one), inputs, options)
        moves = {self.u: u, self.v: v}
        if isinstance(built, tuple):
            return tuple(advance(output, moves) for output in built)
        return advance(built, moves)


def _normalized(vector: TensorVariable, instead: TensorVariable) -> TensorVariable:
    """Give a vector the length 1; if it is zero, another."""
    square = pt.sqr(vector).sum()
    one = np.ones((), vector.type.dtype)
    return pt.switch(square > 0, vector / pt.sqrt(pt.switch(square > 0, square, one)), instead)
