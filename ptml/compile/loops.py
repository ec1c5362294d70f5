"""Loops that carry state: a thin form of ``pytensor.scan``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply, Constant, Variable, clone_get_equiv
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs
from pytensor.scan.op import Scan
from pytensor.scan.utils import until
from pytensor.tensor.subtensor import Subtensor

from ptml.application import Application, DrawNumber, Reading, next_ordinal
from ptml.bits import Draw, FoldIn
from ptml.flatten import flattened_graph, outermost_calls
from ptml.marks import Advance, InTraining
from ptml.sequencing import sequence
from ptml_state import Role, Slot, SlotVariable

__all__ = ["scan"]

RETURNS_UPDATES = (
    "The step of ptml.scan returns its outputs, and no dict of updates: what a layer remembers is carried."
)


class _Step:
    """The graph of one iteration, recorded once and built again with state carried through it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def record(self, *arguments: Variable) -> Any:
        self.start = next_ordinal()
        # A non-sequence that is computed comes as it is; within the step it is what it is called on.
        self.arguments = [v if v.owner is None else v.type(name=v.name) for v in arguments]
        result = self.fn(*self.arguments)
        parts = list(result) if isinstance(result, tuple | list) else [result]
        if any(isinstance(part, dict) for part in parts):
            raise TypeError(RETURNS_UPDATES)
        self.condition = parts.pop() if parts and isinstance(parts[-1], until) else None
        if len(parts) == 1 and isinstance(parts[0], tuple | list):
            parts = list(parts[0])
        self.outputs = [pt.as_tensor(part) for part in parts]
        self._thread()
        return result

    def _thread(self) -> None:
        conditions = [] if self.condition is None else [self.condition.condition]
        every = [*self.outputs, *conditions]
        found = [r for r in dict.fromkeys(graph_inputs(every, self.arguments)) if not isinstance(r, Constant)]
        outer = [root for root in found if root not in self.arguments]
        self.calls = outermost_calls(every)
        graph = flattened_graph(every, [*self.arguments, *outer])
        self._hold(graph)
        slots = dict.fromkeys(r.slot for r in graph_inputs(graph.outputs) if isinstance(r, Reading))
        carried = {slot: slot.type() for slot in slots}
        last = sequence(graph, range(len(every)), carried)
        for node in graph.toposort():
            if isinstance(node.op, Advance):
                graph.replace(node.outputs[0], node.inputs[0], reason="carry", import_missing=True)
        self.carried: dict[Slot, Variable] = {slot: carried[slot] for slot in last}
        # In prediction a statistic stays as it is through all iterations.
        self.moved = [InTraining()(graph.outputs[index], carried[slot]) for slot, index in last.items()]
        self.results = list(graph.outputs[: len(every)])
        self.keys = [
            root
            for root in dict.fromkeys(graph_inputs([*self.results, *self.moved]))
            if isinstance(root, SlotVariable) and root.slot.role is Role.GENERATOR
        ]

    def _hold(self, graph: FunctionGraph) -> None:
        """Take what was drawn and moved before the loop out of it: it has one value for all iterations."""
        inside = set(self.arguments)
        before = []
        for node in graph.toposort():
            if not inside.isdisjoint(node.inputs):
                inside.update(node.outputs)
            elif (uses := _uses(node)) and all(use.ordinal < self.start for use in uses):
                before.append(node.outputs[0])
        #: From what stands for them in the step to the values themselves, which are computed outside.
        self.held: dict[Variable, Variable] = {}
        for value in reversed(before):  # so that none is taken out of another that is held
            if graph.clients.get(value):
                stand_in = value.type()
                graph.replace(value, stand_in, reason="hold", import_missing=True)
                self.held[stand_in] = value

    def build(
        self,
        arguments: Sequence[Variable],
        held: Sequence[Variable],
        carried: Sequence[Variable],
        iteration: Variable | None,
    ) -> Any:
        memo: dict[Any, Any] = dict(zip(self.arguments, arguments, strict=True))
        memo.update(zip(self.held, held, strict=True))
        # No gradient flows through statistics, from one application to the next.
        memo.update(zip(self.carried.values(), map(disconnected_grad, carried), strict=True))
        if iteration is not None:
            memo.update({key: FoldIn()(key, iteration) for key in self.keys})
        every = [*self.results, *self.moved]
        equiv = clone_get_equiv([], every, copy_inputs=False, copy_orphans=False, memo=memo)
        built = [equiv[variable] for variable in every]
        n = len(self.outputs)
        outputs, moved = built[:n], built[len(self.results) :]
        counted = [] if iteration is None else [iteration + np.uint32(1)]
        if self.condition is None:
            return [*outputs, *moved, *counted]
        return [*outputs, *moved, *counted], until(built[n])


def _uses(node: Apply) -> list[Application]:
    """Give the uses of slots that a node stands for."""
    if isinstance(node.op, Draw):
        return [node.inputs[1]] if isinstance(node.inputs[1], DrawNumber) else []
    if isinstance(node.op, Advance):
        return [read for read, _ in Advance.moves(node) if isinstance(read, Reading)]
    return []


def _keep_calls(step: _Step, results: Sequence[Variable]) -> None:
    """Note in a loop which layers its step calls, which number the unnamed among them."""
    for result in results:
        node = result.owner
        if node is not None and isinstance(node.op, Subtensor):
            node = node.inputs[0].owner
        if node is not None and isinstance(node.op, Scan):
            node.op.calls = tuple(step.calls)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, tuple | list) else [value]


def scan(
    fn: Callable[..., Any],
    sequences: Any = None,
    outputs_info: Any = None,
    non_sequences: Any = None,
    n_steps: Any = None,
    *,
    return_list: bool = False,
    **kwargs: Any,
) -> Any:
    """Loop over a step that may draw random numbers and move statistics.

    Draws are other ones in every iteration, and the same in the forward pass, its gradient and any
    recomputation. Statistics go from each iteration to the next, and count as one application of their
    layer. What was drawn or moved before the loop has one value for all iterations.

    Parameters
    ----------
    fn, sequences, outputs_info, non_sequences, n_steps
        As for ``pytensor.scan``, but that `fn` returns no updates. It is called once.
    return_list : bool
        Whether one output comes as a list too.
    **kwargs
        Further arguments of ``pytensor.scan``: ``go_backwards``, ``truncate_gradient``, ``name``, ...

    Returns
    -------
    tensor or list of tensors
        The outputs of all iterations, along the first axis.

    Raises
    ------
    TypeError
        If `fn` returns a dict of updates.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> x = pt.vector("x")
    >>> total = ptml.scan(lambda x_t, before: before + x_t, sequences=x, outputs_info=pt.zeros(()))
    >>> ptml.function([x], total)(np.array([1.0, 2.0, 3.0]))
    array([1., 3., 6.])
    """
    step = _Step(fn)
    rest = _listed(non_sequences)
    sequences = _listed(sequences)
    if kwargs.pop("return_updates", False):
        raise TypeError(RETURNS_UPDATES)
    common = dict(sequences=sequences, n_steps=n_steps, return_updates=False, **kwargs)
    pytensor.scan(step.record, outputs_info=outputs_info, non_sequences=rest, **common)
    held = list(step.held.values())

    # An output that no `outputs_info` speaks of is new in every iteration.
    infos = _listed(outputs_info) or [None] * len(step.outputs)
    readings = [Reading(slot) for slot in step.carried]
    counts = [pt.constant(np.uint32(0))] if step.keys else []

    def carrying(*arguments: Variable) -> Any:
        split = len(arguments) - len(rest) - len(held)
        loop, others = list(arguments[:split]), list(arguments[split:])
        iteration = loop.pop() if step.keys else None
        kept = len(loop) - len(readings)
        return step.build([*loop[:kept], *others[: len(rest)]], others[len(rest) :], loop[kept:], iteration)

    results = pytensor.scan(
        carrying,
        outputs_info=[*infos, *readings, *counts],
        non_sequences=[*rest, *held],
        return_list=True,
        **common,
    )
    _keep_calls(step, results)
    outputs = list(results[: len(step.outputs)])
    if readings:
        final = [moved[-1] for moved in results[len(outputs) : len(outputs) + len(readings)]]
        final = [
            pt.specify_shape(value, read.type.shape) for value, read in zip(final, readings, strict=True)
        ]
        outputs = [Advance()(output, *final, *readings) for output in outputs]
    return outputs if return_list or len(outputs) != 1 else outputs[0]
