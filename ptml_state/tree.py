"""Trees of frozen values: take one apart, change its leaves, put it together again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from ptml_state.leaf import Leaf, Numbered
from ptml_state.slot import Role, Slot

__all__ = [
    "TreeStructure",
    "register_jax",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_map",
    "tree_unflatten",
]

IsLeaf = Callable[[Any], bool]
Path = tuple[Any, ...]


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, str], ...] | None:
    """Give (name, constructor argument) of a frozen attrs class's fields; None for other classes."""
    # A slot is compared by identity and leads back to its owner: a leaf.
    if kind is Slot or not attrs.has(kind) or not attrs.inspect(kind).is_frozen:
        return None
    return tuple((field.name, field.alias) for field in attrs.fields(kind) if field.init)


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _entries(node: Any) -> list[tuple[Any, Any]] | None:
    """Give (key, child) of a node, in order; None for a leaf."""
    kind: Any = type(node)
    if kind is tuple or kind is list:
        return list(enumerate(node))
    if kind is dict:
        return list(node.items())
    if _is_namedtuple(kind):
        return list(zip(node._fields, node, strict=True))
    fields = _fields(kind)
    return None if fields is None else [(name, getattr(node, name)) for name, _ in fields]


def _rebuilt(node: Any, children: Sequence[Any]) -> Any:
    kind: Any = type(node)
    if kind is tuple or kind is list:
        return kind(children)
    if kind is dict:
        return dict(zip(node, children, strict=True))
    if _is_namedtuple(kind):
        return kind(*children)
    arguments = {alias: child for (_, alias), child in zip(_fields(kind) or (), children, strict=True)}
    # A class with a constructor of its own (positional arguments, *layers) has attrs' under this name.
    if "__attrs_init__" in vars(kind):
        made = kind.__new__(kind)
        made.__attrs_init__(**arguments)
        return made
    return attrs.evolve(node, **arguments)


def _unchanged(old: Any, new: Any) -> bool:
    if old is new:
        return True
    # By repr, as 0.0 equals -0.0 and True equals 1.
    return (
        type(old) is type(new) and type(old) in (str, bytes, int, float, complex) and repr(old) == repr(new)
    )


@attrs.frozen(repr=False)
class TreeStructure:
    """What :func:`tree_flatten` leaves of a tree beside its leaves.

    Structures are equal when their nodes have the same types and keys; they print as the tree with ``*``
    for each leaf.

    Parameters
    ----------
    kind : type or None
        The node's type; None for a leaf.
    keys : tuple
        Field names, dict keys or indices.
    children : tuple of TreeStructure
        One for each key.
    original : object
        The node that was taken apart. It is given back where nothing below it changed.

    Examples
    --------
    >>> from ptml_state.tree import tree_flatten
    >>> leaves, structure = tree_flatten({"a": (1, 2), "b": [3]})
    >>> structure
    {'a': (*, *), 'b': [*]}
    >>> structure.paths
    (('a', 0), ('a', 1), ('b', 0))
    """

    kind: type | None
    keys: tuple[Any, ...]
    children: tuple[TreeStructure, ...]
    original: Any = attrs.field(eq=False)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path to each leaf: field names, keys and indices."""
        return tuple(self._paths(()))

    def _paths(self, above: Path) -> Iterator[Path]:
        if self.kind is None:
            yield above
        for key, child in zip(self.keys, self.children, strict=True):
            yield from child._paths((*above, key))

    def __len__(self) -> int:
        """How many leaves there are."""
        return 1 if self.kind is None else sum(map(len, self.children))

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        children = [repr(child) for child in self.children]
        if self.kind is tuple:
            return f"({children[0]},)" if len(children) == 1 else f"({', '.join(children)})"
        if self.kind is list:
            return f"[{', '.join(children)}]"
        pairs = list(zip(self.keys, children, strict=True))
        if self.kind is dict:
            return "{" + ", ".join(f"{key!r}: {child}" for key, child in pairs) + "}"
        return f"{self.kind.__name__}({', '.join(f'{key}={child}' for key, child in pairs)})"


def tree_flatten(tree: Any, *, is_leaf: IsLeaf | None = None) -> tuple[list[Any], TreeStructure]:
    """Take a tree apart into its leaves and the rest.

    Nodes are frozen attrs instances (by the fields that their constructors take), tuples, named tuples,
    lists and dicts. Anything else is a leaf, a State and an array too.

    Parameters
    ----------
    tree : object
        The tree.
    is_leaf : callable, optional
        ``is_leaf(node) -> bool`` says of further nodes that they are leaves.

    Returns
    -------
    leaves : list
    structure : TreeStructure

    Examples
    --------
    >>> import attrs
    >>> from ptml_state.tree import tree_flatten
    >>> @attrs.frozen
    ... class Line:
    ...     slope: float
    ...     offset: float = 0.0
    >>> tree_flatten((Line(2.0), Line(3.0)))
    ([2.0, 0.0, 3.0, 0.0], (Line(slope=*, offset=*), Line(slope=*, offset=*)))
    """
    leaves: list[Any] = []

    def take_apart(node: Any) -> TreeStructure:
        entries = None if is_leaf is not None and is_leaf(node) else _entries(node)
        if entries is None:
            leaves.append(node)
            return TreeStructure(None, (), (), node)
        children = tuple(take_apart(child) for _, child in entries)
        return TreeStructure(type(node), tuple(key for key, _ in entries), children, node)

    structure = take_apart(tree)
    return leaves, structure


def tree_flatten_with_path(
    tree: Any, *, is_leaf: IsLeaf | None = None
) -> tuple[list[tuple[Path, Any]], TreeStructure]:
    """Take a tree apart into (path, leaf) pairs and the rest.

    Examples
    --------
    >>> from ptml_state.tree import tree_flatten_with_path
    >>> tree_flatten_with_path({"a": (1, 2)})[0]
    [(('a', 0), 1), (('a', 1), 2)]
    """
    leaves, structure = tree_flatten(tree, is_leaf=is_leaf)
    return list(zip(structure.paths, leaves, strict=True)), structure


def tree_unflatten(structure: TreeStructure, leaves: Iterable[Any]) -> Any:
    """Put a tree together from its leaves: the inverse of :func:`tree_flatten`.

    A node below which no leaf changed is the very object that it was, and an object that stood at two
    places, given the same leaves at both, is one object again: tied layers stay tied.

    Parameters
    ----------
    structure : TreeStructure
        From :func:`tree_flatten`.
    leaves : iterable
        As many leaves as the structure has.

    Raises
    ------
    ValueError
        When there are more leaves, or fewer.

    Examples
    --------
    >>> from ptml_state.tree import tree_flatten, tree_unflatten
    >>> leaves, structure = tree_flatten({"a": (1, 2)})
    >>> tree_unflatten(structure, [10, 20])
    {'a': (10, 20)}
    """
    leaves = list(leaves)
    if len(leaves) != len(structure):
        raise ValueError(f"The tree {structure} has {len(structure)} leaves; got {len(leaves)}.")
    remaining = iter(leaves)
    made: dict[int, list[tuple[list[Any], Any]]] = {}

    def put_together(part: TreeStructure) -> Any:
        if part.kind is None:
            new = next(remaining)
            return part.original if _unchanged(part.original, new) else new
        children = [put_together(child) for child in part.children]
        return _same_or_rebuilt(part.original, children, made)

    return put_together(structure)


def _same_or_rebuilt(node: Any, children: list[Any], made: dict[int, list[tuple[list[Any], Any]]]) -> Any:
    """Give a node with these children: itself, the one made of it before with the same ones, or a new one."""
    if all(old is new for (_, old), new in zip(_entries(node) or (), children, strict=True)):
        return node
    before = made.setdefault(id(node), [])
    for known, result in before:
        if all(_unchanged(one, other) for one, other in zip(known, children, strict=True)):
            return result
    before.append((children, _rebuilt(node, children)))
    return before[-1][1]


def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Give a tree whose leaves are a function of those of one or several trees.

    A node below which no leaf changed is the very object that it was. A frozen object at several places
    is mapped once and stays one object: tied layers stay tied.

    Parameters
    ----------
    f : callable
        ``f(leaf, *leaves of rest at the same place) -> leaf``.
    tree : object
        The tree that gives the structure.
    *rest : object
        Trees that have that structure, at least as far as `tree` goes down.
    is_leaf : callable, optional
        ``is_leaf(node) -> bool`` says of further nodes of `tree` that they are leaves.

    Raises
    ------
    ValueError
        When one of `rest` has another structure; names the place.

    Examples
    --------
    >>> from ptml_state.tree import tree_map
    >>> tree_map(lambda a, b: a + b, {"a": (1, 2)}, {"a": (10, 20)})
    {'a': (11, 22)}
    """
    mapped: dict[tuple[int, ...], Any] = {}

    def go(node: Any, others: tuple[Any, ...], path: Path) -> Any:
        entries = None if is_leaf is not None and is_leaf(node) else _entries(node)
        kind: Any = type(node)
        shared = _fields(kind) is not None
        place = (id(node), *map(id, others))
        if shared and place in mapped:
            return mapped[place]
        if entries is None:
            result = f(node, *others)
            result = node if _unchanged(node, result) else result
        else:
            below = [_matching(node, entries, other, path) for other in others]
            children = [
                go(child, tuple(other[key] for other in below), (*path, key)) for key, child in entries
            ]
            same = all(old is new for (_, old), new in zip(entries, children, strict=True))
            result = node if same else _rebuilt(node, children)
        if shared:
            mapped[place] = result
        return result

    return go(tree, rest, ())


def _matching(node: Any, entries: list[tuple[Any, Any]], other: Any, path: Path) -> dict[Any, Any]:
    """Give the children of another tree's node by key, after checking that the two are alike."""
    below = dict(_entries(other) or ()) if type(other) is type(node) else None
    if below is None or below.keys() != {key for key, _ in entries}:
        at = f"At {'.'.join(map(str, path))}" if path else "At the root"
        keys = ", ".join(str(key) for key, _ in entries)
        got = f" with {', '.join(map(str, below))}" if below else ""
        raise ValueError(
            f"{at} the first tree has a {type(node).__name__} with {keys or 'nothing in it'}, "
            f"and another one a {type(other).__name__}{got}."
        )
    return below


@attrs.frozen
class _StateInfo:
    """What a state is beside its values, for JAX: what compiled functions are keyed by."""

    addresses: tuple[str, ...]
    roles: tuple[Role, ...]
    owners: tuple[str | None, ...]
    uses: tuple[int, ...]
    # A state read from a file has no slots, and is of the same kind as the one that was written.
    uids: tuple[str | None, ...] = attrs.field(eq=False, repr=False)
    layers: tuple[Numbered | None, ...] = attrs.field(eq=False, repr=False)


@functools.cache
def register_jax() -> None:
    """Make :class:`State` a JAX pytree; needs JAX installed. Calling it again does nothing.

    Making or looking at any state once JAX is imported does this by itself.
    """
    from jax import tree_util

    from ptml_state.state import State

    def info(state: State) -> _StateInfo:
        rows = [
            (leaf.address, leaf.role, leaf.owner, leaf.uses, leaf.uid, leaf.layer) for leaf in state.leaves
        ]
        return _StateInfo(*zip(*rows, strict=True)) if rows else _StateInfo((), (), (), (), (), ())

    def flatten(state: State) -> tuple[tuple[Any, ...], _StateInfo]:
        return tuple(leaf.value for leaf in state.leaves), info(state)

    def flatten_with_keys(state: State) -> tuple[tuple[tuple[Any, Any], ...], _StateInfo]:
        return tuple((tree_util.DictKey(leaf.address), leaf.value) for leaf in state.leaves), info(state)

    def unflatten(info: _StateInfo, values: Iterable[Any]) -> State:
        known = (info.roles, info.owners, info.uids, info.uses, info.layers)
        rows = zip(info.addresses, values, *known, strict=True)
        return State._made({row[0]: Leaf(*row) for row in rows})

    tree_util.register_pytree_with_keys(State, flatten_with_keys, unflatten, flatten)
