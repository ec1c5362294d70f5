"""Random draws: pure functions of a generator's leaf, the draw's number, and the element's index.

A generator is a ``uint32[4]`` slot: two words of key, and a count of the calls made so far. In one call of a
program the draws of one key are numbered in the order in which they were made, and the count goes up by
one. The words come from Threefry-2x32 and are the same on every backend.

For any other distribution, :func:`pytensor_rng` makes of a key a generator for PyTensor's own random
variables; their numbers are each backend's own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.variable import RandomGeneratorVariable
from pytensor.tensor.variable import TensorVariable

from ptml.application import DrawNumber
from ptml.bits import Draw, FoldIn
from ptml.rng import AsGenerator
from ptml_state import Role, Slot, SlotVariable

__all__ = ["bernoulli", "bits", "fold_in", "normal", "pytensor_rng", "uniform"]

NOT_A_KEY = (
    "{what} draws from a generator's handle, or from fold_in(handle, number); got {given!r}. Declare one in "
    "a layer under @slot with generator()."
)
BAD_PROBABILITY = "bernoulli's p is a probability, a number from 0 to 1; got {p!r}."


def _slot_of(key: Any, what: str) -> Slot:
    """Find the generator that a key derives from."""
    root = key
    while isinstance(root, Variable) and root.owner is not None and isinstance(root.owner.op, FoldIn):
        root = root.owner.inputs[0]
    if isinstance(root, SlotVariable) and root.slot.role is Role.GENERATOR:
        return root.slot
    raise TypeError(NOT_A_KEY.format(what=what, given=key))


def _sizes(shape: Any) -> list[TensorVariable]:
    if isinstance(shape, Variable) and shape.type.ndim == 1:
        known = shape.type.shape[0]
        shape = [shape[i] for i in range(known)] if known is not None else list(shape)
    elif not isinstance(shape, tuple | list):
        shape = (shape,)
    return [pt.as_tensor(size).astype("int64") for size in shape]


def _draw(key: Any, shape: Any, dtype: str, what: str) -> TensorVariable:
    return Draw(dtype)(key, DrawNumber(_slot_of(key, what)), *_sizes(shape))


def bits(key: SlotVariable, shape: Any = ()) -> TensorVariable:
    """Draw ``uint32`` words, uniform over all values.

    Parameters
    ----------
    key : handle of a generator, or ``fold_in(handle, number)``
    shape : int, tuple of int or symbolic, or a symbolic vector of known length
        The shape of the draw.

    Returns
    -------
    tensor, uint32

    Raises
    ------
    TypeError
        If `key` is not a generator's.

    Examples
    --------
    >>> import ptml
    >>> class Noise(ptml.Layer):
    ...     @ptml.slot
    ...     def key(self):
    ...         return ptml.generator()
    >>> noise = Noise("noise")
    >>> draw = ptml.function([], ptml.random.bits(noise.key, (2,)), seed=0)
    >>> draw().dtype, bool((draw() == draw()).any())
    (dtype('uint32'), False)
    """
    return _draw(key, shape, "uint32", "bits")


def uniform(
    key: SlotVariable, shape: Any = (), low: Any = 0.0, high: Any = 1.0, *, dtype: str | None = None
) -> Any:
    """Draw from the uniform distribution over ``[low, high)``.

    Parameters
    ----------
    key, shape
        As for :func:`bits`.
    low, high : number or tensor
        The bounds.
    dtype : {"float32", "float64"}, optional
        ``floatX`` unless given. A float32 draw is a multiple of 2**-24, a float64 draw of 2**-53.
    """
    dtype = dtype or pytensor.config.floatX
    unit = _draw(key, shape, dtype, "uniform")
    if isinstance(low, int | float) and isinstance(high, int | float) and (low, high) == (0, 1):
        return unit
    low, high = pt.as_tensor(low).astype(dtype), pt.as_tensor(high).astype(dtype)
    return low + (high - low) * unit


def normal(
    key: SlotVariable, shape: Any = (), mean: Any = 0.0, scale: Any = 1.0, *, dtype: str | None = None
) -> Any:
    """Draw from the normal distribution, by the Box-Muller transform of two uniform draws.

    Parameters
    ----------
    key, shape, dtype
        As for :func:`uniform`.
    mean, scale : number or tensor
        Mean and standard deviation.

    Notes
    -----
    Box and Muller, "A note on the generation of random normal deviates" (1958). The uniform draws are the
    same on every backend; logarithm and cosine round as the backend's do.
    """
    dtype = dtype or pytensor.config.floatX
    one = np.asarray(1, dtype)
    radius = pt.sqrt(np.asarray(-2, dtype) * pt.log(one - _draw(key, shape, dtype, "normal")))
    angle = np.asarray(2 * math.pi, dtype) * _draw(key, shape, dtype, "normal")
    return pt.as_tensor(mean).astype(dtype) + pt.as_tensor(scale).astype(dtype) * radius * pt.cos(angle)


def bernoulli(key: SlotVariable, p: Any, shape: Any = ()) -> TensorVariable:
    """Draw booleans that are true with probability `p`.

    Parameters
    ----------
    key, shape
        As for :func:`bits`.
    p : float or scalar tensor
        The probability. A number is compared with the raw words, exactly to 2**-32.

    Returns
    -------
    tensor, bool

    Raises
    ------
    ValueError
        If `p` is a number outside ``[0, 1]``.
    """
    if isinstance(p, Variable) and not isinstance(p, Constant):
        return uniform(key, shape, dtype=p.type.dtype) < p
    p = float(p.data if isinstance(p, Constant) else p)
    if not 0 <= p <= 1:
        raise ValueError(BAD_PROBABILITY.format(p=p))
    words = bits(key, shape)
    threshold = round(p * 2**32)
    # The certain events still depend on the draw, so that the shape is the draw's and the count moves.
    if threshold == 2**32:
        return pt.ge(words, np.uint32(0))
    return pt.lt(words, np.uint32(threshold))


def fold_in(key: Any, number: Any) -> TensorVariable:
    """Derive a key from a generator's and a number, such as an iteration or a member of an ensemble.

    Parameters
    ----------
    key : handle of a generator, or a key derived from one
    number : int or integer scalar
        Distinct numbers give independent keys.
    """
    _slot_of(key, "fold_in")
    return FoldIn()(key, pt.as_tensor(number).astype("uint32"))


def pytensor_rng(key: Any) -> RandomGeneratorVariable:
    """Make of a key a generator for PyTensor's own random variables.

    The generator is made afresh in every call of the program, from the key, the calls made so far and its own
    number among the key's draws. The state tree keeps the key alone: draws resume exactly, and are the same
    in the forward pass, its gradient and any recomputation.

    Parameters
    ----------
    key : handle of a generator, or a key derived from one
        As for :func:`bits`.

    Returns
    -------
    RandomGeneratorVariable
        Draw with its methods, which give the next generator and the draw, or pass it to a function of
        ``pytensor.tensor.random`` as ``rng=``. Nothing has to be done with the last generator: no update.

    Raises
    ------
    TypeError
        If `key` is not a generator's.

    Notes
    -----
    Each backend draws by an algorithm of its own (C and Numba move on a PCG64 of NumPy's, JAX and MLX split a
    key), so the numbers differ between backends, and may change with a release of NumPy, JAX or MLX. PyTensor
    has no random variables on PyTorch, and not every distribution on the others. Where the numbers must be
    the same everywhere, draw with the other functions here.

    No gradient goes from a random variable to its parameters: draw from the standard distribution, and scale
    and shift the draw.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input
    >>> class GammaNoise(ptml.Layer):
    ...     shape: float = 2.0
    ...
    ...     @ptml.slot
    ...     def key(self):
    ...         return ptml.generator()
    ...
    ...     def build(self, X):
    ...         rng = ptml.random.pytensor_rng(self.key)
    ...         next_rng, noise = rng.gamma(self.shape, scale=1 / self.shape, size=X.shape)
    ...         return ptml.in_training(X * noise, X)
    >>> X = Input("X", shape=(None, 3))
    >>> noisy = ptml.function([X], GammaNoise("noise")(X), seed=0, backend="c")
    >>> one, other = noisy(np.ones((2, 3))), noisy(np.ones((2, 3)))
    >>> bool((one == other).any())
    False
    """
    return AsGenerator()(key, DrawNumber(_slot_of(key, "pytensor_rng")), np.uint32(0))
