"""Initializers: frozen values that draw the first value of a piece of state.

An initializer is called with a NumPy generator, a shape and a dtype. It draws in float64 and casts, so that
a float32 and a float64 network of one seed start from the same numbers up to rounding.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from ptml.module import Module
from ptml.validate import finite, non_negative, positive

__all__ = [
    "Constant",
    "Empty",
    "HeNormal",
    "HeUniform",
    "Initializer",
    "Normal",
    "Ones",
    "Orthogonal",
    "Uniform",
    "XavierNormal",
    "XavierUniform",
    "Zeros",
    "fans",
    "initializer",
]

WRONG_SHAPE = "{initializer!r} was asked for an array of shape {wanted} and gave one of shape {given}."
NO_FANS = (
    "{what} counts the inputs and outputs of an array of two axes or more, (n_in, n_out) or "
    "(*kernel, n_in, n_out); got shape {shape}. Initialize a vector or a scalar by Zeros(), Constant(value) "
    "or Normal(scale=...)."
)
NO_BROADCAST = "{initializer!r} has a value of shape {given}, which does not fill shape {wanted}."
BAD_MODE = "{cls}: mode must be 'fan_in' or 'fan_out'; got {value!r}."
BAD_BOUNDS = "Uniform: low must be less than high, or equal to it; got low={low!r}, high={high!r}."
BAD_FUNCTION = (
    "@initializer takes a function whose first three parameters are rng, shape and dtype, and whose others "
    "are hyperparameters; got {name}{signature}."
)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Count the inputs that feed one output of a weight, and the outputs that one input feeds.

    Parameters
    ----------
    shape : sequence of int
        ``(n_in, n_out)``, or ``(*kernel, n_in, n_out)`` for a convolution.

    Returns
    -------
    tuple of int
        ``(fan_in, fan_out)``: each number of features times the size of the kernel.

    Raises
    ------
    ValueError
        If the shape has fewer than two axes.

    Examples
    --------
    >>> fans((64, 10)), fans((3, 3, 16, 32))
    ((64, 10), (144, 288))
    """
    return _fans(shape, "fans")


def _fans(shape: Sequence[int], what: str) -> tuple[int, int]:
    if len(shape) < 2:
        raise ValueError(NO_FANS.format(what=what, shape=tuple(shape)))
    *kernel, n_in, n_out = shape
    field = math.prod(kernel)
    return field * n_in, field * n_out


class Initializer(Module):
    """The base of initializers: a subclass says in ``draw(rng, shape, dtype)`` what the values are.

    Examples
    --------
    >>> import numpy as np
    >>> class Ramp(Initializer):
    ...     step: float = 1.0
    ...
    ...     def draw(self, rng, shape, dtype):
    ...         return self.step * np.arange(np.prod(shape)).reshape(shape)
    >>> Ramp(step=0.5)(np.random.default_rng(0), (3,), "float32")
    array([0. , 0.5, 1. ], dtype=float32)
    """

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Give the values, of any dtype that casts to `dtype`; a subclass must define it."""
        raise TypeError(
            f"{type(self).__name__} defines no draw(self, rng, shape, dtype): give the values there."
        )

    def __call__(self, rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Draw an array.

        Parameters
        ----------
        rng : numpy.random.Generator
            The source of random numbers.
        shape : sequence of int
            The shape of the array.
        dtype : dtype
            Its dtype.

        Returns
        -------
        numpy.ndarray
            A new array.

        Raises
        ------
        ValueError
            If what was drawn has another shape.
        """
        shape, dtype = tuple(shape), np.dtype(dtype)
        values = np.array(self.draw(rng, shape, dtype), dtype=dtype)
        if values.shape != shape:
            raise ValueError(WRONG_SHAPE.format(initializer=self, wanted=shape, given=values.shape))
        return values


def initializer(function: Callable[..., Any]) -> type[Initializer]:
    """Make a function of ``(rng, shape, dtype)`` into a class of initializers.

    Parameters
    ----------
    function : function
        ``function(rng, shape, dtype, **hyperparameters) -> array``. Hyperparameters become the class's
        fields, taken by keyword.

    Returns
    -------
    type
        A subclass of `Initializer` that bears the function's name.

    Raises
    ------
    TypeError
        If the first three parameters of the function have other names.

    Examples
    --------
    >>> import numpy as np
    >>> @initializer
    ... def scaled_identity(rng, shape, dtype, gain=1.0):
    ...     return gain * np.eye(*shape)
    >>> scaled_identity(gain=2.0)
    scaled_identity(gain=2.0)
    >>> scaled_identity(gain=2.0)(np.random.default_rng(0), (2, 2), "float64")
    array([[2., 0.],
           [0., 2.]])
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if [p.name for p in parameters[:3]] != ["rng", "shape", "dtype"] or any(
        p.kind in variadic for p in parameters
    ):
        raise TypeError(BAD_FUNCTION.format(name=function.__name__, signature=signature))
    hyperparameters = parameters[3:]

    def draw(self: Any, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return function(rng, shape, dtype, **{p.name: getattr(self, p.name) for p in hyperparameters})

    def body(namespace: dict[str, Any]) -> None:
        namespace.update(
            __module__=function.__module__,
            __qualname__=function.__qualname__,
            __doc__=function.__doc__,
            __annotations__={p.name: Any for p in hyperparameters},
            draw=draw,
            **{p.name: p.default for p in hyperparameters if p.default is not p.empty},
        )

    return types.new_class(function.__name__, (Initializer,), exec_body=body)


class Constant(Initializer, kw_only=False):
    """Fill with a value.

    Parameters
    ----------
    value : float or array-like
        A number, or an array that broadcasts to the shape asked for.
    """

    value: Any

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        value = np.asarray(self.value)
        try:
            return np.broadcast_to(value, shape)
        except ValueError:
            raise ValueError(NO_BROADCAST.format(initializer=self, given=value.shape, wanted=shape)) from None


class Zeros(Initializer):
    """Fill with zeros."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return np.zeros(shape, dtype)


class Ones(Initializer):
    """Fill with ones."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return np.ones(shape, dtype)


class Empty(Initializer):
    """Make room for values that are still to be loaded.

    The room holds zeros, so that a run that forgets to load them is at least repeatable.
    """

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return np.zeros(shape, dtype)


class Uniform(Initializer, kw_only=False):
    """Draw uniformly from ``[low, high)``.

    Parameters
    ----------
    low, high : float
        The bounds, -0.05 and 0.05 unless given.
    """

    low: float = attrs.field(default=-0.05, validator=finite)
    high: float = attrs.field(default=0.05, validator=finite)

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(BAD_BOUNDS.format(low=self.low, high=self.high))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return rng.uniform(self.low, self.high, shape)


class Normal(Initializer, kw_only=False):
    """Draw from the normal distribution.

    Parameters
    ----------
    mean : float
        Its mean, 0 unless given.
    scale : float
        Its standard deviation, 0.01 unless given.
    """

    mean: float = attrs.field(default=0.0, validator=finite)
    scale: float = attrs.field(default=0.01, validator=non_negative)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return rng.normal(self.mean, self.scale, shape)


class XavierUniform(Initializer, kw_only=False):
    """Draw uniformly, with the variance ``gain**2 * 2 / (fan_in + fan_out)``.

    Parameters
    ----------
    gain : float
        A factor of the standard deviation, 1 unless given.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks" (2010),
    equation 16.
    """

    gain: float = attrs.field(default=1.0, validator=positive)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        bound = math.sqrt(3) * _xavier_scale(self, shape)
        return rng.uniform(-bound, bound, shape)


class XavierNormal(Initializer, kw_only=False):
    """Draw from the normal distribution with the variance ``gain**2 * 2 / (fan_in + fan_out)``.

    Parameters
    ----------
    gain : float
        A factor of the standard deviation, 1 unless given.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks" (2010),
    equation 12.
    """

    gain: float = attrs.field(default=1.0, validator=positive)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return rng.normal(0.0, _xavier_scale(self, shape), shape)


def _xavier_scale(self: XavierUniform | XavierNormal, shape: tuple[int, ...]) -> float:
    fan_in, fan_out = _fans(shape, type(self).__name__)
    # An array of no elements has no scale, and any will do.
    return self.gain * math.sqrt(2 / max(fan_in + fan_out, 1))


def _check_mode(module: Any, field: attrs.Attribute, value: Any) -> None:
    if value not in ("fan_in", "fan_out"):
        raise ValueError(BAD_MODE.format(cls=type(module).__name__, value=value))


class _He(Initializer, kw_only=False):
    """What the two He initializers share: their fields, and the standard deviation that follows."""

    negative_slope: float = attrs.field(default=0.0, validator=finite)
    mode: str = attrs.field(default="fan_in", validator=_check_mode)

    def _scale(self, shape: tuple[int, ...]) -> float:
        fan = _fans(shape, type(self).__name__)[self.mode == "fan_out"]
        return math.sqrt(2 / ((1 + self.negative_slope**2) * max(fan, 1)))


class HeUniform(_He, kw_only=False):
    """Draw uniformly, with the variance ``2 / ((1 + negative_slope**2) * fan)``.

    Parameters
    ----------
    negative_slope : float
        The slope of the rectifier that follows where its input is negative: 0, `ReLU`'s, unless given.
    mode : {"fan_in", "fan_out"}
        Whether the variance is kept on the way forward (the default) or on that of the gradient.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers" (2015), equations 10, 14 and 15.
    """

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        bound = math.sqrt(3) * self._scale(shape)
        return rng.uniform(-bound, bound, shape)


class HeNormal(_He, kw_only=False):
    """Draw from the normal distribution with the variance ``2 / ((1 + negative_slope**2) * fan)``.

    Parameters
    ----------
    negative_slope : float
        The slope of the rectifier that follows where its input is negative: 0, `ReLU`'s, unless given.
    mode : {"fan_in", "fan_out"}
        Whether the variance is kept on the way forward (the default) or on that of the gradient.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers" (2015), equations 10, 14 and 15.
    """

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return rng.normal(0.0, self._scale(shape), shape)


class Orthogonal(Initializer, kw_only=False):
    """Draw a random matrix whose rows or columns, whichever are fewer, are orthonormal, times a gain.

    An array of more axes is that matrix with the axes before the last taken together, so that it maps
    patches ``(*kernel, n_in)`` to ``n_out`` features.

    Parameters
    ----------
    gain : float
        A factor, 1 unless given.

    References
    ----------
    Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks" (2014). Mezzadri, "How to generate random matrices from the classical compact groups" (2007),
    for the signs.
    """

    gain: float = attrs.field(default=1.0, validator=positive)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if len(shape) < 2:
            raise ValueError(NO_FANS.format(what="Orthogonal", shape=shape))
        rows, columns = math.prod(shape[:-1]), shape[-1]
        q, r = np.linalg.qr(rng.normal(size=(max(rows, columns), min(rows, columns))))
        # Without the signs of R's diagonal the matrix would not be uniform over all such matrices.
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
        return self.gain * (q if rows >= columns else q.T).reshape(shape)
