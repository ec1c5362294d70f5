"""Writing a graph as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import graph_inputs

from ptml.application import Application, DrawNumber
from ptml.compile import Program
from ptml.flatten import calls_in
from ptml.graphs.constants import write_constant
from ptml.graphs.errors import GraphError
from ptml.graphs.registry import entry_of
from ptml.graphs.types import write_type
from ptml.holds import Held, Written
from ptml.network import lay_out
from ptml_state import Slot, SlotVariable
from ptml_state.strictjson import json_text

__all__ = ["DEEPEST", "FORMAT", "VERSION", "Order", "graph_to_json"]

FORMAT = "ptml-graph"
VERSION = 1

#: How many nested graphs may stand inside one another.
DEEPEST = 100

INPUT_IS_COMPUTED = "The input {name} is computed from others: name the root variables that it comes from."
INPUT_IS_STATE = (
    "The input {name} is a constant or a slot: leave it out, the graph says by itself what it reads."
)
TWICE = "The input {name} is named twice."
NOT_AN_INPUT = "The graph reads {name}, which is not among the inputs {inputs}."
SHARED = (
    "The graph reads the shared variable {name}, whose value is no part of a graph. Declare a slot for it, "
    "or put an input in its place: pytensor.graph.replace.clone_replace(outputs, {{variable: input}})."
)
ONLY_COMPILED = (
    "The graph holds {what}, which says what a guard or a window keeps from being written, and means "
    "something only to the program that is compiled of it. Write the program: graph_to_json(program)."
)
INPLACE = "{op} overwrites its inputs, as rewritten graphs do. Write the graph before it is compiled."
CHANGED_OP = "{op} has properties besides those that are registered for {kind}, and would not be the same."
TOO_DEEP = "Graphs are nested in one another more than {deepest} deep."
NOT_A_HANDLE = "updates takes {{handle: new value}}; {key!r} is no slot's handle."
PROGRAM_ALONE = "A program is written with its own inputs and updates: graph_to_json(program)."
NOTHING = "There is nothing to write: give outputs or updates."


@attrs.frozen
class Order:
    """Stands for the rank of a call or a use among all of a graph's, until all are known."""

    ordinal: int


def graph_to_json(
    outputs: Any, inputs: Sequence[Variable] | None = None, *, updates: Mapping[Any, Any] | None = None
) -> str:
    """Write a graph as readable JSON.

    The text holds what is computed, and no value of any slot: those are in a :class:`~ptml_state.State`,
    which :func:`ptml_state.save_state` writes. The two meet again by the slots' addresses. The same graph
    gives the same text.

    Parameters
    ----------
    outputs : Variable, sequence of Variable, or Program
        What the graph computes. Of a program: its results and all that it writes, its guards applied.
    inputs : sequence of Variable, optional
        The roots that a call gives values, in order; all of them, in the order in which they were made,
        unless given.
    updates : mapping, optional
        From slots' handles to their new values.

    Returns
    -------
    str

    Raises
    ------
    GraphError
        If the graph holds an op that is not registered, a shared variable, or anything else that has no form
        in JSON; it is named.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.graphs import graph_to_json
    >>> x = pt.vector("x", dtype="float32")
    >>> print(graph_to_json(pt.exp(x).sum()))  # doctest: +ELLIPSIS
    {
      "format": "ptml-graph",
      "version": 1,
      "ptml": "...",
      "slots": {},
      "ops": {
        "exp": {"op": "Elemwise", "scalar": "exp"},
        "Sum": {"op": "Sum", "dtype": "float32", "acc_dtype": "float64"}
      },
      "graph": {
        "roots": [{"id": 0, "kind": "input", "type": "float32[?]", "name": "x"}],
        "nodes": [
          {"op": "exp", "in": [0], "out": [{"id": 1, "type": "float32[?]"}]},
          {"op": "Sum", "in": [1], "out": [{"id": 2, "type": "float32[]"}]}
        ],
        "outputs": [2]
      },
      "updates": {}
    }
    <BLANKLINE>
    """
    from ptml import __version__

    if isinstance(outputs, Program):
        if inputs is not None or updates is not None:
            raise GraphError(PROGRAM_ALONE)
        outputs, inputs, updates = _of_program(outputs)
    results = [outputs] if isinstance(outputs, Variable) else list(outputs)
    written = dict(updates or {})
    for key in written:
        if not isinstance(key, SlotVariable):
            raise GraphError(NOT_A_HANDLE.format(key=key))
    every = [*results, *written.values()]
    if not every:
        raise GraphError(NOTHING)
    roots = [root for root in dict.fromkeys(graph_inputs(every)) if not isinstance(root, Constant)]
    chosen = _inputs(roots, inputs)

    slots = dict.fromkeys(root.slot for root in roots if isinstance(root, SlotVariable | Application))
    slots.update(dict.fromkeys(key.slot for key in written))
    placed = lay_out(calls_in(every), slots)
    addresses = {place.slot: place.address for place in placed}
    writer = _Writer(addresses)
    graph = writer.outermost(chosen, every)
    numbers = graph.pop("outputs")
    graph["outputs"] = numbers[: len(results)]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "ptml": __version__,
        "slots": _slots(addresses),
        "ops": writer.ops,
        "graph": graph,
        "updates": {
            addresses[key.slot]: number for key, number in zip(written, numbers[len(results) :], strict=True)
        },
    }
    return json_text(_ranked(document))


def _of_program(program: Program) -> tuple[list[Variable], list[Variable], dict[Variable, Variable]]:
    threaded = program._threaded
    # What a backend that cannot raise checks after the call comes last.
    outputs = threaded.outputs[: len(threaded.outputs) - len(program._verdicts)]
    every = {slot.handle: new for slot, new in threaded.updates.items()}
    return list(outputs), list(program.inputs), {**every, **threaded.shared_updates}


def _inputs(roots: Sequence[Variable], given: Sequence[Variable] | None) -> list[Variable]:
    """Give the inputs in order, and see to it that nothing else is free."""
    free = [root for root in roots if not isinstance(root, SlotVariable | Application | Written)]
    for root in free:
        if isinstance(root, SharedVariable):
            raise GraphError(SHARED.format(name=root))
    if any(isinstance(root, Written) for root in roots):
        raise GraphError(ONLY_COMPILED.format(what="an answer about all that a step writes"))
    if given is None:
        return sorted(free, key=lambda root: int(root.auto_name.removeprefix("auto_")))
    chosen = list(given)
    for k, variable in enumerate(chosen):
        if isinstance(variable, Constant | SlotVariable | Application | SharedVariable):
            raise GraphError(INPUT_IS_STATE.format(name=variable))
        if variable.owner is not None:
            raise GraphError(INPUT_IS_COMPUTED.format(name=variable))
        if variable in chosen[:k]:
            raise GraphError(TWICE.format(name=variable))
    for root in free:
        if root not in chosen:
            raise GraphError(NOT_AN_INPUT.format(name=root, inputs=", ".join(map(str, chosen)) or "given"))
    return chosen


def _slots(addresses: Mapping[Slot, str]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for slot, address in addresses.items():
        fields = written[address] = {"role": slot.role.value, "type": write_type(slot.type)}
        of = None if slot.of is None else addresses.get(slot.of)
        if of in written:  # what is read needs what it accompanies
            fields["of"] = of
        if slot.owner is not None:
            fields["owner"] = getattr(slot.owner, "frozen_owner", type(slot.owner).__name__)
    return written


def _ranked(value: Any) -> Any:
    """Put the rank of each call and use in the place of its ordinal, which no other process knows."""
    found: set[int] = set()

    def replaced(value: Any, change: Any) -> Any:
        if isinstance(value, dict):
            return {key: replaced(item, change) for key, item in value.items()}
        if isinstance(value, list):
            return [replaced(item, change) for item in value]
        return change(value) if isinstance(value, Order) else value

    replaced(value, lambda order: found.add(order.ordinal))
    rank = {ordinal: k for k, ordinal in enumerate(sorted(found))}
    return replaced(value, lambda order: rank[order.ordinal])


class _Writer:
    """Writes graphs, and the ops that they apply into one table."""

    def __init__(self, addresses: Mapping[Slot, str]) -> None:
        self.ops: dict[str, dict[str, Any]] = {}
        self._addresses = addresses
        self._labels: dict[int, str] = {}
        self._same: dict[str, str] = {}
        self._taken: set[str] = set()
        self._words: dict[str, int] = {}
        self._kept: list[Op] = []  # an op's id is its own as long as it lives
        self._depth = 0

    def op(self, op: Op) -> str:
        """Give the label of an op in the table."""
        if id(op) in self._labels:
            return self._labels[id(op)]
        if isinstance(op, Held):
            raise GraphError(ONLY_COMPILED.format(what="what is held back"))
        entry = entry_of(op)
        if getattr(op, "destroy_map", None):
            raise GraphError(INPLACE.format(op=op))
        values = entry.encode(op)
        body: dict[str, Any] = {"op": entry.name}
        for name, field in entry.fields.items():
            written = field.write(values[name], self)
            if written is not None:
                body[name] = written
        label = None
        if entry.by_value:
            if entry.decode(**values) != op:
                raise GraphError(CHANGED_OP.format(op=op, kind=type(op).__qualname__))
            key = json.dumps(body)
            label = self._same.get(key)
            if label is None:
                label = self._same[key] = self._fresh(entry.label(op))
        else:
            label = self._fresh(entry.label(op))
        self.ops.setdefault(label, body)
        self._labels[id(op)] = label
        self._kept.append(op)
        return label

    def _fresh(self, word: str) -> str:
        label = word
        while label in self._taken:
            self._words[word] = self._words.get(word, 1) + 1
            label = f"{word}#{self._words[word]}"
        self._taken.add(label)
        return label

    def graph(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> dict[str, Any]:
        """Write a nested graph."""
        if self._depth >= DEEPEST:
            raise GraphError(TOO_DEEP.format(deepest=DEEPEST))
        self._depth += 1
        try:
            return self.outermost(inputs, outputs)
        finally:
            self._depth -= 1

    def outermost(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> dict[str, Any]:
        """Write a graph: its roots, the inputs first, its nodes in order, and its outputs."""
        nodes, roots = _in_order(inputs, outputs)
        ids = {root: k for k, root in enumerate(roots)}
        known = set(inputs)
        written_roots = [
            {"id": k, **(_input(root) if root in known else self._root(root))} for k, root in enumerate(roots)
        ]
        written_nodes = []
        for node in nodes:
            for output in node.outputs:
                ids[output] = len(ids)
            written_nodes.append(
                {
                    "op": self.op(node.op),
                    "in": [ids[variable] for variable in node.inputs],
                    "out": [
                        _named({"id": ids[output], "type": write_type(output.type)}, output)
                        for output in node.outputs
                    ],
                }
            )
        return {
            "roots": written_roots,
            "nodes": written_nodes,
            "outputs": [ids[output] for output in outputs],
        }

    def _root(self, root: Variable) -> dict[str, Any]:
        if isinstance(root, Constant):
            return _named({"kind": "constant", **write_constant(root)}, root)
        if isinstance(root, SlotVariable):
            return {"kind": "slot", "slot": self._addresses[root.slot]}
        if isinstance(root, Application):
            kind = "draw" if isinstance(root, DrawNumber) else "reading"
            return {"kind": kind, "slot": self._addresses[root.slot], "order": Order(root.ordinal)}
        raise GraphError(NOT_AN_INPUT.format(name=root, inputs="of a nested graph"))


def _input(root: Variable) -> dict[str, Any]:
    return _named({"kind": "input", "type": write_type(root.type)}, root)


def _named(written: dict[str, Any], variable: Variable) -> dict[str, Any]:
    return written if variable.name is None else {**written, "name": str(variable.name)}


def _in_order(inputs: Sequence[Variable], outputs: Iterable[Variable]) -> tuple[list[Apply], list[Variable]]:
    """Give the nodes of a graph, each after those that it needs, and the roots in the order of their use."""
    roots = dict.fromkeys(inputs)
    done: dict[Apply, None] = {}
    for output in outputs:
        pending = [(output, False)]
        while pending:
            variable, ready = pending.pop()
            node = variable.owner
            if node is None or variable in roots:
                roots.setdefault(variable)
            elif ready:
                done.setdefault(node)
            elif node not in done:
                pending.append((variable, True))
                pending.extend((each, False) for each in reversed(node.inputs))
    return list(done), list(roots)
