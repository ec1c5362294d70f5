"""Declaring, in a module's class, the state that it owns and the layers that it builds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import pytensor

from ptml.module import Module
from ptml_state import Role, Slot, SlotVariable

__all__ = ["FreshKey", "generator", "parameter", "slot", "slot_group", "statistic", "sublayer"]

WANTS_DECLARATION = (
    "{cls}.{name} returned {value!r}. A method under @slot returns parameter(shape, initializer), "
    "statistic(shape, initializer) or generator(), or None where the module has no such slot."
)


@attrs.frozen
class Declaration:
    """What a method under `slot` returns: a slot but for its owner and name."""

    role: Role
    shape: tuple[int, ...]
    initializer: Callable[..., Any]
    dtype: str | None


class FreshKey(Module):
    """Initialize a generator: two random key words, and a count of calls (low and high word) at zero."""

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        key = np.zeros(shape, dtype)
        key[:2] = rng.integers(0, 2**32, size=2, dtype=np.uint32)
        return key


def parameter(
    shape: Sequence[int], initializer: Callable[..., Any], *, dtype: str | None = None
) -> Declaration:
    """Declare a trained array.

    Parameters
    ----------
    shape : sequence of int
        Its shape.
    initializer : callable
        ``initializer(rng, shape, dtype) -> array``; see :mod:`ptml.initializers`.
    dtype : str, optional
        Its dtype; ``floatX`` when the module's first slot is read, unless given.
    """
    return Declaration(Role.PARAMETER, tuple(shape), initializer, dtype)


def statistic(
    shape: Sequence[int], initializer: Callable[..., Any], *, dtype: str | None = None
) -> Declaration:
    """Declare a running statistic, which :func:`ptml.advance` moves; arguments as for `parameter`."""
    return Declaration(Role.STATISTIC, tuple(shape), initializer, dtype)


def generator() -> Declaration:
    """Declare a generator of random numbers: a ``uint32[4]`` leaf that :mod:`ptml.random` draws from."""
    return Declaration(Role.GENERATOR, (4,), FreshKey(), "uint32")


def _float_dtype(module: Any) -> str:
    """Give the floatX of the moment in which a module's first slot was read: all of them have one."""
    return vars(module).setdefault("_float_dtype", pytensor.config.floatX)


class slot:
    """Make a method that declares state into the handle of one slot.

    The slot belongs to the module object: it is made when it is first read, and is the same ever after.

    Examples
    --------
    >>> from ptml.initializers import Ones
    >>> from ptml.layer import Layer
    >>> from ptml.declare import parameter, slot
    >>> class Gain(Layer):
    ...     n_in: int
    ...
    ...     @slot
    ...     def scale(self):
    ...         return parameter((self.n_in,), Ones())
    ...
    ...     def build(self, X):
    ...         return X * self.scale
    >>> gain = Gain("gain", n_in=3)
    >>> gain.scale.slot
    Slot('gain/scale', Role.PARAMETER, float64[3])
    """

    def __init__(self, declare: Callable[[Any], Declaration | None]) -> None:
        self.declare = declare
        self.__doc__ = declare.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    # The handle is kept in the instance's `__dict__`, where Python finds it before it asks this descriptor.
    def __get__(self, module: Any, cls: type | None = None) -> Any:
        if module is None:
            return self
        declared = self.declare(module)
        if declared is None:
            handle: SlotVariable | None = None
        elif isinstance(declared, Declaration):
            handle = Slot(
                self.name,
                declared.role,
                declared.dtype or _float_dtype(module),
                declared.shape,
                declared.initializer,
                owner=module,
                attribute=self.name,
            ).handle
        else:
            raise TypeError(
                WANTS_DECLARATION.format(cls=type(module).__name__, name=self.name, value=declared)
            )
        return vars(module).setdefault(self.name, handle)


class slot_group:
    """Make a method that declares any number of slots into a mapping of their handles, by name.

    The method gives pairs of a name and a declaration. Where it is a generator, the handles of what it gave
    before are in the module's `vars` by then, as the group's name, a slash, and their own.

    Examples
    --------
    >>> import ptml
    >>> from ptml.declare import slot_group
    >>> from ptml.initializers import Ones
    >>> class Gains(ptml.Layer):
    ...     n: int
    ...
    ...     @slot_group
    ...     def scales(self):
    ...         return [(f"scale{k}", ptml.parameter((), Ones())) for k in range(self.n)]
    ...
    ...     def build(self, X):
    ...         return X * sum(self.scales.values())
    >>> list(ptml.init(Gains("gains", n=2), seed=0))
    ['gains/scale0', 'gains/scale1']
    """

    def __init__(self, declare: Callable[[Any], Iterable[tuple[str, Declaration]]]) -> None:
        self.declare = declare
        self.__doc__ = declare.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, cls: type | None = None) -> Any:
        if module is None:
            return self
        handles = {}
        for name, declared in self.declare(module):
            attribute = f"{self.name}/{name}"  # where a handle is found that a graph has brought along
            dtype = declared.dtype or _float_dtype(module)
            made = Slot(
                name,
                declared.role,
                dtype,
                declared.shape,
                declared.initializer,
                owner=module,
                attribute=attribute,
            )
            handles[name] = vars(module).setdefault(attribute, made.handle)
        return vars(module).setdefault(self.name, handles)


class sublayer:
    """Make a method that builds a layer, or a tuple of layers, into what it builds, built once.

    The method names what it builds below its own layer: ``Linear(f"{self.name}/query", ...)``. It may give
    None, or an empty tuple, where the module has no such layer.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Linear
    >>> class Deep(ptml.Layer):
    ...     n: int
    ...     depth: int = 2
    ...
    ...     @ptml.sublayer
    ...     def layers(self):
    ...         names = [f"{self.name}/layer{k}" for k in range(self.depth)]
    ...         return tuple(Linear(name, n_in=self.n, n_out=self.n, bias=False) for name in names)
    ...
    ...     def build(self, X):
    ...         for layer in self.layers:
    ...             X = layer(X)
    ...         return X
    >>> list(ptml.init(Deep("deep", n=3), seed=0))
    ['deep/layer0/W', 'deep/layer1/W']
    """

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self.build = build
        self.__doc__ = build.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, cls: type | None = None) -> Any:
        if module is None:
            return self
        built = self.build(module)
        if isinstance(built, list | tuple):
            built = tuple(built)
            parts = {f"{self.name}/{k}": part for k, part in enumerate(built)}
        else:
            parts = {self.name: built}
        for attribute, part in parts.items():
            if part is not None:
                vars(part)["_parent"], vars(part)["_attribute"] = module, attribute
        return vars(module).setdefault(self.name, built)


def _declared(cls: type, kind: type) -> list[str]:
    """Name the attributes of a class that are of this kind, bases first, in the order written."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, kind):
                names[name] = None
            else:
                names.pop(name, None)
    return list(names)


def own_slots(module: Any) -> list[SlotVariable]:
    """Give the handles that a module itself declares, in the order of its class."""
    handles = [getattr(module, name) for name in _declared(type(module), slot)]
    for name in _declared(type(module), slot_group):
        handles += getattr(module, name).values()
    return [handle for handle in handles if handle is not None]


def own_sublayers(module: Any) -> list[Any]:
    """Give the layers that a module itself builds, in the order of its class."""
    built = (getattr(module, name) for name in _declared(type(module), sublayer))
    layers = itertools.chain.from_iterable(one if isinstance(one, tuple) else (one,) for one in built)
    return [layer for layer in layers if layer is not None]
