"""The rules by which nodes become kernels, by the type of their op.

A rule is a function of the planner, a unit and the values of its node's inputs. It emits kernels and gives
the values of the unit's outputs; or it raises `Unsupported`, and the node runs in Python. A new kernel joins
by one more function under `rule`, in a room that the planner imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pytensor.scalar as ps
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import CAReduce

if TYPE_CHECKING:
    from ptml.backends.numba.plan.memory import Value
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__ = ["Rule", "aliased_inputs", "is_safe", "lowered_reduction", "rule", "rule_for"]

Lower = Callable[["Planner", "Unit", "list[Value]"], "list[Value]"]

_REDUCTIONS = {
    ps.Add: "add",
    ps.Mul: "mul",
    ps.Maximum: "maximum",
    ps.Minimum: "minimum",
    ps.AND: "and",
    ps.OR: "or",
    ps.XOR: "xor",
}


@attrs.frozen
class Rule:
    """How nodes of a kind become kernels.

    Attributes
    ----------
    lower : callable
    raises : bool or callable
        Whether its kernels may find something wrong when they run; of a node, where that depends on it.
    views : mapping
        The inputs that an output may be a view of, beyond those of the op's own ``view_map``.
    takes : callable
        Whether it takes a node of a fused op, of these types; another one is expanded into its graph.
    """

    lower: Lower
    raises: bool | Callable[[Apply], bool] = False
    views: Mapping[int, Sequence[int]] = attrs.field(factory=dict)
    takes: Callable[[Apply], bool] = attrs.field(default=lambda node: True)


_RULES: dict[type, Rule] = {}


def rule(
    *ops: type,
    raises: bool | Callable[[Apply], bool] = False,
    views: Mapping[int, Sequence[int]] | None = None,
    takes: Callable[[Apply], bool] = lambda node: True,
) -> Callable:
    """Register a function as the rule of these ops, and of those derived from them."""

    def register(lower: Lower) -> Lower:
        for op in ops:
            _RULES[op] = Rule(lower, raises, views or {}, takes)
        return lower

    return register


def rule_for(op: Op) -> Rule | None:
    """Find the rule of an op: that of its type, or of the nearest type that it derives from."""
    return next((_RULES[kind] for kind in type(op).__mro__ if kind in _RULES), None)


def is_safe(node: Apply) -> bool:
    """Say whether a node runs in kernels that cannot fail."""
    found = rule_for(node.op)
    if found is None:
        return False
    return not (found.raises(node) if callable(found.raises) else found.raises)


def aliased_inputs(node: Apply) -> dict[int, set[int]]:
    """Find which inputs each output of a node may be a view of."""
    found = rule_for(node.op)
    maps: list[Any] = [node.op.view_map, node.op.destroy_map, found.views if found is not None else {}]
    aliases: dict[int, set[int]] = {}
    for mapping in maps:
        for output, inputs in mapping.items():
            aliases.setdefault(output, set()).update(inputs)
    return aliases


def lowered_reduction(op: CAReduce) -> str | None:
    """Name a reduction as kernels know it, or give None where they do not."""
    return _REDUCTIONS.get(type(op.scalar_op))
