"""The classes that a config may name: the library's own, and those that an application registers."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, overload

from ptml.module import Module
from ptml_state.strictjson import short

__all__ = ["Registry", "register"]

NO_MODULE = "register takes a class of modules, such as a subclass of Layer; got {given!r}."
BAD_NAME = "A class is registered by a name, a text that is not empty; got name={name!r}."
TWO_CLASSES = (
    "Two classes cannot have the name {name!r} in configs: {first} has it. Give this one another: "
    "@ptml.register(name={example!r})."
)
LIBRARYS_OWN = "{cls} is the library's own, and is called {name!r} in configs without being registered."
SECOND_NAME = "{cls} is registered as {first!r}, and so cannot be {second!r} as well: one name for a class."
UNKNOWN = (
    "there is no class {name}{hint}. A config names the library's own modules, and those that were "
    "registered beforehand: @ptml.register."
)
UNREGISTERED = (
    "{cls} is not registered, so nobody could read this back. Write @ptml.register above its class, here and "
    "where it is read."
)
DEFINED_AGAIN = (
    "{cls} was defined again since this object was made. Make the object again, from the class that there is."
)

_registered: dict[str, type[Module]] = {}


class Registry:
    """Classes by the names that they have in configs, as they are at one moment.

    Examples
    --------
    >>> registry = Registry()
    >>> registry.called("Linear")
    <class 'ptml.layers.linear.Linear'>
    >>> from ptml.layers import Dropout
    >>> registry.name_of(Dropout)
    'Dropout'
    """

    def __init__(self) -> None:
        self._classes: Mapping[str, type[Module]] = {**_own(), **_registered}
        self._names = {cls: name for name, cls in self._classes.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def called(self, name: str) -> type[Module]:
        """Give the class of a name.

        Raises
        ------
        LookupError
            If there is none; with the nearest names.
        """
        if name in self._classes:
            return self._classes[name]
        near = difflib.get_close_matches(name[:80], self._classes, n=2)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise LookupError(UNKNOWN.format(name=short(name), hint=hint).replace("?.", "?"))

    def name_of(self, cls: type) -> str:
        """Give the name of a class.

        Raises
        ------
        LookupError
            If it is not registered.
        """
        if cls in self._names:
            return self._names[cls]
        same = any(_is_again(cls, other) for other in self._names)
        raise LookupError((DEFINED_AGAIN if same else UNREGISTERED).format(cls=cls.__name__))


def _own() -> dict[str, type[Module]]:
    """Find the library's own public classes of modules, among all that there are.

    One counts that its file offers: what an example in a docstring defines only says that it is of that file.
    """
    found: dict[str, type[Module]] = {}
    pending = [Module]
    while pending:
        for cls in type.__subclasses__(pending.pop()):
            pending.append(cls)
            if _is_own(cls):
                found[cls.__name__] = cls
    return dict(sorted(found.items()))


def _is_own(cls: type) -> bool:
    if not cls.__module__.startswith("ptml."):
        return False
    module = sys.modules.get(cls.__module__)
    return cls.__name__ in getattr(module, "__all__", ()) and getattr(module, cls.__name__, None) is cls


def _is_again(cls: type, other: type) -> bool:
    """Say whether a class is another one defined once more: a cell of a notebook, say, that ran again."""
    return (
        cls is not other
        and "<locals>" not in cls.__qualname__
        and (cls.__module__, cls.__qualname__) == (other.__module__, other.__qualname__)
    )


@overload
def register[Kind: type[Module]](cls: Kind, /, *, name: str | None = None) -> Kind: ...
@overload
def register[Kind: type[Module]](
    cls: None = None, /, *, name: str | None = None
) -> Callable[[Kind], Kind]: ...
def register(cls: Any = None, /, *, name: str | None = None) -> Any:
    """Let configs name a class of yours, so that what it makes is written and read as JSON.

    A file never brings a class with it: what it names has to be registered by the program that reads it. Do
    this for classes that may be built with whatever fields a file gives them.

    Parameters
    ----------
    cls : type
        A subclass of :class:`ptml.Module`; left out where it is a decorator with arguments.
    name : str, optional
        What files call it, for good: renaming the class changes nothing then. The class's name unless
        given.

    Returns
    -------
    type
        The class.

    Raises
    ------
    TypeError
        If it is no class of modules.
    ValueError
        If another class has the name, if the class has another, or if it is the library's own.

    Examples
    --------
    >>> import ptml
    >>> @ptml.register(name="example/Half")
    ... class Half(ptml.activations.Activation):
    ...     def activate(self, X):
    ...         return X / 2
    >>> ptml.to_config(Half())["module"]
    {'class': 'example/Half'}
    """
    if cls is None:
        return lambda decorated: _register(decorated, name)
    return _register(cls, name)


def _register(cls: Any, name: str | None) -> Any:
    if not isinstance(cls, type) or not issubclass(cls, Module):
        raise TypeError(NO_MODULE.format(given=cls))
    if name is not None and (not isinstance(name, str) or not name):
        raise ValueError(BAD_NAME.format(name=name))
    name = cls.__name__ if name is None else name
    own = _own()
    if own.get(cls.__name__) is cls:
        raise ValueError(LIBRARYS_OWN.format(cls=cls.__name__, name=cls.__name__))
    for other, known in _registered.items():
        if known is cls and other != name:
            raise ValueError(SECOND_NAME.format(cls=cls.__name__, first=other, second=name))
    known = own.get(name) or _registered.get(name, cls)
    if known is not cls and not _is_again(cls, known):
        example = f"{cls.__module__.partition('.')[0]}/{cls.__name__}"
        raise ValueError(TWO_CLASSES.format(name=name, first=_full_name(known), example=example))
    _registered[name] = cls
    return cls


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
