"""Parts that rules share: bias corrections, roots of squares that do not overflow, decay, and the step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import Rate, as_scalar, working_dtype
from ptml.optim.masks import masked
from ptml.optim.transform import Rule
from ptml.optim.updates import Updates, as_parameters, to_updates
from ptml_state import SlotVariable

__all__ = [
    "apply_rule",
    "bias_correction",
    "descend",
    "faded",
    "hypotenuse",
    "log_of",
    "root_mean_square",
    "sign",
    "with_decay",
]

type Amounts = dict[SlotVariable, TensorVariable]


def apply_rule(rule: Rule, loss_gradients_or_updates: Any, parameters: Iterable[SlotVariable]) -> Updates:
    """Build a rule's updates with the state of whatever is running, and not with the rule's own."""
    handles = as_parameters(parameters)
    return rule.apply(to_updates(loss_gradients_or_updates, handles), handles)


def log_of(beta: Rate, dtype: str) -> TensorVariable:
    """Give the logarithm of a decay in [0, 1), taken before the decay is rounded to a dtype.

    Examples
    --------
    >>> float(log_of(1 - 1e-9, "float32").eval())
    -9.999999717180685e-10
    """
    if isinstance(beta, Variable):
        return pt.cast(pt.log(beta), dtype)
    return as_scalar(math.log(beta) if beta > 0 else -math.inf, dtype)


def bias_correction(beta: Rate, steps: TensorVariable, dtype: str) -> TensorVariable:
    """Give ``1 - beta**steps``; in float32 the difference itself would lose five digits at the first step.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> round(float(bias_correction(0.999, pt.constant(1), "float32").eval()), 9)
    0.001
    """
    return -pt.expm1(pt.cast(steps, dtype) * log_of(beta, dtype))


def faded(decay: TensorVariable, values: TensorVariable) -> TensorVariable:
    """Give what a decay leaves of values: zero where that would be smaller than the dtype's normal numbers.

    Without gradients, means and velocities would fall to denormal numbers and stay there, since 0.9 times the
    smallest of them rounds to itself; processors compute with them ten times slower.

    Parameters
    ----------
    decay : scalar tensor
    values : tensor
        Of the same dtype. Infinities stay, and NaN too.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> values = pt.constant(np.array([1.0, 1e-307, -1e-308, np.nan]))
    >>> faded(pt.constant(0.5), values).eval()
    array([5.e-001, 5.e-308, 0.e+000,     nan])
    """
    left = decay * values
    return pt.switch(pt.lt(pt.abs(left), as_scalar(np.finfo(left.dtype).tiny, left.dtype)), 0, left)


def hypotenuse(a: TensorVariable, b: TensorVariable) -> TensorVariable:
    """Give ``sqrt(a**2 + b**2)`` by element, where neither square need be a float.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> a, b = np.array([[0.0, 3.0, 3e20], [0.0, 4.0, 4e20]], "float32")
    >>> hypotenuse(pt.constant(a), pt.constant(b)).eval().tolist()
    [0.0, 5.0, 5.000000100204387e+20]
    """
    a, b = pt.abs(a), pt.abs(b)
    longer, shorter = pt.maximum(a, b), pt.minimum(a, b)
    ratio = shorter / pt.switch(pt.eq(longer, 0), 1, longer)
    return longer * pt.sqrt(1 + pt.sqr(ratio))


def sign(values: TensorVariable) -> TensorVariable:
    """Give the sign of each element; where it is NaN, NaN, which MLX's own sign calls 0.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> sign(pt.constant(np.array([-3e-320, 0.0, np.nan]))).eval()
    array([-1.,  0., nan])
    """
    return values / pt.switch(pt.eq(values, 0), 1, pt.abs(values))


def root_mean_square(
    values: TensorVariable, shape: tuple[int, ...], axis: int | None = None
) -> TensorVariable:
    """Give the root of the mean of squares, overall or along an axis, where no square need be a float.

    Parameters
    ----------
    values : tensor
    shape : tuple of int
        Its shape. Of nothing the mean is zero.
    axis : int, optional

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> x = pt.constant(np.array([1e20, -1e20], "float32"))
    >>> float(root_mean_square(x, (2,)).eval())
    1.0000000200408773e+20
    """
    if 0 in shape:
        return pt.zeros(() if axis is None else tuple(np.delete(shape, axis)), values.dtype)
    largest = pt.max(pt.abs(values), axis=axis, keepdims=True)
    unit = pt.switch(pt.eq(largest, 0), 1, largest)
    # By default PyTensor would add float32 up in float64, which JAX has only where it is told to.
    squares = pt.sum(pt.sqr(values / unit), axis=axis, keepdims=True, acc_dtype=values.dtype)
    size = math.prod(shape) if axis is None else shape[axis]
    return pt.squeeze(unit * pt.sqrt(squares / as_scalar(size, values.dtype)), axis=axis)


def with_decay(directions: Mapping[SlotVariable, TensorVariable], coefficient: Rate, mask: Any) -> Amounts:
    """Add the pull of decoupled weight decay to the directions of the parameters that a mask selects.

    A coefficient that is the number zero adds nothing to the graph.

    Raises
    ------
    KeyError
        If a name in the mask matches no parameter.
    """
    decayed = dict(directions)
    for parameter in masked(mask, directions):
        if isinstance(coefficient, Variable) or coefficient != 0:
            dtype = working_dtype(parameter)
            decayed[parameter] += as_scalar(coefficient, dtype) * pt.cast(parameter, dtype)
    return decayed


def descend(directions: Mapping[SlotVariable, TensorVariable], rate: Rate) -> Amounts:
    """Give the steps down these directions, at a rate."""
    return {p: -as_scalar(rate, working_dtype(p)) * direction for p, direction in directions.items()}
