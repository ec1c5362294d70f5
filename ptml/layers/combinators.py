"""Layers made of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from ptml.layer import Layer

__all__ = ["Sequential", "layers_of", "one_after_the_other"]

NOT_A_LAYER = "{cls} takes layers; its argument {position} is {given}. {remedy}"
NO_LAYERS = "{cls} takes one layer or more; got none."


def layers_of(cls: type, given: Sequence[Any]) -> Sequence[Layer]:
    """Check the positional arguments of a container.

    Raises
    ------
    TypeError
        If one is no layer.
    ValueError
        If there are none.
    """
    for position, layer in enumerate(given):
        if not isinstance(layer, Layer):
            remedy = _remedy(cls.__name__, layer, given)
            raise TypeError(
                NOT_A_LAYER.format(cls=cls.__name__, position=position, given=repr(layer), remedy=remedy)
            )
    if not given:
        raise ValueError(NO_LAYERS.format(cls=cls.__name__))
    return given


def one_after_the_other(layers: Sequence[Layer], inputs: Sequence[Any]) -> Any:
    """Apply each layer to what the one before gave."""
    for layer in layers:
        outputs = layer(*inputs)
        inputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return outputs


class Sequential(Layer):
    """Apply layers one after the other.

    The first takes what the whole is called on; a layer that gives several tensors hands each on as an input
    of the next. An object that stands there twice has one set of weights. The container adds nothing to
    the addresses of its layers' state.

    Parameters
    ----------
    *layers : Layer
        One or more.
    name : str, optional
        By keyword, since the layers are positional.

    Raises
    ------
    TypeError
        If an argument is no layer.
    ValueError
        If there are none.

    Examples
    --------
    >>> from ptml.activations import ReLU
    >>> from ptml.layers import Linear, Sequential
    >>> net = Sequential(Linear("fc1", n_in=784, n_out=128), ReLU(), Linear("fc2", n_in=128, n_out=10))
    >>> net
    Sequential(
        Linear('fc1', n_in=784, n_out=128),
        ReLU(),
        Linear('fc2', n_in=128, n_out=10),
    )
    >>> net[0], len(net[1:])
    (Linear('fc1', n_in=784, n_out=128), 2)
    """

    layers: tuple[Layer, ...]

    _varargs = "layers"

    def __init__(self, *args: Layer, layers: Sequence[Layer] | None = None, name: str | None = None) -> None:
        # `layers=` is how attrs.evolve and copy.replace spell the arguments.
        given = args if layers is None else (*args, *layers)
        layers_of(type(self), given)
        self.__attrs_init__(name=name, layers=given)  # type: ignore[attr-defined]

    def build(self, *inputs: Any) -> Any:
        return one_after_the_other(self.layers, inputs)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...
    def __getitem__(self, index: int | slice) -> Layer:
        if isinstance(index, slice):
            return Sequential(*self.layers[index], name=self.name)
        return self.layers[index]


def _remedy(cls: str, given: Any, arguments: Sequence[Any]) -> str:
    if isinstance(given, str):
        return f"Its name goes by keyword: name={given!r}."
    if isinstance(given, list | tuple) and len(arguments) == 1:
        return f"Write {cls}(*layers)."
    if isinstance(given, type) and issubclass(given, Layer):
        return f"Write {given.__name__}()."
    return "Wrap a function: Lambda(function)."
