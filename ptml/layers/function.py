"""A function as a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ptml.layer import DefaultName, Layer
from ptml.validate import described

__all__ = ["Lambda"]

A_LAYER = "{who}: function must be a function of tensors; got the layer {value}. Use it as it stands."
NOT_CALLABLE = "{who}: function must be a function of tensors; got {value!r}."


def _a_function(module: Any, field: attrs.Attribute, value: Any) -> None:
    if isinstance(value, Layer) or (isinstance(value, type) and issubclass(value, Layer)):
        shown = f"{value.__name__}()" if isinstance(value, type) else repr(value)
        raise TypeError(A_LAYER.format(who=described(module), value=shown))
    if not callable(value):
        raise TypeError(NOT_CALLABLE.format(who=described(module), value=value))


class Lambda(Layer):
    """Apply a function of tensors, as a layer.

    Two of them are equal if the function is the same object. A function is code, so :func:`ptml.to_config`
    refuses it by its name; what is to be written to files is a class of its own. Slots that the function
    reads belong to the layers that declare them.

    Parameters
    ----------
    function : callable
        It takes what the layer is called on, and gives a tensor or a tuple of tensors.
    name : str, optional
        By keyword, since the function is positional.

    Raises
    ------
    TypeError
        If `function` cannot be called, or is a layer.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> import pytensor.tensor as pt
    >>> from ptml.layers import Input, Lambda
    >>> X = Input("X", (None, 2))
    >>> ptml.function([X], Lambda(pt.sqr, name="square")(X))(np.array([[1.0, 3.0]]))
    array([[1., 9.]])
    """

    function: Callable[..., Any] = attrs.field(validator=_a_function)

    _varargs = "function"

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        self.__attrs_init__(name=name, function=function)  # type: ignore[attr-defined]

    def _shown_fields(self) -> tuple[list[Any], dict[str, Any]]:
        named = {} if isinstance(self.name, DefaultName) else {"name": self.name}
        return [self.function], named

    def build(self, *inputs: Any) -> Any:
        return self.function(*inputs)
