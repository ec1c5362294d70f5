"""Checks on backends that cannot raise: their verdicts become outputs, and the host raises."""

from __future__ import annotations

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable, clone
from pytensor.graph.fg import FunctionGraph
from pytensor.raise_op import CheckAndRaise

from ptml.compile.thread import Threaded

__all__ = ["Verdict", "hoist_checks"]


@attrs.frozen(eq=False)
class Verdict:
    """A check whose condition is computed as an output of the program.

    Attributes
    ----------
    passed : scalar Variable, bool
    error : Exception
        What the host raises where it has not.
    """

    passed: Variable
    error: Exception


def hoist_checks(threaded: Threaded) -> tuple[Threaded, list[Verdict]]:
    """Take the checks out of a graph, for the host to raise what they would.

    A call in which one fails writes nothing: every update then keeps what was there.

    Parameters
    ----------
    threaded : Threaded

    Returns
    -------
    Threaded, list of Verdict
        The graph without its checks, and the checks in the order in which they are computed.
    """
    roots = threaded.roots
    _, copied = clone(roots, threaded.everything, copy_inputs=False, copy_orphans=False)
    graph = FunctionGraph(roots, copied, clone=False)
    n = len(graph.outputs)
    errors: list[Exception] = []
    for node in graph.toposort():
        if isinstance(node.op, CheckAndRaise):
            for condition in node.inputs[1:]:
                graph.add_output(pt.tensor_from_scalar(condition), reason="hoist", import_missing=True)
                errors.append(node.op.exc_type(node.op.msg))
            graph.replace(node.outputs[0], node.inputs[0], reason="hoist")
    if not errors:
        return threaded, []
    verdicts = [Verdict(passed, error) for passed, error in zip(graph.outputs[n:], errors, strict=True)]
    good = pt.all(pt.stack([verdict.passed for verdict in verdicts]))
    values = iter(graph.outputs[:n])
    outputs = [next(values) for _ in threaded.outputs]
    updates = {slot: pt.switch(good, next(values), slot.handle) for slot in threaded.updates}
    shared = {variable: pt.switch(good, next(values), variable) for variable in threaded.shared_updates}
    return Threaded(outputs, updates, shared), verdicts
