"""What the rooms of the plan tell one another, and how the errors of nodes reach the user."""

from __future__ import annotations

import sys
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.link.utils import raise_with_op

__all__ = ["Unsupported", "raise_at"]

_WHERE = "Raised by {op} on {inputs}, for {outputs}."


class Unsupported(Exception):
    """No kernel knows this node, or not on operands that lie like these: it runs in Python instead."""


def raise_at(fgraph: FunctionGraph, node: Apply, thunk: Any = None) -> None:
    """Raise the exception at hand again as PyTensor does, with a note of the node that it comes from.

    Parameters
    ----------
    fgraph : FunctionGraph
    node : Apply
        Whose computation failed.
    thunk : callable, optional
        What ran it, for PyTensor's longer descriptions.
    """
    error = sys.exception()
    assert error is not None
    inputs, outputs = (
        ", ".join(f"{v.name or v} ({v.type})" for v in variables) for variables in (node.inputs, node.outputs)
    )
    error.add_note(_WHERE.format(op=node.op, inputs=inputs or "nothing", outputs=outputs))
    raise_with_op(fgraph, node, thunk)
