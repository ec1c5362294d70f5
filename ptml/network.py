"""Networks as trees: walk them, list their slots, place those at addresses, select and replace layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from ptml.declare import own_slots, own_sublayers
from ptml.layer import DefaultName, Layer
from ptml.module import Module
from ptml_state import Role, Slot, where
from ptml_state.leaf import Numbered
from ptml_state.tree import tree_flatten, tree_map
from ptml_state.where import AddressError, find

__all__ = ["Placed", "lay_out", "replace", "select", "walk"]

TWO_OWNERS = "Two pieces of state have the address {address!r}: one of {first}, one of {second}. {remedy}"
NAME_ONE = "Give one of the two another name."
NAMESPACE_ONE = "Give one of the two a namespace of its own, such as namespace='fast'."
BUILT_INSIDE = (
    "{addresses} cannot be replaced: another layer builds them, and has them in none of its fields. Replace "
    "the layer that does."
)
NESTED = "{outer!r} is the address of a piece of state and so cannot lead to {inner!r}. Rename one."


@attrs.frozen
class Placed:
    """A slot at its address in one collection."""

    slot: Slot
    address: str
    uses: int = 1
    #: The layer that the address numbers.
    layer: Numbered | None = None

    @property
    def role(self) -> Role:
        return self.slot.role

    @property
    def owner(self) -> str | None:
        return None if self.kind is None else self.kind.__name__

    @property
    def kind(self) -> type | None:
        return None if self.slot.declarer is None else type(self.slot.declarer)

    @property
    def uid(self) -> str:
        return self.slot.uid

    @property
    def value(self) -> Any:
        return self.slot.handle


def _children(module: Any) -> Iterator[Module]:
    """Give the modules in a module's fields, then those that it builds."""
    if isinstance(module, Module):
        for field in attrs.fields(type(module)):
            yield from _modules_in(getattr(module, field.name))
        yield from own_sublayers(module)
    else:
        yield from _modules_in(module)


def _modules_in(value: Any) -> Iterator[Module]:
    if isinstance(value, Module):
        yield value
    elif isinstance(value, tuple | list | dict):
        leaves, _ = tree_flatten(value, is_leaf=lambda node: isinstance(node, Module))
        yield from (leaf for leaf in leaves if isinstance(leaf, Module))


def _walk(module: Any, root: Layer | None, above: Layer | None) -> Iterator[tuple[Module, Layer | None]]:
    if isinstance(module, Layer):
        inside = above is not None and module.name.startswith(f"{above.name}/")
        root = root if inside else module
        above = module
    if isinstance(module, Module):
        yield module, root
    for child in _children(module):
        yield from _walk(child, root, above)


def walk(network: Any) -> Iterator[Module]:
    """Give every module of a network, depth first through its fields, each place where it stands.

    Parameters
    ----------
    network : module, or tuple, list or dict of modules

    Examples
    --------
    >>> from ptml.layers import Linear, Sequential
    >>> net = Sequential(Linear("a", n_in=2, n_out=3), Linear("b", n_in=3, n_out=1))
    >>> [module.name for module in walk(net) if isinstance(module, Linear)]
    ['a', 'b']
    """
    return (module for module, _ in _walk(network, None, None))


class _Naming:
    """The labels of the outermost layers of some networks, and how often each module stands there."""

    def __init__(self, networks: Sequence[Any]) -> None:
        self.root: dict[int, Layer] = {}
        self.uses: Counter[int] = Counter()
        self.modules: dict[int, Module] = {}
        for network in networks:
            for module, root in _walk(network, None, None):
                self.modules[id(module)] = module
                self.uses[id(module)] += 1
                if root is not None:
                    self.root.setdefault(id(module), root)
        #: What is a pattern, or in one: it has no state of its own.
        self.patterns = {
            id(part)
            for module in self.modules.values()
            if isinstance(module, Module) and module._pattern is not None
            for part in walk(getattr(module, module._pattern))
        }
        named: dict[str, dict[int, Layer]] = {}
        for key, module in self.modules.items():
            if key in self.root and key not in self.patterns and own_slots(module):
                root = self.root[key]
                named.setdefault(root.name, {})[id(root)] = root
        self.label: dict[int, str] = {}
        self.known: dict[int, Numbered] = {}
        for name, layers in named.items():
            unnamed = [layer for layer in layers.values() if isinstance(layer.name, DefaultName)]
            number = (
                {id(layer): f"{name}_{k}" for k, layer in enumerate(unnamed, 1)} if len(layers) > 1 else {}
            )
            self.label.update({key: number.get(key, name) for key in layers})

    def name(self, layer: Layer) -> str:
        """Give a layer's name, its outermost layer numbered."""
        root = self.root.get(id(layer), layer)
        return self.label.get(id(root), root.name) + layer.name.removeprefix(root.name)

    def numbered(self, layer: Any) -> Numbered | None:
        """Give what a layer's outermost layer is, where that one is numbered."""
        root = self.root.get(id(layer))
        label = None if root is None else self.label.get(id(root))
        if root is None or label is None or label == root.name:
            return None
        if id(root) not in self.known:
            self.known[id(root)] = Numbered(label, repr(root))
        return self.known[id(root)]


def outermost(module: Any) -> Any:
    """Give the module that builds a module, or builds what builds it; itself where none does."""
    while (parent := vars(module).get("_parent")) is not None:
        module = parent
    return module


def lay_out(networks: Sequence[Any], slots: Iterable[Slot] | None = None) -> list[Placed]:
    """Order slots and place each at its address.

    Parameters
    ----------
    networks : sequence of modules or of containers of modules
        What numbers unnamed layers and orders the slots.
    slots : iterable of Slot, optional
        The slots to place; all of the networks' unless given. Those of no network come after it, in
        the order in which they were made.

    Raises
    ------
    ValueError
        If two slots have one address, or one's address lies inside another's.
    """
    networks = list(networks)
    wanted = None if slots is None else dict.fromkeys(slots)
    naming = _Naming(networks)
    strays = [
        slot.owner
        for slot in sorted(wanted or (), key=lambda slot: slot.ordinal)
        if slot.attribute is not None and id(slot.owner) not in naming.modules
    ]
    if strays:
        naming = _Naming([*networks, *{id(top): top for top in map(outermost, strays)}.values()])

    placed: dict[Slot, Placed] = {}
    for key, module in naming.modules.items():
        for handle in () if key in naming.patterns else own_slots(module):
            slot = handle.slot
            address = f"{naming.name(module)}/{slot.name}" if isinstance(module, Layer) else slot.address
            placed[slot] = Placed(slot, address, naming.uses[key], naming.numbered(module))
    for slot in sorted(wanted or (), key=lambda slot: slot.ordinal):
        if slot not in placed:
            of = slot.of
            address = (
                slot.name
                if of is None
                else f"{slot.name}/{placed[of].address if of in placed else of.address}"
            )
            placed[slot] = Placed(slot, address, layer=placed[of].layer if of in placed else None)
    result = [place for slot, place in placed.items() if wanted is None or slot in wanted]
    _refuse_collisions(result)
    return result


def _refuse_collisions(placed: Sequence[Placed]) -> None:
    at: dict[str, Placed] = {}
    for place in placed:
        other = at.setdefault(place.address, place)
        if other is not place:
            remedy = NAME_ONE if isinstance(place.slot.owner, Layer) else NAMESPACE_ONE
            raise ValueError(
                TWO_OWNERS.format(
                    address=place.address, first=_shown(other.slot), second=_shown(place.slot), remedy=remedy
                )
            )
    for place in placed:
        parts = place.address.split("/")
        for k in range(1, len(parts)):
            outer = "/".join(parts[:k])
            if outer in at:
                raise ValueError(NESTED.format(outer=outer, inner=place.address))


def _shown(slot: Slot) -> str:
    return repr(slot) if slot.owner is None else repr(slot.owner)


@attrs.frozen
class _Member:
    """A module of a network as selectors see it."""

    address: str
    value: Module
    role: Role | None = None
    uid: str | None = None

    @property
    def owner(self) -> str:
        return type(self.value).__name__

    @property
    def kind(self) -> type:
        return type(self.value)


def _members(network: Any) -> list[_Member]:
    naming = _Naming([network])
    return [
        _Member(naming.name(module) if isinstance(module, Layer) else type(module).__name__, module)
        for module in naming.modules.values()
        if module is not network
    ]


def select(network: Any, selector: Any) -> list[Module]:
    """Give the modules of a network that a selector matches, in order, each once.

    Parameters
    ----------
    network : module, or tuple, list or dict of modules
    selector : where
        A glob of layer names, a type of module, a predicate, or a combination of them.

    Raises
    ------
    KeyError
        If a name in the selector matches no layer.

    Examples
    --------
    >>> from ptml.layers import Dropout, Linear, Sequential
    >>> net = Sequential(Linear("fc", n_in=2, n_out=3), Dropout("drop", p=0.1))
    >>> select(net, Dropout)
    [Dropout('drop', p=0.1)]
    """
    return [member.value for member in find(selector, _members(network), what="the network")]


def replace(network: Any, selector: Any, new: Module | Callable[[Any], Module]) -> Any:
    """Give a network in which what a selector matches is replaced.

    Parameters
    ----------
    network : module, or tuple, list or dict of modules
        It stays as it is.
    selector : where
        As for :func:`select`.
    new : module or function
        What stands there instead, or a function of what stood there.

    Returns
    -------
    network
        Parts that hold no match are the very same objects, so their slots are too.

    Raises
    ------
    KeyError
        If nothing matches.
    ValueError
        If something matches that another layer builds, and has in none of its fields.

    Examples
    --------
    >>> import attrs
    >>> from ptml.layers import Dropout, Linear, Sequential
    >>> net = Sequential(Linear("fc", n_in=2, n_out=3), Dropout("drop", p=0.1))
    >>> replace(net, Dropout, lambda drop: attrs.evolve(drop, p=0.2))[1]
    Dropout('drop', p=0.2)
    """
    matched = {id(module): module for module in select(network, selector)}
    if not matched:
        names = ", ".join(sorted({m.address for m in _members(network) if isinstance(m.value, Layer)}))
        raise AddressError(f"{where(selector)!r} matches no part of the network, which has {names}.")
    made: dict[int, Any] = {}

    def swapped(node: Any) -> Any:
        if id(node) not in matched:
            return node
        if id(node) not in made:
            made[id(node)] = new if isinstance(new, Module) else new(node)
        return made[id(node)]

    replaced = tree_map(swapped, network, is_leaf=lambda node: id(node) in matched)
    gone = {id(inside) for key in made for inside in walk(matched[key])}
    left = [m.address for m in _members(network) if id(m.value) in matched.keys() - gone]
    if left:
        raise ValueError(BUILT_INSIDE.format(addresses=", ".join(left)))
    return replaced
