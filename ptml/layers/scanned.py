"""Copies of a layer, one after the other, as a loop over stacked parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Constant, Variable, clone_get_equiv
from pytensor.graph.traversal import graph_inputs

from ptml.application import DrawNumber, Reading
from ptml.axes import axes_of, declare_axes
from ptml.declare import Declaration, slot_group
from ptml.decoding import decoding
from ptml.flatten import flattened_graph
from ptml.layer import DefaultName, Layer, name_by_keyword
from ptml.marks import Advance, advance
from ptml.module import Module
from ptml.network import lay_out
from ptml.sequencing import sequence
from ptml.validate import described
from ptml_state import Role, Slot, SlotVariable
from ptml_state.slot import Derived, Stacked
from ptml_state.tree import tree_map

__all__ = ["Scanned"]

BAD_NUMBER = (
    "{cls} takes the number of copies first, a positive integer; got {given!r}. Write {cls}(3, {layer})."
)
NOT_A_LAYER = "{cls} copies a layer; got {given!r}."
ANOTHER_TYPE = (
    "{who} loops over {layer}, which has to give what it takes: {count} tensor(s) of the same dtype and "
    "shape. It takes {given} and gives {made}."
)


def _a_number(module: Any, field: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        error = ValueError if isinstance(value, int) and not isinstance(value, bool) else TypeError
        raise error(BAD_NUMBER.format(cls=type(module).__name__, given=value, layer=repr(module.layer)))


def _a_layer(module: Any, field: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, Layer):
        raise TypeError(NOT_A_LAYER.format(cls=type(module).__name__, given=value))


def _own_copy(module: Any, made: dict[int, Any] | None = None) -> Any:
    """Copy a layer and what it is made of: the pattern's slots are nobody else's."""
    made = {} if made is None else made
    if not isinstance(module, Module) or id(module) in made:
        return made.get(id(module), module)
    changes = {}
    for field in attrs.fields(type(module)):
        value = getattr(module, field.name)
        if field.init and isinstance(value, Module | tuple | dict):
            parts = tree_map(lambda part: _own_copy(part, made), value, is_leaf=_is_module)
            if parts is not value:
                changes[field.alias] = parts
    made[id(module)] = attrs.evolve(module, **changes) if changes or isinstance(module, Layer) else module
    return made[id(module)]


def _is_module(node: Any) -> bool:
    return isinstance(node, Module)


@attrs.frozen
class EachOf:
    """Apply a function to each of stacked arrays."""

    function: Any

    def __call__(self, stacked: np.ndarray) -> np.ndarray:
        return np.stack([self.function(one) for one in stacked])


class Scanned(Layer):
    """Apply copies of a layer one after the other, in a loop: `Repeat` whose depth costs no compile time.

    The loop's body is compiled once, however many copies there are. Each leaf of the copies is one leaf here,
    with an axis of length `n` in front: ``block/fc/W[k]`` is the ``block{k}/fc/W`` of ``Repeat(n, layer)``,
    and is drawn as that one. A generator is one leaf for all: each iteration draws from a key of its own
    that is derived from it. :func:`ptml.surgery.stack` and :func:`ptml.surgery.unstack` make the state of
    one form that of the other.

    Parameters
    ----------
    n : int
        The number of copies.
    layer : Layer
        What is copied. It gives what it takes, in dtype and shape. It is a pattern, and no part of the
        network itself: the state is this layer's.
    name : str, optional
        By keyword; the name of `layer` unless given. It begins the addresses of the state.

    Raises
    ------
    TypeError, ValueError
        If `n` is no positive integer, or `layer` no layer; when called, if `layer` gives something else than
        it takes.

    Notes
    -----
    MLX has no loops: there the iterations are written out while the program is traced. A rule that treats a
    parameter as a whole, such as one that divides by its norm, treats the stack as one.

    Examples
    --------
    >>> import ptml
    >>> from ptml.activations import Tanh
    >>> from ptml.layers import Input, Linear, Scanned, Sequential
    >>> net = Scanned(12, Sequential(Linear("fc", n_in=8, n_out=8), Tanh()), name="block")
    >>> net(Input("X", (None, 8))).type.shape
    (None, 8)
    >>> [f"{handle.slot.address} {handle.type.shape}" for handle in ptml.slots(net)]
    ['block/fc/W (12, 8, 8)', 'block/fc/b (12, 8)']
    """

    n: int = attrs.field(validator=_a_number, kw_only=False)
    layer: Layer = attrs.field(converter=_own_copy, validator=_a_layer, kw_only=False)
    name: str = name_by_keyword()

    _pattern = "layer"

    def __attrs_post_init__(self) -> None:
        if isinstance(self.name, DefaultName):
            # The name of a layer that was given none is numbered where there are several.
            vars(self)["name"] = self.layer.name

    def _shown_fields(self) -> tuple[list[Any], dict[str, Any]]:
        positional, keywords = super()._shown_fields()
        if isinstance(self.name, DefaultName):
            keywords.pop("name", None)
        return positional, keywords

    @slot_group
    def stacked(self) -> Iterator[tuple[str, Declaration]]:
        """The handles of the stacked leaves, by their addresses in a copy."""
        inner = self._inner
        for place, slot in sorted(inner.items(), key=lambda item: item[1].starts_from is not None):
            start: Any = slot.initializer
            shape = (self.n, *slot.shape)
            if slot.role is Role.GENERATOR:
                shape = slot.shape
            elif slot.starts_from is None:
                start = Stacked(slot, self.n, place)
            else:
                origin = next(other for other, one in inner.items() if one is slot.starts_from)
                start = Derived(vars(self)[f"stacked/{origin}"].slot, EachOf(start.function))
            yield place, Declaration(slot.role, shape, start, slot.dtype)

    @property
    def _inner(self) -> dict[str, Slot]:
        """The slots of the pattern, by their addresses in a copy."""
        top = f"{self.layer.name}/"
        return {place.address.removeprefix(top): place.slot for place in lay_out([self.layer])}

    def build(self, *inputs: Any, **options: Any) -> Any:
        from ptml import scan

        looped = [slot for slot in self._inner.values() if slot.role is not Role.GENERATOR]
        handles = {slot: self.stacked[place] for place, slot in self._inner.items()}
        if decoding.get() is not None:
            return self._written_out(inputs, options, looped, handles)
        pattern = self._called(inputs, options)

        def step(*arguments: Variable) -> list[Variable]:
            slices = dict(zip(looped, arguments, strict=False))
            return pattern.iteration(slices, handles, arguments[len(looped) :])

        results = scan(
            step,
            sequences=[handles[slot] for slot in looped],
            outputs_info=[*inputs, *(None for _ in pattern.moved)],
            n_steps=self.n,
            return_list=True,
        )
        outputs: list[Any] = [result[-1] for result in results[: len(inputs)]]
        if pattern.moved:
            moves = {handles[slot]: results[len(inputs) + k] for k, slot in enumerate(pattern.moved)}
            outputs = [advance(output, moves) for output in outputs]
        return tuple(outputs) if pattern.several else outputs[0]

    def _written_out(
        self, inputs: Any, options: Any, looped: Sequence[Slot], handles: Mapping[Slot, Any]
    ) -> Any:
        """Call the copies one by one, as each has caches of its own in a decoder."""
        for k in range(self.n):
            pattern = self._called(inputs, options)
            slices = {slot: handles[slot][k] for slot in looped}
            inputs = pattern.iteration(slices, handles, inputs)[: len(inputs)]
        return tuple(inputs) if pattern.several else inputs[0]

    def _called(self, inputs: Sequence[Variable], options: Any) -> _Pattern:
        """Call the pattern on stand-ins for the inputs, and see to it that it gives what it takes."""
        stand_ins = [X.type(name=X.name) for X in inputs]
        for stand_in, X in zip(stand_ins, inputs, strict=True):
            declare_axes(stand_in, axes_of(X))
        built = self.layer(*stand_ins, **options)
        outputs = list(built) if isinstance(built, tuple) else [built]
        if len(outputs) != len(inputs) or not all(map(_goes_on_as, outputs, inputs)):
            given, made = (", ".join(str(one.type) for one in some) for some in (inputs, outputs))
            who, layer = described(self), described(self.layer)
            raise ValueError(
                ANOTHER_TYPE.format(who=who, layer=layer, count=len(inputs), given=given, made=made)
            )
        own = {slot for slot in self._inner.values() if slot.role is Role.STATISTIC}
        return _Pattern.of(stand_ins, outputs, own, isinstance(built, tuple))


def _goes_on_as(output: Any, X: Any) -> bool:
    """Say whether an output can be the input of the next copy."""
    if output.type.dtype != X.type.dtype or output.type.ndim != X.type.ndim:
        return False
    sizes = zip(output.type.shape, X.type.shape, strict=True)
    return all(None in pair or pair[0] == pair[1] for pair in sizes)


@attrs.frozen
class _Pattern:
    """The graph of one copy, to be built again on what an iteration has.

    Attributes
    ----------
    stand_ins : list of Variable
        What it takes.
    outputs : list of Variable
        What it gives, then the new values of the statistics that it moves.
    moved : list of Slot
        Those statistics.
    before : dict of Slot to Variable
        What stands for their values before.
    several : bool
        Whether its call gives a tuple.
    """

    stand_ins: list[Any]
    outputs: list[Any]
    moved: list[Slot]
    before: dict[Slot, Any]
    several: bool

    @classmethod
    def of(cls, stand_ins: list[Any], outputs: list[Any], own: set[Slot], several: bool) -> _Pattern:
        inside = set(stand_ins)
        roots = dict.fromkeys(graph_inputs(outputs, blockers=inside))
        others = [root for root in roots if not isinstance(root, Constant) and root not in inside]
        graph = flattened_graph(outputs, [*stand_ins, *others])
        foreign = {root.slot for root in others if isinstance(root, Reading)} - own
        before = {slot: slot.type() for slot in own}
        last = sequence(graph, range(len(outputs)), before, skip=foreign)
        for node in graph.toposort():
            if isinstance(node.op, Advance) and not foreign & {
                read.slot for read, _ in Advance.moves(node) if isinstance(read, Reading)
            }:
                graph.replace(node.outputs[0], node.inputs[0], reason="iterate", import_missing=True)
        new = [graph.outputs[index] for index in last.values()]
        return cls(stand_ins, [*graph.outputs[: len(outputs)], *new], list(last), before, several)

    def iteration(
        self, slices: Mapping[Slot, Any], handles: Mapping[Slot, Any], carried: Sequence[Any]
    ) -> list[Variable]:
        """Build the graph of an iteration.

        Parameters
        ----------
        slices : mapping
            From the slots of the pattern to their values in this copy, but for generators.
        handles : mapping
            From the slots of the pattern to the handles of their stacks.
        carried : sequence of Variable
            What the copy takes.
        """
        memo: dict[Any, Any] = dict(zip(self.stand_ins, carried, strict=True))
        for slot, value in slices.items():
            # No gradient flows into statistics.
            fixed = disconnected_grad(value) if slot.role is Role.STATISTIC else value
            memo[slot.handle] = fixed
            if slot in self.before:
                memo[self.before[slot]] = fixed
        for root in graph_inputs(self.outputs):
            if isinstance(root, DrawNumber) and root.slot in handles:
                memo[root] = DrawNumber(handles[root.slot].slot)
            elif isinstance(root, SlotVariable) and root.slot.role is Role.GENERATOR and root.slot in handles:
                memo[root] = handles[root.slot]
        equiv = clone_get_equiv([], self.outputs, copy_inputs=False, copy_orphans=False, memo=memo)
        built = [equiv[output] for output in self.outputs]
        results = [
            pt.specify_shape(output, X.type.shape) if output.type != X.type else output
            for output, X in zip(built, carried, strict=False)
        ]
        return [*results, *built[len(results) :]]
