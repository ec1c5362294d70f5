"""Copies of a layer, one after the other."""

from __future__ import annotations

from typing import Any

import attrs

from ptml.declare import own_slots, own_sublayers
from ptml.layer import DefaultName, Layer
from ptml.layers.combinators import Sequential
from ptml.layers.scanned import Scanned
from ptml.module import Module
from ptml.network import _Naming
from ptml_state.tree import tree_map

__all__ = ["Repeat"]

BAD_NUMBER = (
    "Repeat takes the number of copies first, a positive integer; got {given!r}. Write Repeat(3, {layer})."
)
NOT_A_LAYER = "Repeat copies a layer; got {given!r}."


def Repeat(n: int, layer: Layer, *, name: str | None = None, scan: bool = False) -> Sequential | Scanned:
    """Stack copies of a layer, each with parameters of its own.

    The copies are called ``block0``, ``block1``, ..., after the layer's own name (``block``) or another that
    is given. What a copy holds is named below it: the weight of a ``Linear("fc", ...)`` inside has the
    address ``block0/fc/W`` in the first copy. An object that stands at two places in the layer is one
    object in each copy.

    Parameters
    ----------
    n : int
        The number of copies.
    layer : Layer
        What is copied. It takes what it gives. It is no part of the result itself.
    name : str, optional
        What the copies are called, but for their number; the layer's own name unless given.
    scan : bool
        Whether the copies are the iterations of a loop over stacked parameters, which compiles as fast as a
        single one: :class:`Scanned`. False unless given.

    Returns
    -------
    Sequential or Scanned
        An ordinary `Sequential`, whose layers can be selected, replaced and sliced; a `Scanned` for a loop.

    Raises
    ------
    TypeError
        If `n` is no integer, or `layer` no layer.
    ValueError
        If `n` is less than 1.

    Examples
    --------
    >>> import ptml
    >>> from ptml.activations import ReLU
    >>> from ptml.layers import Linear, Repeat, Sequential
    >>> net = Repeat(2, Sequential(Linear("fc", n_in=8, n_out=8, bias=False), ReLU()), name="block")
    >>> list(ptml.init(net, seed=0))
    ['block0/fc/W', 'block1/fc/W']
    >>> list(ptml.init(Repeat(2, net[0], name="block", scan=True), seed=0))
    ['block/fc/W']
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        error = ValueError if isinstance(n, int) and not isinstance(n, bool) else TypeError
        raise error(BAD_NUMBER.format(given=n, layer=repr(layer)))
    if not isinstance(layer, Layer):
        raise TypeError(NOT_A_LAYER.format(given=layer))
    if scan:
        return Scanned(n, layer) if name is None else Scanned(n, layer, name=name)
    called = layer.name if name is None else name
    naming = _Naming([layer])
    return Sequential(*(_copied(layer, naming, layer, f"{called}{k}", {}) for k in range(n)))


def _copied(module: Any, naming: _Naming, top: Layer, prefix: str, made: dict[int, Any]) -> Any:
    """Copy a module, its layers named below a prefix; what has no layers stays the object that it is."""
    if id(module) in made:
        return made[id(module)]
    # What is named in a pattern is named below the layer that repeats it.
    pattern = module._pattern

    def part(value: Any) -> Any:
        return _copied(value, naming, top, prefix, made) if isinstance(value, Module) else value

    changes = {}
    for field in attrs.fields(type(module)):
        value = getattr(module, field.name)
        if field.init and field.name != pattern and isinstance(value, Module | tuple | dict):
            parts = tree_map(part, value, is_leaf=lambda node: isinstance(node, Module))
            if parts is not value:
                changes[field.alias] = parts
    if isinstance(module, Layer):
        if module is top:
            changes["name"] = prefix
        elif not isinstance(module.name, DefaultName) or own_slots(module) or own_sublayers(module):
            changes["name"] = f"{prefix}/{naming.name(module).removeprefix(f'{top.name}/')}"
    copy = attrs.evolve(module, **changes) if changes or isinstance(module, Layer) else module
    made[id(module)] = copy
    return copy
