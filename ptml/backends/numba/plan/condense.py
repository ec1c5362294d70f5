"""Leaves' updates as one node each, before PyTensor's rewrites look at them.

A rule writes a dozen elementwise nodes for each parameter: of a deep network's graph they are the most, and
every rewrite looks at each of them, although they are the same for all leaves. Here those that differ by
their operands alone are simplified once, together, and each becomes a single node, which fusion would make in
the end. Only arithmetic is taken, and none of exponentials, logarithms and the like, which rewrites for
precision may have to change together with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import attrs
import pytensor.scalar as ps
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import Composite, get_scalar_type
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from ptml.backends.numba.plan.literals import literal_of, number_of

__all__ = ["condensed"]

#: What a group may consist of.
ARITHMETIC = (
    ps.Add,
    ps.Sub,
    ps.Mul,
    ps.TrueDiv,
    ps.Neg,
    ps.Abs,
    ps.Sqr,
    ps.Sqrt,
    ps.Reciprocal,
    ps.Sign,
    ps.Pow,
    ps.ScalarMaximum,
    ps.ScalarMinimum,
    ps.Clip,
    ps.Switch,
    ps.LT,
    ps.GT,
    ps.LE,
    ps.GE,
    ps.EQ,
    ps.NEQ,
    ps.AND,
    ps.OR,
    ps.Invert,
    ps.Cast,
)


@attrs.frozen(eq=False)
class _Group:
    """Elementwise nodes that make the new value of a leaf, or of several that belong together.

    Attributes
    ----------
    nodes : list of Apply
        In an order that is possible.
    names : dict
        What each variable is within the structure.
    inputs, outputs : list of Variable
    structure : hashable
        What is equal for groups that differ by their operands alone.
    """

    nodes: list[Apply]
    names: dict[Variable, Hashable]
    inputs: list[Variable]
    outputs: list[Variable]
    structure: Hashable


def condensed(
    new_values: Sequence[Variable], others: Sequence[Variable], query: RewriteDatabaseQuery
) -> list[Variable]:
    """Give new values with the arithmetic that they consist of in one node each.

    Parameters
    ----------
    new_values : sequence of Variable
        What a program writes into its state.
    others : sequence of Variable
        What it computes besides.
    query : RewriteDatabaseQuery
        The rewrites that simplify one group of each structure.
    """
    known: dict[Hashable, Elemwise | None] = {}
    made: dict[Variable, Variable] = {}
    for group in _groups(new_values, others):
        if group.structure not in known:
            known[group.structure] = _joined(group, optdb.query(query))
        op = known[group.structure]
        if op is not None:
            made.update(zip(group.outputs, op.make_node(*group.inputs).outputs, strict=True))
    return [made.get(v, v) for v in new_values]


def _groups(new_values: Sequence[Variable], others: Sequence[Variable]) -> list[_Group]:
    """Find the groups: a new value, and what is computed for it and those joined with it alone."""
    order = list(toposort([*new_values, *others]))
    users: dict[Variable, set[Apply]] = defaultdict(set)
    delicate: set[Variable] = set()
    for node in order:
        for variable in node.inputs:
            users[variable].add(node)
        if _is_delicate(node, delicate):
            delicate.update(node.outputs)
    written, seen = set(new_values), set(others)
    member: dict[Apply, Apply] = {}
    groups: dict[Apply, list[Apply]] = {}
    for node in reversed(order):
        if not _is_arithmetic(node) or node.outputs[0] in seen or node.outputs[0] in delicate:
            continue
        [output] = node.outputs
        heads = {member.get(user) for user in users[output]}
        [head] = heads if len(heads) == 1 else [None]
        if head is not None and output.type.shape == head.outputs[0].type.shape:
            member[node] = head
            groups[head].append(node)
        elif output in written and not heads:
            member[node] = node
            groups[node] = [node]
    return [_described(nodes, written) for nodes in groups.values() if len(nodes) > 1]


def _is_delicate(node: Apply, delicate: set[Variable]) -> bool:
    """Say whether a node is, or reads, elementwise mathematics that may lose precision as it is written."""
    if isinstance(node.op, DimShuffle):
        return node.inputs[0].type.ndim > 0 and node.inputs[0] in delicate
    if not isinstance(node.op, Elemwise):
        return False
    return not isinstance(node.op.scalar_op, ARITHMETIC) or not delicate.isdisjoint(node.inputs)


def _is_arithmetic(node: Apply) -> bool:
    op = node.op
    if not isinstance(op, Elemwise) or op.inplace_pattern or not isinstance(op.scalar_op, ARITHMETIC):
        return False
    type_ = node.outputs[0].type
    return type_.ndim > 0 and None not in type_.shape and not type_.dtype.startswith("complex")


def _described(nodes: list[Apply], written: set[Variable]) -> _Group:
    inside = set(nodes)
    outputs = [node.outputs[0] for node in nodes if node.outputs[0] in written]
    # From the outputs on, so that nodes and inputs of all groups of a structure come in the same order.
    blockers = [v for node in nodes for v in node.inputs if v.owner not in inside]
    ordered = list(toposort(outputs, blockers=blockers))
    names: dict[Variable, Hashable] = {}
    inputs: dict[Hashable, Variable] = {}
    steps = []
    for node in ordered:
        for variable in node.inputs:
            if variable in names:
                continue
            if (literal := literal_of(variable)) is not None:
                names[variable] = ("literal", variable.type.dtype, literal.tobytes())
                continue
            same = inputs.setdefault(_value(variable), variable)
            if same is variable:
                type_ = variable.type
                names[variable] = ("input", len(inputs) - 1, type_.dtype, type_.broadcastable)
            else:
                names[variable] = names[same]
        steps.append((node.op.scalar_op, *(names[v] for v in node.inputs)))
        names[node.outputs[0]] = ("node", len(steps) - 1)
    structure = (*steps, *(names[v] for v in outputs))
    return _Group(ordered, names, list(inputs.values()), outputs, structure)


def _value(variable: Variable) -> Hashable:
    """Give what is equal for variables of one value, as far as that is easily seen."""
    if (number := number_of(variable)) is not None:
        return number.tobytes(), variable.type.dtype, variable.type.ndim
    if variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        return variable.owner.op, variable.owner.inputs[0]
    return variable


def _joined(group: _Group, simplify: GraphRewriter) -> Elemwise | None:
    """Give the op that computes a group, or None where simplifying it leaves more than arithmetic."""
    fresh = {group.names[v]: v.type() for v in group.inputs}
    copies: dict[Variable, Variable] = {}
    for node in group.nodes:
        for variable in node.inputs:
            copies.setdefault(variable, fresh.get(group.names[variable], variable))
        copy = node.clone_with_new_inputs([copies[v] for v in node.inputs])
        copies[node.outputs[0]] = copy.outputs[0]
    graph = FunctionGraph(list(fresh.values()), [copies[v] for v in group.outputs], clone=False)
    simplify.rewrite(graph)
    scalars: dict[Variable, Any] = {v: get_scalar_type(v.type.dtype).make_variable() for v in graph.inputs}
    inputs = list(scalars.values())
    for node in graph.toposort():
        operands = [scalars[v] if v in scalars else _literal(v) for v in node.inputs]
        if not isinstance(node.op, Elemwise) or len(node.outputs) > 1 or None in operands:
            return None
        scalars[node.outputs[0]] = node.op.scalar_op.make_node(*operands).outputs[0]
    outputs = [scalars.get(v) for v in graph.outputs]
    if None in outputs or set(outputs) & set(inputs):
        return None
    return Elemwise(Composite(inputs, outputs))


def _literal(variable: Variable) -> Any:
    number = number_of(variable)
    return None if number is None else ps.constant(number[()], dtype=variable.type.dtype)
