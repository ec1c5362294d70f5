"""Hyperparameters of transforms and schedules: what they may be, and how they enter a graph.

A number is checked when the value that holds it is made. A symbolic scalar, a state leaf among them, is
taken as it is, and its check is carried into the graph: by :func:`checked` for a number, by
:func:`as_count` for a count.
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

from ptml.module import Module
from ptml.optim.rates import note_rate
from ptml_state import SlotVariable

__all__ = [
    "Count",
    "LearningRate",
    "Number",
    "Rate",
    "a_function",
    "a_rate",
    "a_share",
    "as_count",
    "as_scalar",
    "checked",
    "checked_rate",
    "is_schedule",
    "namespace",
    "non_negative",
    "number",
    "positive",
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
BAD_COMPUTED = "{who}: {argument} must be {wants}, and this one, which the graph computes, is not."
BAD_COUNT = (
    "{who}: {argument} must be a whole number of at least {least}, and this one, which the graph computes, "
    "is not."
)


def _refuse(error: type[Exception], module: Any, field: attrs.Attribute, wants: str, value: Any) -> None:
    who = type(module).__name__
    if isinstance(value, Variable):
        raise error(NOT_SCALAR.format(who=who, argument=field.alias, wants=wants, type=value.type))
    raise error(BAD_VALUE.format(who=who, argument=field.alias, wants=wants, value=value))


@attrs.frozen
class Number:
    """The validator of a number that may be symbolic; made by :func:`number`.

    Parameters
    ----------
    within : function of a float or a scalar tensor
        Whether a number will do; NaN never does.
    wants : str
        What the error says is wanted, such as ``"a number in [0, 1)"``.
    schedule, optional : bool
        Whether a schedule, or None, may stand in its place.
    """

    within: Callable[[Any], Any]
    wants: str
    schedule: bool = False
    optional: bool = False

    def __call__(self, module: Any, field: attrs.Attribute, value: Any) -> None:
        wants = f"{self.wants}, a symbolic scalar or a schedule" if self.schedule else self.wants
        if isinstance(value, Variable):
            if getattr(value.type, "ndim", None) != 0:
                _refuse(TypeError, module, field, wants, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if math.isnan(value) or not self.within(value):
                _refuse(ValueError, module, field, wants, value)
        elif value is None and self.optional:
            return
        elif not self.schedule or not callable(value) or isinstance(value, type):
            _refuse(TypeError, module, field, wants, value)


def number(
    within: Callable[[Any], Any], wants: str, *, schedule: bool = False, optional: bool = False
) -> Number:
    """Make the validator of a number that may be symbolic.

    Parameters
    ----------
    within : function of a float or a scalar tensor
        Whether a number will do; NaN never does. Comparisons joined by ``&`` serve both kinds.
    wants : str
        What the error says is wanted, such as ``"a number in [0, 1)"``.
    schedule : bool, default False
        Whether a schedule may stand in its place.
    optional : bool, default False
        Whether None may.

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
    return Number(within, wants, schedule, optional)


def _finite_and_non_negative(value: Any) -> Any:
    return (value >= 0) & (value < math.inf)


non_negative = number(_finite_and_non_negative, "a finite number of 0 or more")
positive = number(lambda value: (value > 0) & (value < math.inf), "a finite number above 0")
a_share = number(lambda value: (value >= 0) & (value < 1), "a number in [0, 1)")
a_rate = number(_finite_and_non_negative, "a finite number of 0 or more", schedule=True)


def checked(module: Module, argument: str) -> Any:
    """Give a hyperparameter for use in a graph: a number as it is, a symbolic one with its check.

    The check is one comparison of scalars, and raises when the graph runs.

    Parameters
    ----------
    module : Module
        What has the hyperparameter, validated by a :class:`Number`.
    argument : str
        Its name.

    Examples
    --------
    >>> from ptml.optim import adam, scalar_state
    >>> checked(adam(beta1=0.8), "beta1")
    0.8
    >>> checked(adam(beta1=scalar_state("beta1", 1.0)), "beta1").owner.op.msg
    'Adam: beta1 must be a number in [0, 1), and this one, which the graph computes, is not.'
    """
    return _checked(module, argument, getattr(module, argument))


def _checked(module: Module, argument: str, value: Any) -> Any:
    if not isinstance(value, Variable):
        return value
    validator: Any = attrs.fields_dict(type(module))[argument].validator
    message = BAD_COMPUTED.format(who=type(module).__name__, argument=argument, wants=validator.wants)
    return CheckAndRaise(ValueError, message)(value, validator.within(value))


def checked_rate(module: Module, count: TensorVariable | None, argument: str = "learning_rate") -> Any:
    """Give the rate that holds at a step count, with its check where it is symbolic.

    A `Schedule` answers for its own numbers; what another function gives is checked.

    Parameters
    ----------
    module : Module
        What has the rate, validated by a :class:`Number`.
    count : scalar tensor of int64, optional
        The clock that drives a schedule; not needed for anything else.
    argument : str, default "learning_rate"
        The rate's name.

    Examples
    --------
    >>> from ptml.optim import sgd
    >>> checked_rate(sgd(0.1), None)
    0.1
    """
    rate = getattr(module, argument)
    value = rate_at(rate, count)
    value = value if isinstance(rate, Module) else _checked(module, argument, value)
    if argument == "learning_rate":
        note_rate(module, value)
    return value


def whole_count(module: Any, field: attrs.Attribute, value: Any, least: int = 1) -> None:
    """Validate a number of steps: a whole number of at least 1 (or `least`), or a symbolic whole number."""
    wants = f"a whole number of at least {least}"
    if isinstance(value, Variable):
        if getattr(value.type, "ndim", None) != 0 or value.type.dtype not in discrete_dtypes:
            _refuse(TypeError, module, field, f"{wants}, or a symbolic one", value)
    elif not isinstance(value, int | float) or isinstance(value, bool):
        _refuse(TypeError, module, field, wants, value)
    elif not math.isfinite(value) or value != int(value) or value < least:
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


def as_count(value: Count, module: Any, argument: str, least: int = 1) -> TensorVariable:
    """Bring a number of steps into a graph; a symbolic one carries its check along."""
    if not isinstance(value, Variable):
        return pt.constant(np.asarray(value, dtype="int64"))
    count = pt.cast(value, "int64")
    message = BAD_COUNT.format(who=type(module).__name__, argument=argument, least=least)
    return CheckAndRaise(ValueError, message)(count, pt.ge(count, least))


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
