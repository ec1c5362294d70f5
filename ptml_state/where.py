"""The selector language: one ``where`` for masks, freezing, groups, partial loading and inspection."""

from __future__ import annotations

import abc
import difflib
import fnmatch
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from ptml_state.slot import Role, Slot, SlotVariable
from ptml_state.typetext import type_text

__all__ = ["AddressError", "Where", "find", "nearest", "split_address", "where"]

ACCEPTED = """\
A selector is one of
    "fc1/W", "fc1", "block*/attn"   an address, or a pattern of addresses
    Role.PARAMETER                  a role
    fc1.W                           a slot
    Linear                          a layer type
    lambda leaf: leaf.size > 100    a function of a leaf
    where(...)                      any of these, joined by &, | and ~
got {got}."""


class AddressError(KeyError):
    """No leaf has this address. A KeyError whose message prints as it was written."""

    def __str__(self) -> str:
        return str(self.args[0])


@attrs.frozen
class Where(abc.ABC):
    """What to select. Made by :func:`where`, joined by ``&``, ``|`` and ``~``.

    Examples
    --------
    >>> from ptml_state import Role, where
    >>> where("block*") & Role.PARAMETER & ~where("**/b")
    where('block*') & Role.PARAMETER & ~where('**/b')
    """

    @abc.abstractmethod
    def matches(self, item: Any) -> bool:
        """Say whether `item` is selected.

        Parameters
        ----------
        item : Leaf, or anything alike
            What has an ``address``, a ``role``, an ``owner`` (its class name), and a ``uid``. One that has
            a ``kind`` (a class) is matched against layer types by that.
        """

    def _names(self) -> Iterator[Where]:
        """Give the parts that name addresses, and so ought to match something."""
        yield from ()

    def __and__(self, other: Any) -> Where:
        return _All(_parts(_All, self, other))

    def __rand__(self, other: Any) -> Where:
        return _All(_parts(_All, other, self))

    def __or__(self, other: Any) -> Where:
        return _AnyOf(_parts(_AnyOf, self, other))

    def __ror__(self, other: Any) -> Where:
        return _AnyOf(_parts(_AnyOf, other, self))

    def __invert__(self) -> Where:
        return self.part if isinstance(self, _Not) else _Not(self)

    def __bool__(self) -> bool:
        raise TypeError("A selector is neither true nor false: join selectors by &, | and ~.")


def _parts(family: Any, *selectors: Any) -> tuple[Where, ...]:
    parts = [where(selector) for selector in selectors]
    return tuple(leaf for part in parts for leaf in (part.parts if isinstance(part, family) else (part,)))


def split_address(pattern: str) -> tuple[str, ...]:
    """Take an address, or a pattern of addresses, apart at its slashes."""
    components = tuple(pattern.split("/"))
    if not all(components):
        raise ValueError(
            f"{pattern!r} is no pattern of addresses: components are joined by single '/', as in 'fc1/W'. "
            "A name alone ('fc1') stands for everything below it."
        )
    return components


@functools.lru_cache(maxsize=4096)
def _follows(pattern: tuple[str, ...], address: tuple[str, ...]) -> bool:
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_follows(pattern[1:], address[start:]) for start in range(len(address) + 1))
    return (
        bool(address) and fnmatch.fnmatchcase(address[0], pattern[0]) and _follows(pattern[1:], address[1:])
    )


@attrs.frozen(repr=False)
class _Glob(Where):
    pattern: str
    components: tuple[str, ...] = attrs.field(
        init=False, eq=False, default=attrs.Factory(lambda self: split_address(self.pattern), takes_self=True)
    )

    def matches(self, item: Any) -> bool:
        address = item.address
        # A name is found as it stands first, whatever characters it has.
        if address == self.pattern or address.startswith(self.pattern + "/"):
            return True
        return _follows(self.components, tuple(address.split("/")))

    def _names(self) -> Iterator[Where]:
        yield self

    def __repr__(self) -> str:
        return f"where({self.pattern!r})"


@attrs.frozen(repr=False)
class _Role(Where):
    role: Role

    def matches(self, item: Any) -> bool:
        return getattr(item, "role", None) is self.role

    def __repr__(self) -> str:
        return f"where({self.role!r})"


@attrs.frozen(repr=False)
class _Slot(Where):
    slot: Slot

    def matches(self, item: Any) -> bool:
        # A rebuilt network's slots are new ones: there the address tells.
        return getattr(item, "uid", None) == self.slot.uid or item.address == self.slot.address

    def _names(self) -> Iterator[Where]:
        yield self

    def __repr__(self) -> str:
        slot = self.slot
        spelling = f"{getattr(slot.owner, 'name', '')}.{slot.attribute}"
        plain = all(part.isidentifier() for part in spelling.split("."))
        return f"where({spelling if plain else repr(slot)})"


@attrs.frozen(repr=False)
class _Type(Where):
    kind: type

    def matches(self, item: Any) -> bool:
        kind = getattr(item, "kind", None)
        if kind is not None:
            return issubclass(kind, self.kind)
        owner = getattr(item, "owner", None)
        # States know their owners by name: an archive brings no classes with it.
        return owner in _class_names(self.kind) if isinstance(owner, str) else isinstance(owner, self.kind)

    def __repr__(self) -> str:
        return f"where({self.kind.__name__})"


def _class_names(kind: type) -> set[str]:
    # type.__subclasses__(kind), as a metaclass has an unbound method of that name.
    names = {kind.__name__}
    subclasses: list[type] = type.__subclasses__(kind)
    for below in subclasses:
        names |= _class_names(below)
    return names


@attrs.frozen(repr=False)
class _Satisfies(Where):
    predicate: Callable[[Any], Any]

    def matches(self, item: Any) -> bool:
        answer = self.predicate(item)
        try:
            return bool(answer)
        except Exception as error:
            raise TypeError(
                f"A selecting function answers True or False for each leaf; {self!r} gave "
                f"{type_text(answer)} for {item.address!r}. Write .any() or .all() in it."
            ) from error

    def __repr__(self) -> str:
        return f"where({getattr(self.predicate, '__name__', None) or repr(self.predicate)})"


def _in_a_row(parts: Sequence[Where], sign: str) -> str:
    # A role joins by itself, but two roles alone would read as Python's own operators on them: they are ours.
    return sign.join(
        repr(part.role)
        if isinstance(part, _Role)
        else f"({part!r})"
        if isinstance(part, _AnyOf)
        else repr(part)
        for part in parts
    )


@attrs.frozen(repr=False)
class _All(Where):
    parts: tuple[Where, ...]

    def matches(self, item: Any) -> bool:
        return all(part.matches(item) for part in self.parts)

    def _names(self) -> Iterator[Where]:
        for part in self.parts:
            yield from part._names()

    def __repr__(self) -> str:
        return _in_a_row(self.parts, " & ")


@attrs.frozen(repr=False)
class _AnyOf(Where):
    parts: tuple[Where, ...]

    def matches(self, item: Any) -> bool:
        return any(part.matches(item) for part in self.parts)

    def _names(self) -> Iterator[Where]:
        for part in self.parts:
            yield from part._names()

    def __repr__(self) -> str:
        return _in_a_row(self.parts, " | ")


@attrs.frozen(repr=False)
class _Not(Where):
    part: Where

    def matches(self, item: Any) -> bool:
        return not self.part.matches(item)

    def _names(self) -> Iterator[Where]:
        return self.part._names()

    def __repr__(self) -> str:
        if isinstance(self.part, _Role):
            return f"~{self.part.role!r}"
        return f"~({self.part!r})" if isinstance(self.part, _All | _AnyOf) else f"~{self.part!r}"


def where(selector: Any) -> Where:
    """Make a selector of leaves.

    Parameters
    ----------
    selector : str, Role, Slot, SlotVariable, type, callable or Where
        What to select:

        - an address, or a pattern of addresses. ``*``, ``?`` and ``[abc]`` match inside one component,
          ``**`` any number of components; a pattern also matches everything below what it names, so
          ``"fc1"`` stands for ``fc1/W`` and ``fc1/b``;
        - a role, or a slot (its handle ``fc1.W`` does);
        - a layer type (or ``Linear | Conv2D``): what such layers, and those of types below it, declare;
        - a function of a :class:`Leaf`, for anything else;
        - selectors joined by ``&``, ``|`` and ``~``.

    Returns
    -------
    Where

    Raises
    ------
    TypeError
        When `selector` is none of these.

    Examples
    --------
    >>> from ptml_state import Role, State, where
    >>> state = State({"fc1": {"W": [[1.0, 2.0]], "b": [0.0]}, "fc2": {"W": [[3.0]]}})
    >>> list(state.select("fc*/W"))
    ['fc1/W', 'fc2/W']
    >>> list(state.select(Role.PARAMETER & ~where("fc2")))
    ['fc1/W', 'fc1/b']
    >>> list(state.select(lambda leaf: leaf.size > 1))
    ['fc1/W']
    """
    if isinstance(selector, Where):
        return selector
    if isinstance(selector, str):
        return _Glob(selector)
    if isinstance(selector, Role):
        return _Role(selector)
    if isinstance(selector, SlotVariable):
        return _Slot(selector.slot)
    if isinstance(selector, Slot):
        return _Slot(selector)
    if isinstance(selector, type):
        return _Type(selector)
    if isinstance(selector, types.UnionType):
        return _AnyOf(tuple(where(kind) for kind in selector.__args__))
    # A layer is callable too; called with a leaf it would fail far from the mistake.
    if attrs.has(type(selector)) and isinstance(getattr(selector, "name", None), str):
        name = selector.name
        raise TypeError(
            f"{type(selector).__name__} objects select nothing by themselves. "
            f'Write its name, "{name}", its type, {type(selector).__name__}, or one of its slots.'
        )
    if callable(selector):
        return _Satisfies(selector)
    raise TypeError(ACCEPTED.format(got=f"{selector!r} ({type(selector).__name__})"))


def nearest(address: str, addresses: Iterable[str]) -> str:
    """Say which addresses are most like one that isn't there.

    Examples
    --------
    >>> nearest("fc1/w", ["block0/fc1/W", "block0/fc1/b"])
    "Did you mean 'block0/fc1/W'?"
    >>> nearest("decoder", ["fc1/W", "fc1/b"])
    'There are: fc1/W, fc1/b.'
    """
    known: dict[str, float] = {}
    for full in addresses:
        parts = full.split("/")
        for end in range(len(parts), 0, -1):
            known.setdefault("/".join(parts[:end]), _likeness(address, parts[:end]))
    if not known:
        return "There are no leaves at all."
    enough = max(0.5, max(known.values()) - 0.05)
    close = [name for name, likeness in known.items() if likeness >= enough]
    if close:
        return f"Did you mean {' or '.join(map(repr, close[:3]))}?"
    top = known if len(known) <= 8 else dict.fromkeys(name.split("/")[0] for name in known)
    leaves = [name for name in top if not any(other.startswith(name + "/") for other in top)]
    return f"There are: {', '.join(leaves[:12])}{', …' if len(leaves) > 12 else ''}."


def _likeness(address: str, parts: Sequence[str]) -> float:
    """Measure how alike an address and a path are, or nearly alike it and an end of the path."""

    def ratio(start: int) -> float:
        # Case counts for nothing: fc1/w is as good as fc1/W.
        return difflib.SequenceMatcher(None, address.lower(), "/".join(parts[start:]).lower()).ratio()

    ends = [0.9 * alike for alike in map(ratio, range(1, len(parts))) if alike > 0.8]
    return max([ratio(0), *ends])


def find[Item](selector: Any, leaves: Iterable[Item], *, what: str = "the state") -> list[Item]:
    """Give the leaves that a selector matches, in their order.

    Each address, pattern and slot inside the selector has to match something by itself, so that a
    misspelt one is never silent. Roles, types and functions may match nothing.

    Parameters
    ----------
    selector : anything that :func:`where` takes
        What to select.
    leaves : iterable of Leaf, or of anything alike
        What to select from.
    what : str, default "the state"
        What the leaves are of, for the error's text.

    Raises
    ------
    KeyError
        When a part of the selector that names addresses matches nothing; with the nearest addresses.

    Examples
    --------
    >>> from ptml_state import Leaf
    >>> leaves = [Leaf("fc1/W", 1.0), Leaf("fc1/b", 0.0)]
    >>> find("*/b", leaves)
    [Leaf('fc1/b', Role.PARAMETER, 0.0)]
    """
    leaves = list(leaves)
    selector = where(selector)
    for part in selector._names():
        if not any(part.matches(leaf) for leaf in leaves):
            raise AddressError(_nothing(part, leaves, what))
    return [leaf for leaf in leaves if selector.matches(leaf)]


def _nothing(part: Where, leaves: Sequence[Any], what: str) -> str:
    named = part.pattern if isinstance(part, _Glob) else part.slot.address if isinstance(part, _Slot) else ""
    hint = nearest(named, [leaf.address for leaf in leaves])
    return f"{named!r} matches nothing in {what}. {hint}"
