"""Modules: frozen values whose fields are hyperparameters and other modules."""

from __future__ import annotations

import difflib
import inspect
from types import MemberDescriptorType
from typing import Any, ClassVar, dataclass_transform

import attrs
import numpy as np

__all__ = ["Module", "ModuleChangedError", "built_part"]

LONGEST_LINE = 88

NO_SUCH_ARGUMENT = "{cls} has no argument {name!r}.{hint} Its arguments are {arguments}."
#: How PyTorch and Keras call what has another name here, where that is not near enough to be guessed.
ELSEWHERE = {
    "lr": "learning_rate",
    "eps": "epsilon",
    "in_features": "n_in",
    "out_features": "n_out",
    "units": "n_out",
    "num_features": "n_in",
    "rate": "p",
    "padding_idx": "padding",
}
CHANGED = "A {cls} never changes. Make another one: new = copy.replace(old, {name}=...)."
DECORATED = (
    "{cls} takes {names} by position. A subclass of {base} takes its fields by keyword: leave the decorator "
    "out (a subclass is frozen as it stands), or write @attrs.frozen(kw_only=True)."
)


class ModuleChangedError(attrs.exceptions.FrozenInstanceError):
    """Somebody set or deleted a field of a module."""

    def __init__(self, module: Any, name: str) -> None:
        AttributeError.__init__(self)
        self.text = CHANGED.format(cls=type(module).__name__, name=name)

    def __str__(self) -> str:
        return self.text


def _refuse_change(module: Any, name: str, value: Any = None) -> None:
    raise ModuleChangedError(module, name)


def _frozen(value: Any) -> Any:
    """Give the hashable form of a field's value: tuples for lists and arrays, Python numbers for NumPy's."""
    if isinstance(value, np.ndarray):
        return _frozen(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list) or type(value) is tuple:
        return tuple(_frozen(item) for item in value)
    return value


def _freeze_fields(cls: type, fields: list[attrs.Attribute]) -> list[attrs.Attribute]:
    def frozen(field: attrs.Attribute) -> attrs.Attribute:
        if not field.init or field.inherited:  # type: ignore[attr-defined]
            return field
        converter: Any = (
            _frozen if field.converter is None else attrs.converters.pipe(field.converter, _frozen)
        )
        return field.evolve(converter=converter)

    return [frozen(field) for field in fields]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(attrs.field,))
@attrs.frozen(slots=False, repr=False)
class Module:
    """The base of layers, activations, losses, initializers, schedules and transforms.

    A subclass is a frozen `attrs` class as it stands, without a decorator. Its fields are taken by
    keyword (``class Adam(Module, kw_only=False)`` takes them by position too), and lists and arrays
    in them become tuples. Equality, hash, pickling, ``copy.replace`` and ``repr``, which is the
    constructor call that would rebuild the value, follow from the fields.

    Examples
    --------
    >>> from ptml.module import Module
    >>> class Scale(Module):
    ...     factors: tuple[float, ...]
    ...     centre: bool = False
    >>> Scale(factors=[1.0, 2.0])
    Scale(factors=(1.0, 2.0))
    >>> Scale(factors=[1.0, 2.0]) == Scale(factors=(1.0, 2.0), centre=False)
    True
    """

    #: The field, if any, whose items are the constructor's positional arguments (``Sequential(*layers)``).
    _varargs: ClassVar[str | None] = None
    #: The field, if any, of a module that is a pattern only: the module itself declares the state for it.
    _pattern: ClassVar[str | None] = None

    def __init_subclass__(cls, kw_only: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__attrs_attrs__" in vars(cls):  # made again by a decorator of the user's
            cls._refuse_positional_fields(kw_only)
            # attrs keeps the constructor that it finds, which knows nothing of the slots that it adds.
            for name, member in list(vars(cls).items()):
                if isinstance(member, MemberDescriptorType) or name in ("__getstate__", "__setstate__"):
                    delattr(cls, name)
            return
        defaults = {name: vars(cls)[name] for name in inspect.get_annotations(cls) if name in vars(cls)}
        attrs.frozen(cls, kw_only=kw_only, slots=False, repr=False, field_transformer=_freeze_fields)
        # A decorator that comes after takes the first two for the user's own and refuses them, though Module
        # has the same, and replaces a repr that the class does not have itself.
        for name in ("__setattr__", "__delattr__"):
            if name in vars(cls):
                delattr(cls, name)
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]
        # attrs takes the defaults out of the class; a decorator that comes after needs to find them again.
        for name, default in defaults.items():
            if not hasattr(cls, name):
                setattr(cls, name, default)
        # attrs says no more than that the field cannot be set; what Module says is inherited.
        for name in ("__setattr__", "__delattr__"):
            if name in vars(cls):
                delattr(cls, name)

    @classmethod
    def _refuse_positional_fields(cls, kw_only: bool) -> None:
        inherited = {f.name for base in cls.__mro__[1:] for f in getattr(base, "__attrs_attrs__", ())}
        loose = [f.name for f in attrs.fields(cls) if f.init and not f.kw_only and f.name not in inherited]
        if kw_only and loose:
            raise TypeError(
                DECORATED.format(cls=cls.__name__, names=", ".join(loose), base=cls.__mro__[1].__name__)
            )

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        known = {f.alias for f in attrs.fields(cls) if f.init}
        for name in kwargs:
            if name not in known:
                meant = ELSEWHERE.get(name)
                near = [meant] if meant in known else difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise TypeError(
                    NO_SUCH_ARGUMENT.format(
                        cls=cls.__name__,
                        name=name,
                        hint=hint,
                        arguments=", ".join(sorted(known)) or "none",
                    )
                )
        return super().__new__(cls)

    # What another module builds is that one's attribute, also in a copy.
    def __reduce_ex__(self, protocol: Any) -> Any:
        parent = vars(self).get("_parent")
        return (
            super().__reduce_ex__(protocol)
            if parent is None
            else (built_part, (parent, vars(self)["_attribute"]))
        )

    # What hangs on a module besides its fields (its slots) is its own: copies and pickles leave it behind.
    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in attrs.fields(type(self))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _shown_fields(self) -> tuple[list[Any], dict[str, Any]]:
        """Give the positional and keyword arguments that ``repr`` writes: those that are not the default."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for field in attrs.fields(type(self)):
            if not field.init:
                continue
            value = getattr(self, field.name)
            if field.name == self._varargs:
                positional.extend(value)
            elif not _is_default(field, self, value):
                if (
                    field.kw_only
                    or self._varargs is not None
                    or len(positional) < _position(type(self), field)
                ):
                    keywords[field.alias] = value
                else:
                    positional.append(value)
        return positional, keywords

    def __repr__(self) -> str:
        positional, keywords = self._shown_fields()
        arguments = [_shown(value) for value in positional]
        arguments += [f"{name}={_shown(value)}" for name, value in keywords.items()]
        line = f"{type(self).__name__}({', '.join(arguments)})"
        if self._varargs is None or (len(line) <= LONGEST_LINE and "\n" not in line):
            return line
        body = "".join(f"    {argument},\n".replace("\n", "\n    ").rstrip(" ") for argument in arguments)
        return f"{type(self).__name__}(\n{body})"


def built_part(owner: Any, path: str) -> Any:
    """Give what a module builds as its attribute: ``"query"``, or the item ``"layers/0"`` of a tuple."""
    name, _, index = path.partition("/")
    return getattr(owner, name)[int(index)] if index else getattr(owner, name)


def _is_default(field: attrs.Attribute, module: Module, value: Any) -> bool:
    default = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        makes: Any = default
        default = makes.factory(module) if makes.takes_self else makes.factory()
        return type(default) is type(value) and default == value
    return default is value or (type(default) is type(value) and bool(default == value))


def _position(cls: type, field: attrs.Attribute) -> int:
    before = [f for f in attrs.fields(cls) if f.init and not f.kw_only]
    return before.index(field)


def _shown(value: Any) -> str:
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return value.__qualname__
    if type(value) is tuple:
        items = ", ".join(_shown(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    return repr(value)


Module.__setattr__ = Module.__delattr__ = _refuse_change  # type: ignore[method-assign]
