"""Validators of hyperparameters: each error names the module, the argument, the value and what is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs

from ptml.layer import DefaultName, Layer

__all__ = [
    "an_activation",
    "an_axis",
    "an_initializer",
    "axes_or_none",
    "described",
    "finite",
    "flag",
    "integer",
    "non_negative",
    "positive",
    "positive_int",
    "real",
]

Validator = Callable[[Any, attrs.Attribute, Any], None]

BAD_VALUE = "{who}: {argument} must be {wants}; got {value!r}."
NO_INSTANCE = "{who}: {argument} must be {wants}; got the class {name}. Write {argument}={name}()."


def described(module: Any) -> str:
    """Name a module in an error: ``fc1 (Linear)``, or its class alone where it was given no name.

    Examples
    --------
    >>> from ptml.activations import ReLU
    >>> described(ReLU("act")), described(ReLU())
    ('act (ReLU)', 'ReLU')
    """
    kind = type(module).__name__
    if not isinstance(module, Layer) or isinstance(module.name, DefaultName):
        return kind
    return f"{module.name} ({kind})"


def _refuse(error: type[Exception], module: Any, field: attrs.Attribute, wants: str, value: Any) -> None:
    raise error(BAD_VALUE.format(who=described(module), argument=field.alias, wants=wants, value=value))


def integer(minimum: int, wants: str) -> Validator:
    """Make the validator of an integer, at least `minimum`.

    Parameters
    ----------
    minimum : int
    wants : str
        What the error says is wanted, such as ``"a positive integer"``.
    """

    def validate(module: Any, field: attrs.Attribute, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            _refuse(TypeError, module, field, wants, value)
        if value < minimum:
            _refuse(ValueError, module, field, wants, value)

    validate.__doc__ = f"Validate that a value is {wants}."
    return validate


def real(within: Callable[[float], bool], wants: str) -> Validator:
    """Make the validator of a finite number.

    Parameters
    ----------
    within : function of a float
        Whether a finite value will do.
    wants : str
        What the error says is wanted, such as ``"a number in [0, 1)"``.

    Examples
    --------
    >>> import attrs
    >>> from ptml.module import Module
    >>> class Decay(Module):
    ...     rate: float = attrs.field(validator=real(lambda rate: 0 <= rate < 1, "a number in [0, 1)"))
    >>> Decay(rate=1.5)
    Traceback (most recent call last):
        ...
    ValueError: Decay: rate must be a number in [0, 1); got 1.5.
    """

    def validate(module: Any, field: attrs.Attribute, value: Any) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            _refuse(TypeError, module, field, wants, value)
        if not math.isfinite(value) or not within(value):
            _refuse(ValueError, module, field, wants, value)

    validate.__doc__ = f"Validate that a value is {wants}."
    return validate


positive_int = integer(1, "a positive integer")
finite = real(lambda value: True, "a finite number")
positive = real(lambda value: value > 0, "a positive number")
non_negative = real(lambda value: value >= 0, "a number of 0 or more")


def an_axis(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is an integer, of either sign."""
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(TypeError, module, field, "an integer", value)


def axes_or_none(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is an integer, a tuple of integers, or None."""
    axes = value if isinstance(value, tuple) else (value,)
    if value is not None and any(not isinstance(axis, int) or isinstance(axis, bool) for axis in axes):
        _refuse(TypeError, module, field, "an integer, a tuple of integers or None", value)


def flag(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is True or False."""
    if not isinstance(value, bool):
        _refuse(TypeError, module, field, "True or False", value)


def _an_instance(module: Any, field: attrs.Attribute, value: Any, wants: str, example: str) -> None:
    if isinstance(value, type):
        raise TypeError(
            NO_INSTANCE.format(who=described(module), argument=field.alias, wants=wants, name=value.__name__)
        )
    if not callable(value):
        _refuse(TypeError, module, field, f"{wants}, such as {example}", value)


def an_initializer(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is an initializer, or a function of ``(rng, shape, dtype)``."""
    _an_instance(module, field, value, "an initializer", "Zeros()")


def an_activation(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is an activation, or another function of a tensor."""
    _an_instance(module, field, value, "an activation", "Tanh()")
