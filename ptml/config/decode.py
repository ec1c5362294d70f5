"""Reading configs: JSON to modules.

A config is data. It names classes that are registered and gives values to their fields; nothing that it
says is imported, looked up by attribute or run, but for building those classes.
"""

from __future__ import annotations

import difflib
import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ptml.config.errors import DEEPEST, LARGEST, ConfigError, WrongError, cut
from ptml.config.registry import Registry
from ptml.declare import sublayer
from ptml.module import Module, built_part
from ptml_state import Role, Where, where
from ptml_state.strictjson import JSONError, parse_json, short

__all__ = ["FORMAT", "MOST_PLACES", "read_config", "read_text", "from_config"]

#: The format that is written.
FORMAT = 1

#: The modules that a network may have, each counted wherever it stands.
MOST_PLACES = 100_000

#: What makes a config of one format one of the next: a function of the config.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_REQUIRED = ("format", "ptml", "module")
_OPTIONAL = ("revision",)
_FLOATS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}

NOT_A_CONFIG = "a config is an object with {fields}, such as to_config gives; got {given}"
LATER = (
    "it is of format {format}, written by ptml {version}; this ptml reads up to format {known}. Update ptml."
)
NEVER_WAS = "it is of format {format}, which never was"
UNKNOWN_FIELD = "{owner} has no field {name}{hint}. It has {fields}"
MISSING_FIELD = "{owner} lacks {missing}, which {have} no default"
NO_CLASS = 'an object says what it is, by a field "class"; this one has {fields}'
NOT_ALONE = "{kind} stands alone in an object; here it has {others} beside it"
BAD_REFERENCE = "@ref is {given}, and no object that is finished before it has that @id"
TWICE_AN_ID = "two objects have the @id {given}"
BAD_ID = "an @id is a whole number; got {given}"
BAD_FLOAT = "@float is one of {known}; got {given}"
BAD_ROLE = "@role is one of {known}; got {given}"
BAD_PART = "{owner} builds no layer called {given}{hint}"
NO_MODULES = "a config is of a module, or of a list of them; got {given}"
TOO_MANY = f"it has more than {MOST_PLACES} modules, counted wherever they stand"
LATER_REVISION = (
    "it is of revision {written} of its application, and this one reads up to revision {revision}. Update "
    "the application."
)
NO_MIGRATION = (
    "it is of revision {written}, and there is no migration from {number} to {next}. Write "
    "migrations={{{number}: function}}."
)
NO_REVISION = (
    "migrations= lead up to a revision: write revision= with it, the number that to_config and save_network "
    "are given now."
)


def from_config(
    config: Mapping[str, Any] | str | bytes,
    *,
    revision: int | None = None,
    migrations: Mapping[int, Callable[[Any], Any]] | None = None,
) -> Any:
    """Build the module that a config describes.

    Classes are those of the library, and those that were registered by :func:`ptml.register`. A file
    imports and runs nothing. What a class's constructor refuses is refused here; a field that the config
    lacks has the default of its class, if there is one, and one that the class lacks is an error.

    Parameters
    ----------
    config : dict, or str or bytes
        What :func:`to_config` gave, or its JSON.
    revision : int, optional
        The number that you give :func:`to_config` now. A config of a later one is refused.
    migrations : mapping from int to function, optional
        From a revision to a function of the config's ``"module"`` that makes it one of the next revision.

    Returns
    -------
    Module, or tuple of modules
        Objects that were one when they were written are one again: weights that were tied are tied.

    Raises
    ------
    ConfigError
        If anything is wrong; the message says where in the JSON, and what.

    Examples
    --------
    >>> import ptml
    >>> ptml.from_config('''{"format": 1, "ptml": "0.1.0",
    ...     "module": {"class": "Linear", "name": "fc", "n_in": 2, "n_out": 3}}''')
    Linear('fc', n_in=2, n_out=3)
    >>> ptml.from_config('''{"format": 1, "ptml": "0.1.0",
    ...     "module": {"class": "Linear", "n_in": 2, "n_uot": 3}}''')
    Traceback (most recent call last):
        ...
    ptml.config.errors.ConfigError: config: module.n_uot: Linear has no field 'n_uot'; did you mean 'n_out'?
    It has bias, bias_initializer, n_in, n_out, name, weight_initializer.
    """
    if not isinstance(config, str | bytes):
        config = _as_text(config, "config")
    return read_config(read_text(config, "config"), "config", revision, migrations)


def _as_text(config: Any, source: str) -> str:
    try:
        return json.dumps(config, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: it is no JSON: {error}.") from None


def read_text(text: str | bytes, source: str) -> Any:
    """Parse a config's text; the errors name its source."""
    try:
        return parse_json(text, what="the config", largest=LARGEST, deepest=DEEPEST)
    except JSONError as error:
        raise ConfigError(f"{source}: {error}.") from None


def read_config(
    config: Any,
    source: str,
    revision: int | None = None,
    migrations: Mapping[int, Callable[[Any], Any]] | None = None,
) -> Any:
    """Build what a parsed config describes; the errors name its source.

    Parameters
    ----------
    config : Any
        What :func:`read_text` gave.
    source : str
        The file, or whatever the config came from.
    revision, migrations
        As for :func:`from_config`.

    Raises
    ------
    ConfigError
        As :func:`from_config` does.
    """
    if migrations and revision is None:
        raise ValueError(NO_REVISION)
    try:
        config = _brought_up(config)
        module = config["module"]
        if revision is not None and revision != config.get("revision", 0):
            module = _migrated(module, config.get("revision", 0), revision, migrations or {})
            module = read_text(_as_text(module, source), source)
        made = _Reader().value(module, ("module",))
        if not _holds_modules(made):
            raise WrongError(("module",), NO_MODULES.format(given=short(module)))
    except WrongError as error:
        raise error.named(source) from error.__cause__
    except RecursionError:
        raise ConfigError(f"{source}: it is nested too deeply.") from None
    return made


def _holds_modules(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_holds_modules(item) for item in value)
    return isinstance(value, Module)


def _brought_up(config: Any) -> dict[str, Any]:
    """Give a config in today's format, with what stands around the module checked."""
    if not isinstance(config, dict) or "format" not in config:
        raise WrongError((), NOT_A_CONFIG.format(fields=", ".join(_REQUIRED), given=_kind(config)))
    written, version = config["format"], config.get("ptml")
    if type(written) is not int:
        raise WrongError(("format",), f"a format is a whole number; got {short(written)}")
    if written > FORMAT:
        raise WrongError(
            ("format",), LATER.format(format=short(written), version=short(version), known=FORMAT)
        )
    for number in range(written, FORMAT):
        if number not in UPGRADES:
            raise WrongError(("format",), NEVER_WAS.format(format=short(written)))
        config = _upgraded(UPGRADES[number], config, f"bringing it up from format {number}")
    _refuse_unknown(config, (*_REQUIRED, *_OPTIONAL), (), "a config")
    lacking = [name for name in _REQUIRED if name not in config]
    if lacking:
        raise WrongError((), f"a config has {', '.join(_REQUIRED)}; this one lacks {', '.join(lacking)}")
    if not isinstance(version, str):
        raise WrongError(("ptml",), f"a version is a text; got {short(version)}")
    revision = config.get("revision", 0)
    if type(revision) is not int or revision < 0:
        raise WrongError(("revision",), f"a revision is a whole number of 0 or more; got {short(revision)}")
    return config


def _migrated(
    module: Any, written: int, revision: int, migrations: Mapping[int, Callable[[Any], Any]]
) -> Any:
    if written > revision:
        raise WrongError(("revision",), LATER_REVISION.format(written=short(written), revision=revision))
    for number in range(written, revision):
        if number not in migrations:
            text = NO_MIGRATION.format(written=written, number=number, next=number + 1)
            raise WrongError(("revision",), text)
        module = _upgraded(migrations[number], module, f"the migration from revision {number}")
    return module


def _upgraded(upgrade: Callable[[Any], Any], value: Any, what: str) -> Any:
    try:
        return upgrade(value)
    except Exception as error:
        # Whoever wrote it did not think of this file.
        raise WrongError((), f"{what} fails: {type(error).__name__}: {cut(str(error))}") from error


def _paths(name: str, built: Any) -> list[str]:
    return [f"{name}/{index}" for index in range(len(built))] if isinstance(built, tuple) else [name]


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        fields = ", ".join(short(name) for name in list(value)[:6])
        return f"an object with {fields}" if value else "an empty object"
    return short(value)


def _refuse_unknown(given: Mapping[str, Any], known: Any, at: tuple[str | int, ...], owner: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name[:80], known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            fields = ", ".join(sorted(known)) or "none"
            text = UNKNOWN_FIELD.format(owner=owner, name=short(name), hint=hint, fields=fields)
            raise WrongError((*at, name), text.replace("?.", "?") + ".")


class _Reader:
    """Builds one config's modules, from the innermost out, each object that has an id once."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.known: dict[int, tuple[Module, int]] = {}
        self.places = 0

    def value(self, value: Any, at: tuple[str | int, ...]) -> Any:
        if isinstance(value, list):
            return tuple(self.value(item, (*at, index)) for index, item in enumerate(value))
        if not isinstance(value, dict):
            return value
        if "class" in value:
            return self.module(value, at)
        for kind, read in self.KINDS.items():
            if kind in value:
                others = [name for name in value if name not in (kind, "@of")]
                if others or ("@of" in value) != (kind == "@part"):
                    beside = ", ".join(short(name) for name in others) or "no matching '@of'"
                    raise WrongError(at, NOT_ALONE.format(kind=kind, others=beside))
                return read(self, value, at)
        raise WrongError(at, NO_CLASS.format(fields=", ".join(map(short, list(value)[:6])) or "none"))

    def module(self, value: dict[str, Any], at: tuple[str | int, ...]) -> Module:
        cls = self.called(value["class"], (*at, "class"))
        fields = {field.alias: field for field in attrs.fields(cls) if field.init}
        given = {name: item for name, item in value.items() if name not in ("class", "@id")}
        _refuse_unknown(given, fields, at, value["class"])
        lacking = [name for name, f in fields.items() if name not in given and f.default is attrs.NOTHING]
        if lacking:
            have = "has" if len(lacking) == 1 else "have"
            text = MISSING_FIELD.format(owner=value["class"], missing=" and ".join(lacking), have=have)
            raise WrongError(at, text)
        before = self.places
        arguments = {name: self.value(item, (*at, name)) for name, item in given.items()}
        made = _built(cls, arguments, at)
        self.count(1, at)
        if "@id" in value:
            self.remember(value["@id"], made, self.places - before, at)
        return made

    def called(self, name: Any, at: tuple[str | int, ...]) -> type[Module]:
        if not isinstance(name, str):
            raise WrongError(at, f"a class is named by a text; got {short(name)}")
        try:
            return self.registry.called(name)
        except LookupError as error:
            raise WrongError(at, str(error.args[0])) from None

    def count(self, places: int, at: tuple[str | int, ...]) -> None:
        # An object of two refers to another of two, and so on: thirty lines would be a billion modules.
        self.places += places
        if self.places > MOST_PLACES:
            raise WrongError(at, TOO_MANY)

    def remember(self, number: Any, made: Module, places: int, at: tuple[str | int, ...]) -> None:
        if type(number) is not int:
            raise WrongError((*at, "@id"), BAD_ID.format(given=short(number)))
        if number in self.known:
            raise WrongError((*at, "@id"), TWICE_AN_ID.format(given=short(number)))
        self.known[number] = (made, places)

    def reference(self, value: dict[str, Any], at: tuple[str | int, ...]) -> Module:
        number = value["@ref"]
        if type(number) is not int or number not in self.known:
            raise WrongError(at, BAD_REFERENCE.format(given=short(number)))
        made, places = self.known[number]
        self.count(places, at)
        return made

    def part(self, value: dict[str, Any], at: tuple[str | int, ...]) -> Any:
        owner, name = self.value(value["@of"], (*at, "@of")), value["@part"]
        # Only what the class itself declares to be a layer that it builds.
        built = [
            path
            for known in dir(type(owner))
            if isinstance(getattr(type(owner), known, None), sublayer)
            for path in _paths(known, getattr(owner, known))
        ]
        if not isinstance(owner, Module) or name not in built:
            near = difflib.get_close_matches(name, built, n=1) if isinstance(name, str) else []
            hint = f"; did you mean {near[0]!r}?" if near else ""
            text = BAD_PART.format(owner=type(owner).__name__, given=short(name), hint=hint)
            raise WrongError((*at, "@part"), text)
        return built_part(owner, name)

    def number(self, value: dict[str, Any], at: tuple[str | int, ...]) -> float:
        name = value["@float"]
        if not isinstance(name, str) or name not in _FLOATS:
            raise WrongError(at, BAD_FLOAT.format(known=", ".join(_FLOATS), given=short(name)))
        return _FLOATS[name]

    def role(self, value: dict[str, Any], at: tuple[str | int, ...]) -> Role:
        names = [role.value for role in Role]
        if value["@role"] not in names:
            raise WrongError(at, BAD_ROLE.format(known=", ".join(names), given=short(value["@role"])))
        return Role(value["@role"])

    def kind(self, value: dict[str, Any], at: tuple[str | int, ...]) -> type[Module]:
        return self.called(value["@class"], at)

    def selector(self, value: dict[str, Any], at: tuple[str | int, ...]) -> Any:
        ((kind, item),) = value.items()
        parts = self.value(item, (*at, kind))
        several = kind in ("@all", "@any")
        if several and (not isinstance(parts, tuple) or not parts):
            raise WrongError(at, f"{kind} is a list of selectors; got {short(item)}")
        # A function selects too, and so would a module that can be called.
        chosen = parts if several else (parts,)
        if not all(isinstance(part, str | Role | type | Where) for part in chosen):
            raise WrongError((*at, kind), "a selector is a pattern, a @role, a @class, or made of selectors")
        try:
            made = [where(part) for part in chosen]
        except ValueError as error:
            raise WrongError((*at, kind), str(error)) from error
        if kind == "@not":
            return ~made[0]
        return functools.reduce(operator.or_ if kind == "@any" else operator.and_, made)

    KINDS: Mapping[str, Callable[[_Reader, dict[str, Any], tuple[str | int, ...]], Any]] = {
        "@ref": reference,
        "@part": part,
        "@float": number,
        "@role": role,
        "@class": kind,
        "@where": selector,
        "@all": selector,
        "@any": selector,
        "@not": selector,
    }


def _built(cls: type[Module], arguments: dict[str, Any], at: tuple[str | int, ...]) -> Module:
    try:
        return cls(**arguments)
    except Exception as error:
        # A validator names the field that it refuses: then that is the place.
        text = cut(str(error))
        blamed = [name for name in arguments if re.search(rf"\b{re.escape(name)}\b", text)]
        wrong = (*at, blamed[0]) if len(blamed) == 1 else at
        raise WrongError(wrong, text if cls.__name__ in text else f"{cls.__name__}: {text}") from error
