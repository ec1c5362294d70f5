"""Writing configs: modules to JSON."""

from __future__ import annotations

import math
import types
from typing import Any

import attrs
from pytensor.graph.basic import Variable

from ptml.config.decode import FORMAT, from_config
from ptml.config.errors import ConfigError, WrongError
from ptml.config.registry import Registry
from ptml.declare import slot, sublayer
from ptml.initializers import Initializer
from ptml.layer import DefaultName, Layer
from ptml.module import Module
from ptml_state import Role, Where
from ptml_state.where import _All, _AnyOf, _Glob, _Not, _Role, _Type

__all__ = ["to_config"]

NO_MODULE = "to_config writes a module, or a tuple of them; got {given!r}."
BAD_REVISION = "to_config: revision is a whole number of 0 or more; got {given!r}."
SYMBOLIC = (
    "it is symbolic ({value}), and a config holds values. Write a number there, or, for a rate that moves, a "
    "schedule"
)
FUNCTION = (
    "it is the function {name}, and a config holds no code. Write it as a module, a class under "
    "@ptml.register"
)
OTHER = (
    "it is a {kind}, and a config holds numbers, texts, booleans, None, tuples of them, and modules: {value}"
)
SELECTOR = (
    "it selects by a function or a slot ({value}), and a config holds patterns, roles and classes. Write the "
    "address, or a pattern of addresses"
)
READS_OTHERWISE = (
    "to_config: {cls} is not made again by its own fields: what is read back is written otherwise. Its "
    "constructor has to take every field by keyword, and keep it as it is given."
)


def to_config(module: Any, *, revision: int = 0) -> dict[str, Any]:
    """Write a module as plain data, which ``json.dumps`` takes and :func:`from_config` reads.

    Every field is written, defaults too, so that the file means the same where a default has changed. A
    layer without a name of its own has none in the config either. An object that stands in several places is
    written once, with an ``"@id"``, and referred to by ``"@ref"``.

    Parameters
    ----------
    module : Module, or tuple of modules
        A network, a layer, a loss, a rule, a chain, a schedule, ...
    revision : int
        A number of your own for how your classes are laid out, 0 unless given; raise it when a field is
        renamed or a class split, and give :func:`from_config` the migrations that lead up to it.

    Returns
    -------
    dict
        The ``"format"``, the version of ``"ptml"``, the ``"revision"`` where it isn't 0, and the
        ``"module"``.

    Raises
    ------
    ConfigError
        If a field holds what is no data: a symbolic value, a function, an object of a class that isn't
        registered. The message says which field.
    TypeError
        If `module` is no module.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Dropout, Sequential
    >>> config = ptml.to_config(Sequential(Dropout("drop", p=0.1), ptml.activations.ReLU()))
    >>> config["module"]["layers"]
    [{'class': 'Dropout', 'name': 'drop', 'p': 0.1}, {'class': 'ReLU'}]
    >>> ptml.from_config(config)
    Sequential(Dropout('drop', p=0.1), ReLU())
    """
    from ptml import __version__

    if not isinstance(module, Module | tuple | list):
        raise TypeError(NO_MODULE.format(given=module))
    if type(revision) is not int or not 0 <= revision < 10**9:
        raise ValueError(BAD_REVISION.format(given=revision))
    config: dict[str, Any] = {"format": FORMAT, "ptml": __version__}
    if revision:
        config["revision"] = revision
    config["module"] = _written(module)
    # What is written can be read, and reading it gives what was written.
    if _written(from_config(config)) != config["module"]:
        raise ConfigError(READS_OTHERWISE.format(cls=type(module).__name__))
    return config


def _written(module: Any) -> Any:
    writer = _Writer()
    try:
        written = writer.value(module, ("module",))
    except WrongError as error:
        raise error.named("to_config") from None
    except RecursionError:
        raise ConfigError("to_config: the module is nested too deeply.") from None
    writer.drop_unused_ids()
    return written


class _Writer:
    """Writes modules, each object once."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.seen: dict[int, dict[str, Any]] = {}
        self.shared = 0

    def drop_unused_ids(self) -> None:
        for written in self.seen.values():
            if written["@id"] is None:
                del written["@id"]

    def value(self, value: Any, at: tuple[str | int, ...]) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"@float": str(value)}
        if isinstance(value, tuple | list):
            return [self.value(item, (*at, index)) for index, item in enumerate(value)]
        if isinstance(value, Module):
            return self.module(value, at)
        if isinstance(value, Role):
            return {"@role": value.value}
        if isinstance(value, type) and issubclass(value, Module):
            return {"@class": self.name_of(value, at)}
        if isinstance(value, Where):
            return self.selector(value, at)
        raise WrongError(at, _refusal(value))

    def name_of(self, cls: type, at: tuple[str | int, ...]) -> str:
        try:
            return self.registry.name_of(cls)
        except LookupError as error:
            raise WrongError(at, str(error.args[0])) from None

    def module(self, module: Module, at: tuple[str | int, ...]) -> dict[str, Any]:
        # What another module builds is that one's: only as its part is it the same object again.
        parent = vars(module).get("_parent")
        if parent is not None:
            return {"@part": vars(module)["_attribute"], "@of": self.module(parent, (*at, "@of"))}
        known = self.seen.get(id(module))
        if known is not None:
            if known["@id"] is None:
                self.shared += 1
                known["@id"] = self.shared
            return {"@ref": known["@id"]}
        written: dict[str, Any] = {"class": self.name_of(type(module), at), "@id": None}
        self.seen[id(module)] = written
        self.fields(module, at, written)
        return written

    def fields(self, module: Module, at: tuple[str | int, ...], written: dict[str, Any]) -> None:
        for field in attrs.fields(type(module)):
            value = getattr(module, field.name)
            if not field.init or isinstance(value, DefaultName):
                continue
            there = (*at, field.alias)
            if isinstance(value, Module) and value is field.default and _is_a_mere_value(value):
                # All layers of a class have one default object. It's nothing that they share.
                written[field.alias] = {"class": self.name_of(type(value), there)}
                self.fields(value, there, written[field.alias])
            else:
                written[field.alias] = self.value(value, there)

    def selector(self, selector: Where, at: tuple[str | int, ...]) -> dict[str, Any]:
        match selector:
            case _Glob():
                return {"@where": selector.pattern}
            case _Role():
                return {"@where": self.value(selector.role, at)}
            case _Type():
                return {"@where": self.value(selector.kind, at)}
            case _All():
                return {"@all": [self.selector(part, at) for part in selector.parts]}
            case _AnyOf():
                return {"@any": [self.selector(part, at) for part in selector.parts]}
            case _Not():
                return {"@not": self.selector(selector.part, at)}
        raise WrongError(at, SELECTOR.format(value=_shown(selector)) + ".")


def _is_a_mere_value(value: Any) -> bool:
    """Say whether an initializer or a layer has no state, so that two of it are as good as one."""
    if not isinstance(value, Initializer | Layer):
        return not isinstance(value, Module | tuple)
    declares = (getattr(type(value), name, None) for name in dir(type(value)))
    if any(isinstance(declared, slot | sublayer) for declared in declares):
        return False
    return all(_is_a_mere_value(getattr(value, field.name)) for field in attrs.fields(type(value)))


def _refusal(value: Any) -> str:
    if isinstance(value, Variable):
        return SYMBOLIC.format(value=_shown(value)) + "."
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return FUNCTION.format(name=value.__qualname__) + "."
    return OTHER.format(kind=type(value).__name__, value=_shown(value)) + "."


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:60]}…"
