"""Hyperparameters of transforms and schedules: what they may be, and how they enter a graph.

A number is checked when the value that holds it is made. A symbolic scalar, a state leaf among them, is
taken as it is; where its check matters it is carried into the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.type import discrete_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml_state import SlotVariable

__all__ = [
    "Count",
    "LearningRate",
    "Rate",
    "a_function",
    "as_count",
    "as_scalar",
    "is_schedule",
    "namespace",
    "number",
    "rate_at",
    "to_floatx",
    "whole_count",
    "working_dtype",
]

#: A rate that a rule multiplies into its step: a number, or a symbolic scalar such as a `scalar_state`.
type Rate = float | TensorVariable
#: What a rule takes as its rate: a rate, or a schedule, any function from a step count to a rate.
type LearningRate = Rate | Callable[[Any], Any]
#: A number of steps: whole and at least one, or a symbolic whole number.
type Count = int | TensorVariable

Validator = Callable[[Any, attrs.Attribute, Any], None]

BAD_VALUE = "{who}: {argument} must be {wants}; got {value!r}."
NOT_SCALAR = "{who}: {argument} must be {wants}; got a tensor of type {type}. A hyperparameter is a scalar."
BAD_COUNT = (
    "{who}: {argument} must be a whole number of at least 1, and this one, which the graph computes, is not."
)


def _refuse(error: type[Exception], module: Any, field: attrs.Attribute, wants: str, value: Any) -> None:
    who = type(module).__name__
    if isinstance(value, Variable):
        raise error(NOT_SCALAR.format(who=who, argument=field.alias, wants=wants, type=value.type))
    raise error(BAD_VALUE.format(who=who, argument=field.alias, wants=wants, value=value))


def number(within: Callable[[float], bool], wants: str, *, schedule: bool = False) -> Validator:
    """Make the validator of a number that may be symbolic.

    Parameters
    ----------
    within : function of a float
        Whether a number will do; NaN never does.
    wants : str
        What the error says is wanted, such as ``"a number in [0, 1)"``.
    schedule : bool, default False
        Whether a schedule may stand in its place.

    Examples
    --------
    >>> import attrs
    >>> from ptml.module import Module
    >>> class Pull(Module):
    ...     rate: float = attrs.field(validator=number(lambda rate: rate >= 0, "a number of 0 or more"))
    >>> Pull(rate=-0.1)
    Traceback (most recent call last):
        ...
    ValueError: Pull: rate must be a number of 0 or more; got -0.1.
    """
    wants = f"{wants}, a symbolic scalar or a schedule" if schedule else wants

    def validate(module: Any, field: attrs.Attribute, value: Any) -> None:
        if isinstance(value, Variable):
            if getattr(value.type, "ndim", None) != 0:
                _refuse(TypeError, module, field, wants, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if math.isnan(value) or not within(value):
                _refuse(ValueError, module, field, wants, value)
        elif not schedule or not callable(value) or isinstance(value, type):
            _refuse(TypeError, module, field, wants, value)

    return validate


def whole_count(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate a number of steps: a whole number of at least 1, or a symbolic whole number."""
    wants = "a whole number of at least 1"
    if isinstance(value, Variable):
        if getattr(value.type, "ndim", None) != 0 or value.type.dtype not in discrete_dtypes:
            _refuse(TypeError, module, field, f"{wants}, or a symbolic one", value)
    elif not isinstance(value, int | float) or isinstance(value, bool):
        _refuse(TypeError, module, field, wants, value)
    elif not math.isfinite(value) or value != int(value) or value < 1:
        _refuse(ValueError, module, field, wants, value)


def namespace(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate the first part of the addresses of a transform's state."""
    wants = "one or more words joined by '/', such as 'fast'"
    if not isinstance(value, str):
        _refuse(TypeError, module, field, wants, value)
    if not all(value.split("/")) or set(value) & set("*?[]"):
        _refuse(ValueError, module, field, wants, value)


def a_function(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is a schedule, or another function."""
    if not callable(value) or isinstance(value, type):
        _refuse(TypeError, module, field, "a schedule, such as cosine_schedule(1e-3, 10_000)", value)


def working_dtype(parameter: SlotVariable) -> str:
    """Give the dtype that a rule computes in: the parameter's, and float32 for half precision.

    In float16 an epsilon of 1e-8 is zero, and the square of 0.0002 too.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml_state import Role, Slot
    >>> working_dtype(Slot("W", Role.PARAMETER, "float16", (2,), np.zeros).handle)
    'float32'
    """
    return "float32" if parameter.type.dtype == "float16" else str(parameter.type.dtype)


def as_scalar(value: Any, dtype: str) -> TensorVariable:
    """Bring a hyperparameter into a graph at a dtype, so that it widens nothing there.

    Examples
    --------
    >>> as_scalar(1e-3, "float32").type
    TensorType(float32, shape=())
    """
    if isinstance(value, Variable):
        return pt.cast(value, dtype)
    return pt.constant(np.asarray(value, dtype=dtype))


def to_floatx(value: Any) -> TensorVariable:
    """Give a value at the current ``floatX``, cast only where it is a variable of another dtype.

    Parameters
    ----------
    value : number, array or tensor

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> x = pt.dscalar("x")
    >>> to_floatx(x) is x
    True
    >>> to_floatx(pt.lscalar("count")).dtype
    'float64'
    """
    return as_scalar(value, pytensor.config.floatX)


def as_count(value: Count, module: Any, argument: str) -> TensorVariable:
    """Bring a number of steps into a graph; a symbolic one carries its check along."""
    if not isinstance(value, Variable):
        return pt.constant(np.asarray(value, dtype="int64"))
    count = pt.cast(value, "int64")
    message = BAD_COUNT.format(who=type(module).__name__, argument=argument)
    return CheckAndRaise(ValueError, message)(count, pt.ge(count, 1))


def is_schedule(rate: LearningRate) -> bool:
    """Say whether a learning rate is a function of a step count."""
    return callable(rate) and not isinstance(rate, Variable)


def rate_at(rate: LearningRate, count: TensorVariable | None) -> Rate:
    """Give the rate that holds at a step count.

    Parameters
    ----------
    rate : number, scalar tensor or schedule
    count : scalar tensor of int64, optional
        The clock that drives a schedule; not needed for anything else.
    """
    return rate(count) if callable(rate) and not isinstance(rate, Variable) else rate
