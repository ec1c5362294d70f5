"""Reading a graph that somebody wrote as JSON, and believing none of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op

from ptml.application import Application, DrawNumber, Reading, next_ordinal
from ptml.graphs.apply import applied
from ptml.graphs.constants import read_constant
from ptml.graphs.encode import DEEPEST, FORMAT, VERSION
from ptml.graphs.errors import GraphError, nearest
from ptml.graphs.registry import entry_named
from ptml.graphs.types import read_type, write_type
from ptml.layer import LayerOp
from ptml_state import Role, Slot, SlotVariable
from ptml_state.strictjson import JSONError, parse_json, place, read_json, short

__all__ = ["FrozenOwner", "Graph", "NoFirstValue", "graph_from_json"]

#: The bytes that a text may have.
LARGEST = 1 << 28
#: The nodes that a graph may have once its nested graphs are put in the places where they are applied.
MOST_NODES = 1_000_000
#: The longest label, name or address.
LONGEST = 10_000

NOT_A_GRAPH = "is no graph: 'format' is {given}, where a graph has {wanted!r}"
OTHER_VERSION = "is of version {given}; this is a reader of version {known}"
UNKNOWN_FIELD = "there is no {given} here.{nearest} There are {known}."
MISSING_FIELD = "lacks {name!r}"
NO_VARIABLE = "takes the number of a variable that stands before; got {given}, and there are {count}"
WRONG_ID = "takes {wanted}, the next number; got {given}"
NO_OP = "takes the label of an op that stands before in the table; got {given}.{nearest}"
REFUSED = "{name} cannot be made so: {error}"
OVERWRITES = "{name} would overwrite its inputs, which no graph of a text does"
TOO_MANY = "applies nested graphs to {count} nodes in all; {most} are allowed"
TOO_DEEP = "is nested more than {deepest} deep"
INPUT_LATE = "inputs stand before all other roots"
NESTED_ROOT = "a nested graph has inputs and constants only; got {given}"
NO_SLOT = "takes the address of a slot; got {given}.{nearest}"
NOT_A_STATISTIC = "takes a statistic; {address!r} is a {role}"
NOT_A_GENERATOR = "takes a generator; {address!r} is a {role}"
SLOT_SHAPE = "a slot is a tensor whose sizes are all known; got {given}"
NOT_OF = "{address!r} accompanies {of!r}, and does not end in '/{of}'"
BAD_ADDRESS = "takes an address such as 'fc/W'; got {given}"
INSIDE = "{inner!r} lies inside the address {outer!r}"
WRONG_UPDATE = "is {given}, where {address!r} is {wanted}"
NO_FIRST_VALUE = (
    "A graph that was read from JSON has no first values of its own. Give them: "
    "ptml.function(..., state=load_state(path))."
)


@attrs.frozen
class NoFirstValue:
    """Stands for the initializer of a slot of a graph that was read: values come from a state."""

    def __call__(self, rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Refuse."""
        raise TypeError(NO_FIRST_VALUE)


@attrs.frozen(repr=False)
class FrozenOwner:
    """Stands for what declared a slot of a graph that was read: all that is known is its class's name."""

    frozen_owner: str

    def __repr__(self) -> str:
        return self.frozen_owner


@attrs.frozen(eq=False, repr=False)
class Graph:
    """A graph that was read.

    Attributes
    ----------
    inputs : tuple of Variable
        What a call takes, in order.
    outputs : tuple of Variable
    slots : dict of str to SlotVariable
        The handles of the slots that it reads or writes, by address.
    updates : dict of SlotVariable to Variable
        What it writes.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.graphs import graph_from_json, graph_to_json
    >>> from ptml.layers import Input, Linear
    >>> X, fc = Input("X", shape=(None, 2)), Linear("fc", n_in=2, n_out=1)
    >>> text, state = graph_to_json(fc(X)), ptml.init(fc, seed=0)
    >>> graph = graph_from_json(text)
    >>> graph
    Graph of X: float64[?,2] to float64[?,1], over fc/W, fc/b
    >>> ptml.function(graph.inputs, graph.outputs, state=state)(np.zeros((1, 2)))
    [array([[0.]])]
    """

    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    slots: Mapping[str, SlotVariable]
    updates: Mapping[SlotVariable, Variable]

    def __repr__(self) -> str:
        taken = ", ".join(f"{v.name or '_'}: {write_type(v.type)}" for v in self.inputs) or "nothing"
        given = ", ".join(write_type(v.type) for v in self.outputs) or "updates alone"
        over = f", over {', '.join(self.slots)}" if self.slots else ""
        return f"Graph of {taken} to {given}{over}"


def graph_from_json(text: str | bytes | Path, *, largest: int = LARGEST) -> Graph:
    """Read a graph that :func:`graph_to_json` wrote.

    Nothing that the text says is imported, looked up or run: it names ops of the registry, and each is asked
    whether it takes what it is applied to. What may still take long is to compile and run the graph, as with
    any program of somebody else's.

    Parameters
    ----------
    text : str, bytes or Path
        The text, or the path of a file that holds it.
    largest : int
        The bytes that it may have; 256 MiB unless given.

    Returns
    -------
    Graph
        New roots and new slots; the slots have the addresses of those that were written.

    Raises
    ------
    GraphError
        If it is no JSON, of another format or version, names an op that is not registered, has a field that
        it should not have, or makes no sense in any other way. The message says where.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.graphs import graph_from_json, graph_to_json
    >>> x = pt.vector("x")
    >>> graph = graph_from_json(graph_to_json(pt.exp(x).sum()))
    >>> graph.outputs[0].eval({graph.inputs[0]: [0.0, 0.0]})
    array(2.)
    """
    if isinstance(text, Path):
        try:
            return _graph(read_json(text, largest=largest))
        except (JSONError, GraphError) as error:
            raise GraphError(f"{error}", f"{text}") from None
    try:
        value = parse_json(text, what="the graph", largest=largest)
    except JSONError as error:
        raise GraphError(error.text, error.where) from None
    return _graph(value)


def _graph(document: Any) -> Graph:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        given = short(document.get("format")) if isinstance(document, dict) else short(document)
        raise GraphError(NOT_A_GRAPH.format(given=given, wanted=FORMAT))
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise GraphError(OTHER_VERSION.format(given=short(document.get("version")), known=VERSION), "version")
    fields = _fields(document, "", ("format", "version", "slots", "ops", "graph", "updates"), ("ptml",))
    reader = _Reader()
    reader.read_slots(fields["slots"], "slots")
    reader.read_ops(fields["ops"], "ops")
    inputs, outputs, variables = reader.read_graph(fields["graph"], "graph", nested=False)
    updates = {}
    for address, number in _object(fields["updates"], "updates").items():
        where = place(["updates", address])
        handle, new = reader.slot(address, where), _at(variables, number, where)
        if not handle.type.is_super(new.type):
            text = WRONG_UPDATE.format(given=new.type, address=address, wanted=handle.type)
            raise GraphError(text, where)
        updates[handle] = new
    reader.number_uses()
    return Graph(tuple(inputs), tuple(outputs), reader.slots, updates)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise GraphError(f"takes an object; got {short(value)}", where)
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise GraphError(f"takes a list; got {short(value)}", where)
    return value


def _fields(value: Any, where: str, needed: tuple[str, ...], allowed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Give the fields of an object, none missing and none unknown."""
    fields = _object(value, where)
    known = (*needed, *allowed)
    for name in fields:
        if name not in known:
            raise GraphError(
                UNKNOWN_FIELD.format(given=short(name), nearest=nearest(name, known), known=", ".join(known)),
                where,
            )
    for name in needed:
        if name not in fields:
            raise GraphError(MISSING_FIELD.format(name=name), where)
    return fields


def _name(fields: dict[str, Any], where: str) -> str | None:
    name = fields.get("name")
    if name is not None and (not isinstance(name, str) or len(name) > LONGEST):
        raise GraphError(f"takes text; got {short(name)}", f"{where}.name")
    return name


def _at(variables: list[Variable], number: Any, where: str) -> Variable:
    if type(number) is not int or not 0 <= number < len(variables):
        raise GraphError(NO_VARIABLE.format(given=short(number), count=len(variables)), where)
    return variables[number]


def _rank(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise GraphError(f"takes a rank, a whole number from 0; got {short(value)}", where)
    return value


class _Reader:
    """Reads the parts of a document, each of which may use those that were read before."""

    def __init__(self) -> None:
        self.slots: dict[str, SlotVariable] = {}
        self._ops: dict[str, Op] = {}
        #: How many nodes an op stands for, and how deep it is nested.
        self._sizes: dict[str, tuple[int, int]] = {}
        #: The same of the graph or op that is being read.
        self._size, self._depth = 0, 0
        self._uses: list[tuple[int, Application]] = []

    def slot(self, address: Any, where: str) -> SlotVariable:
        """Give the handle of a slot."""
        if not isinstance(address, str) or address not in self.slots:
            close = nearest(address, self.slots) if isinstance(address, str) else ""
            raise GraphError(NO_SLOT.format(given=short(address), nearest=close), where)
        return self.slots[address]

    def read_slots(self, value: Any, where: str) -> None:
        for address, item in _object(value, where).items():
            here = place([where, address])
            fields = _fields(item, here, ("role", "type"), ("of", "owner"))
            parts = address.split("/")
            if not all(parts) or len(address) > LONGEST:
                raise GraphError(BAD_ADDRESS.format(given=short(address)), here)
            roles = [role.value for role in Role]
            if fields["role"] not in roles:
                text = f"takes one of {', '.join(roles)}; got {short(fields['role'])}"
                raise GraphError(text, f"{here}.role")
            kind: Any = read_type(fields["type"], f"{here}.type")
            if not hasattr(kind, "shape") or None in kind.shape:
                raise GraphError(SLOT_SHAPE.format(given=short(fields["type"])), f"{here}.type")
            owner = fields.get("owner")
            if owner is not None and (not isinstance(owner, str) or len(owner) > LONGEST):
                raise GraphError(f"takes text; got {short(owner)}", f"{here}.owner")
            name, of, initializer = address, None, NoFirstValue()
            if fields.get("of") is not None:
                of = self.slot(fields["of"], f"{here}.of").slot
                if not address.endswith(f"/{of.address}"):
                    raise GraphError(NOT_OF.format(address=address, of=of.address), f"{here}.of")
                name = address.removesuffix(f"/{of.address}")
            slot = Slot(
                name,
                Role(fields["role"]),
                kind.dtype,
                kind.shape,
                initializer,
                owner=None if owner is None else FrozenOwner(owner),
                of=of,
            )
            self.slots[address] = slot.handle
        for address in self.slots:
            for k, letter in enumerate(address):
                if letter == "/" and address[:k] in self.slots:
                    raise GraphError(INSIDE.format(inner=address, outer=address[:k]), where)

    def read_ops(self, value: Any, where: str) -> None:
        for label, item in _object(value, where).items():
            here = place([where, label])
            if len(label) > LONGEST:
                raise GraphError(f"takes a shorter label than {short(label)}", where)
            self._size, self._depth = 0, 0
            name = _object(item, here).get("op")
            if not isinstance(name, str):
                raise GraphError(f"takes the name of a registered op; got {short(name)}", f"{here}.op")
            entry = entry_named(name, f"{here}.op")
            fields = _fields(item, here, ("op",), tuple(entry.fields))
            values = {
                key: field.read(fields.get(key), self, f"{here}.{key}") for key, field in entry.fields.items()
            }
            try:
                op = entry.decode(**values)
            except GraphError:
                raise
            except Exception as error:
                first = (str(error).splitlines() or [type(error).__name__])[0][:300]
                raise GraphError(REFUSED.format(name=name, error=first), here) from None
            if getattr(op, "destroy_map", None):
                raise GraphError(OVERWRITES.format(name=name), here)
            self._ops[label] = op
            self._sizes[label] = (self._size, self._depth)

    def op(self, label: Any, where: str) -> Op:
        """Give an op of the table."""
        if not isinstance(label, str) or label not in self._ops:
            close = nearest(label, self._ops) if isinstance(label, str) else ""
            raise GraphError(NO_OP.format(given=short(label), nearest=close), where)
        size, depth = self._sizes[label]
        self._size += 1 + size
        self._depth = max(self._depth, depth)
        if self._size > MOST_NODES:
            raise GraphError(TOO_MANY.format(count=self._size, most=MOST_NODES), where)
        return self._ops[label]

    def graph(self, value: Any, where: str) -> tuple[list[Variable], list[Variable]]:
        """Read a nested graph."""
        inputs, outputs, _ = self.read_graph(value, where, nested=True)
        self._depth += 1
        if self._depth > DEEPEST:
            raise GraphError(TOO_DEEP.format(deepest=DEEPEST), where)
        return inputs, outputs

    def read_graph(
        self, value: Any, where: str, *, nested: bool
    ) -> tuple[list[Variable], list[Variable], list[Variable]]:
        """Read a graph: its inputs, its outputs, and all variables by number."""
        if not nested:
            self._size, self._depth = 0, 0
        fields = _fields(value, where, ("roots", "nodes", "outputs"))
        inputs: list[Variable] = []
        variables: list[Variable] = []
        for k, item in enumerate(_list(fields["roots"], f"{where}.roots")):
            here = f"{where}.roots[{k}]"
            root = dict(_object(item, here))
            self._number(root.pop("id", None), len(variables), f"{here}.id")
            kind = root.pop("kind", None)
            if kind == "input":
                if len(inputs) != len(variables):
                    raise GraphError(INPUT_LATE, here)
                _fields(root, here, ("type",), ("name",))
                inputs.append(read_type(root["type"], f"{here}.type")(name=_name(root, here)))
                variables.append(inputs[-1])
            elif kind == "constant":
                name, said = _name(root, here), read_type(root.pop("type", None), f"{here}.type")
                root.pop("name", None)
                variables.append(read_constant(said, root, here, name))
            elif nested:
                raise GraphError(NESTED_ROOT.format(given=short(kind)), f"{here}.kind")
            else:
                variables.append(self._root(kind, root, here))
        for k, item in enumerate(_list(fields["nodes"], f"{where}.nodes")):
            here = f"{where}.nodes[{k}]"
            node = _fields(item, here, ("op", "in", "out"))
            op = self.op(node["op"], f"{here}.op")
            taken = [
                _at(variables, number, f"{here}.in[{j}]")
                for j, number in enumerate(_list(node["in"], f"{here}.in"))
            ]
            said, names = [], []
            for j, output in enumerate(_list(node["out"], f"{here}.out")):
                there = f"{here}.out[{j}]"
                given = _fields(output, there, ("id", "type"), ("name",))
                self._number(given["id"], len(variables) + j, f"{there}.id")
                said.append(read_type(given["type"], f"{there}.type"))
                names.append(_name(given, there))
            results = applied(op, taken, said, here)
            for result, name in zip(results, names, strict=True):
                result.name = name
            variables.extend(results)
        numbers = _list(fields["outputs"], f"{where}.outputs")
        outputs = [_at(variables, number, f"{where}.outputs[{k}]") for k, number in enumerate(numbers)]
        return inputs, outputs, variables

    def _number(self, given: Any, wanted: int, where: str) -> None:
        if type(given) is not int or given != wanted:
            raise GraphError(WRONG_ID.format(wanted=wanted, given=short(given)), where)

    def _root(self, kind: Any, root: dict[str, Any], where: str) -> Variable:
        if kind == "slot":
            _fields(root, where, ("slot",))
            return self.slot(root["slot"], f"{where}.slot")
        if kind not in ("reading", "draw"):
            text = f"takes 'input', 'constant', 'slot', 'reading' or 'draw'; got {short(kind)}"
            raise GraphError(text, f"{where}.kind")
        _fields(root, where, ("slot", "order"))
        slot = self.slot(root["slot"], f"{where}.slot").slot
        wanted = (Role.STATISTIC, Role.CACHE) if kind == "reading" else (Role.GENERATOR,)
        if slot.role not in wanted:
            refusal = NOT_A_STATISTIC if kind == "reading" else NOT_A_GENERATOR
            raise GraphError(refusal.format(address=slot.address, role=slot.role), f"{where}.slot")
        use = Reading(slot) if kind == "reading" else DrawNumber(slot)
        self._uses.append((_rank(root["order"], f"{where}.order"), use))
        return use

    def number_uses(self) -> None:
        """Number calls and uses anew, in the order in which they were made."""
        calls = [(op.call_ordinal, op) for op in self._ops.values() if isinstance(op, LayerOp)]
        new = {rank: next_ordinal() for rank in sorted({rank for rank, _ in [*self._uses, *calls]})}
        for rank, use in self._uses:
            use.ordinal = new[rank]
        for rank, op in calls:
            op.call_ordinal = new[rank]
