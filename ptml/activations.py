"""Activations: layers that map each element, or each row, by a fixed function.

An activation gives the dtype that it is given. Values and gradients are finite wherever the function and its
derivative are, and a NaN stays one.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_ndim
from ptml.declare import parameter, slot
from ptml.initializers import Constant, Initializer
from ptml.layer import Layer
from ptml.ops import softmax
from ptml.ops.softmax import along_axis
from ptml.validate import an_axis, an_initializer, described, finite, positive, positive_int

__all__ = [
    "Activation",
    "ELU",
    "GELU",
    "HardSigmoid",
    "HardSwish",
    "LeakyReLU",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "QuickGELU",
    "ReLU",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Swish",
    "Tanh",
]

BAD_APPROXIMATE = "GELU: approximate must be False or 'tanh' (True means 'tanh'); got {value!r}."
BAD_AXIS = "{who} normalizes axis {axis}; got a tensor of {ndim} axes."

# Klambauer et al. (2017), equation 14: with these a layer's mean 0 and variance 1 are a fixed point.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _like(value: float, X: TensorVariable) -> np.ndarray:
    """Give a number the dtype of a tensor, which a bare Python float might widen."""
    return np.asarray(value, dtype=X.type.dtype)


def _positive(X: TensorVariable) -> TensorVariable:
    # PyTensor's gradient of a comparison is zeros of floatX, to which the gradient of X would be widened.
    return pt.gt(disconnected_grad(X), _like(0, X))


def _elu(X: TensorVariable, alpha: float, scale: float = 1.0) -> TensorVariable:
    # The branch not taken must be finite too, or its gradient is 0 * inf.
    below = _like(scale * alpha, X) * pt.expm1(pt.minimum(X, _like(0, X)))
    above = X if scale == 1.0 else _like(scale, X) * X
    return pt.switch(_positive(X), above, below)


class Activation(Layer):
    """The base of activations: a subclass says in ``activate(X)`` what it computes of a float tensor.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> class Square(Activation):
    ...     def activate(self, X):
    ...         return X * X
    >>> Square()(pt.vector("x")).eval({"x": [1.0, -3.0]})
    array([1., 9.])
    """

    n_inputs = 1

    def activate(self, X: TensorVariable) -> TensorVariable:
        """Give the function of a floating-point tensor; a subclass must define it."""
        raise TypeError(f"{type(self).__name__} defines no activate(self, X): give the function there.")

    def build(self, X: TensorVariable) -> TensorVariable:
        check_floating(self, X)
        return self.activate(X)


class ReLU(Activation):
    """Rectify: ``max(x, 0)``. The derivative at 0 is 0."""

    def activate(self, X: TensorVariable) -> TensorVariable:
        # A comparison that is false for NaN gives the NaN back.
        return pt.switch(pt.le(disconnected_grad(X), _like(0, X)), _like(0, X), X)


class LeakyReLU(Activation):
    """Rectify with a slope: ``x`` where positive, ``negative_slope * x`` elsewhere.

    Parameters
    ----------
    negative_slope : float
        The slope below 0, and at it; 0.01 unless given.
    """

    negative_slope: float = attrs.field(default=0.01, validator=finite)

    def activate(self, X: TensorVariable) -> TensorVariable:
        return pt.switch(_positive(X), X, _like(self.negative_slope, X) * X)


class PReLU(Activation):
    """Rectify with a slope that is trained: ``x`` where positive, ``W * x`` elsewhere.

    Parameters
    ----------
    n_in : int
        1, for one slope for all (the default), or the size of the last axis, for a slope per feature.
    weight_initializer : Initializer
        ``Constant(0.25)`` unless given.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers" (2015), equation 1.
    """

    n_in: int = attrs.field(default=1, validator=positive_int)
    weight_initializer: Initializer = attrs.field(default=Constant(0.25), validator=an_initializer)

    @slot
    def W(self) -> Any:
        """The slopes, ``(n_in,)``."""
        return parameter((self.n_in,), self.weight_initializer)

    def activate(self, X: TensorVariable) -> TensorVariable:
        check_floating(self, X, dtype=self.W.type.dtype)
        if self.n_in > 1:
            wants = f"(..., {self.n_in} features)"
            check_ndim(self, X, minimum=1, wants=wants)
            X = check_axis(self, X, self.n_in, wants=wants)
        slope = self.W[0] if self.n_in == 1 else self.W
        return pt.switch(_positive(X), X, slope * X)


class ELU(Activation):
    """Exponential linear unit: ``x`` where positive, ``alpha * (exp(x) - 1)`` elsewhere.

    Parameters
    ----------
    alpha : float
        Minus the limit on the left, 1 unless given.

    References
    ----------
    Clevert, Unterthiner and Hochreiter, "Fast and accurate deep network learning by exponential linear units"
    (2016), equation 15.
    """

    alpha: float = attrs.field(default=1.0, validator=finite)

    def activate(self, X: TensorVariable) -> TensorVariable:
        return _elu(X, self.alpha)


class SELU(Activation):
    """Scaled exponential linear unit, under which activations of mean 0 and variance 1 stay so.

    References
    ----------
    Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks" (2017), equation 2.
    """

    def activate(self, X: TensorVariable) -> TensorVariable:
        return _elu(X, SELU_ALPHA, SELU_SCALE)


def _approximate(value: Any) -> Any:
    return "tanh" if value is True else value


def _check_approximate(module: Any, field: attrs.Attribute, value: Any) -> None:
    if value is not False and value != "tanh":
        raise ValueError(BAD_APPROXIMATE.format(value=value))


class GELU(Activation):
    """Gaussian error linear unit: ``x`` times the probability that a standard normal variable is less than x.

    Parameters
    ----------
    approximate : bool or "tanh"
        False, the default, for the exact function. ``"tanh"``, or True, for
        ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian error linear units" (2016), section 2.
    """

    approximate: bool | str = attrs.field(default=False, converter=_approximate, validator=_check_approximate)

    def activate(self, X: TensorVariable) -> TensorVariable:
        if self.approximate:
            inner = _like(math.sqrt(2 / math.pi), X) * (X + _like(0.044715, X) * X * X * X)
            return _like(0.5, X) * X * (_like(1, X) + pt.tanh(inner))
        # erfc rather than 1 + erf: where x is negative that would be a difference of near equals.
        return _like(0.5, X) * X * pt.erfc(_like(-math.sqrt(0.5), X) * X)


class QuickGELU(Activation):
    """The logistic approximation of `GELU`: ``x * sigmoid(1.702 * x)``.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian error linear units" (2016), section 2.
    """

    def activate(self, X: TensorVariable) -> TensorVariable:
        return X * pt.sigmoid(_like(1.702, X) * X)


class SiLU(Activation):
    """Sigmoid linear unit: ``x * sigmoid(x)``; also called Swish.

    References
    ----------
    Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units for neural network function approximation in
    reinforcement learning" (2018), equation 9.
    """

    def activate(self, X: TensorVariable) -> TensorVariable:
        return X * pt.sigmoid(X)


Swish = SiLU


class Mish(Activation):
    """``x * tanh(softplus(x))``.

    References
    ----------
    Misra, "Mish: a self regularized non-monotonic activation function" (2019), equation 1.
    """

    def activate(self, X: TensorVariable) -> TensorVariable:
        return X * pt.tanh(pt.softplus(X))


class Tanh(Activation):
    """Hyperbolic tangent."""

    def activate(self, X: TensorVariable) -> TensorVariable:
        return pt.tanh(X)


class Sigmoid(Activation):
    """Logistic function: ``1 / (1 + exp(-x))``."""

    def activate(self, X: TensorVariable) -> TensorVariable:
        return pt.sigmoid(X)


def _hard_sigmoid(X: TensorVariable) -> TensorVariable:
    return pt.clip(X * _like(1 / 6, X) + _like(0.5, X), _like(0, X), _like(1, X))


class HardSigmoid(Activation):
    """Piecewise linear sigmoid: ``x / 6 + 1 / 2``, held between 0 and 1.

    References
    ----------
    Howard et al., "Searching for MobileNetV3" (2019), section 5.2.
    """

    def activate(self, X: TensorVariable) -> TensorVariable:
        return _hard_sigmoid(X)


class HardSwish(Activation):
    """``x`` times its `HardSigmoid`.

    References
    ----------
    Howard et al., "Searching for MobileNetV3" (2019), section 5.2.
    """

    def activate(self, X: TensorVariable) -> TensorVariable:
        return X * _hard_sigmoid(X)


class Softplus(Activation):
    """Smooth rectifier: ``log(1 + exp(beta * x)) / beta``.

    Parameters
    ----------
    beta : float
        Its sharpness, 1 unless given.

    References
    ----------
    Dugas et al., "Incorporating second-order functional knowledge for better option pricing" (2001),
    equation 3.
    """

    beta: float = attrs.field(default=1.0, validator=positive)

    def activate(self, X: TensorVariable) -> TensorVariable:
        if self.beta == 1:
            return pt.softplus(X)
        return pt.softplus(_like(self.beta, X) * X) * _like(1 / self.beta, X)


class Softmax(Activation):
    """Exponentials that sum to one along an axis.

    Parameters
    ----------
    axis : int
        The axis, the last unless given.
    """

    axis: int = attrs.field(default=-1, validator=an_axis)

    def activate(self, X: TensorVariable) -> TensorVariable:
        return along_axis(softmax.Softmax(), X, _known_axis(self, X))


class LogSoftmax(Activation):
    """Logarithm of the `Softmax`, computed without the exponentials' overflow.

    Parameters
    ----------
    axis : int
        The axis, the last unless given.
    """

    axis: int = attrs.field(default=-1, validator=an_axis)

    def activate(self, X: TensorVariable) -> TensorVariable:
        return along_axis(lambda rows: softmax.LogSoftmax()(rows)[0], X, _known_axis(self, X))


def _known_axis(layer: Softmax | LogSoftmax, X: TensorVariable) -> int:
    if not -X.type.ndim <= layer.axis < X.type.ndim:
        raise ValueError(BAD_AXIS.format(who=described(layer), axis=layer.axis, ndim=X.type.ndim))
    return layer.axis
