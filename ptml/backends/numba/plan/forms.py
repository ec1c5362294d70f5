"""What elementwise units compute, whatever the sizes: units of one form can be segments of one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import CAReduce, Elemwise

from ptml.backends.numba.plan.codegen.loops import Access, Nest, Result, nest_kernel, segments_kernel
from ptml.backends.numba.plan.lowering import lowered_reduction

__all__ = ["Fit", "Form", "Forms", "Pattern"]

#: How the operands of a flat unit lie: the step of each array, which array each operand is, and the arrays in
#: whose places results are written. No steps stand for numbers alone.
Pattern = tuple[str, tuple[int, ...], tuple[int | None, ...]]


_SINGLE = {1}


@attrs.frozen(eq=False)
class Form:
    """What an elementwise unit computes, whatever the sizes and wherever its operands are.

    Attributes
    ----------
    op : ScalarOp
    inputs : tuple of str
        The dtypes of its operands.
    results : tuple of Result
        What is written: the results that are read, and the reductions over all elements.
    """

    op: ps.ScalarOp
    inputs: tuple[str, ...]
    results: tuple[Result, ...]
    reduces: bool = attrs.field(init=False)
    _kernels: dict[tuple[Pattern, bool], int] = attrs.field(init=False, factory=dict)

    @reduces.default
    def _find_reduction(self) -> bool:
        return any(result.reduction is not None for result in self.results)

    def nest(self, pattern: Pattern) -> Nest:
        """Give the loop nest for operands that lie like this."""
        steps, reads, aliases = pattern
        dtypes = dict(zip(reads, self.inputs, strict=True))
        accesses = tuple(Access(dtypes[k], steps[k : k + 1]) for k in range(len(dtypes)))
        results = tuple(
            attrs.evolve(result, alias=alias, steps=result.steps if steps else "")
            for result, alias in zip(self.results, aliases, strict=True)
        )
        return Nest(self.op, 1 if steps else 0, accesses, reads, results)

    def kernel(self, pattern: Pattern, segmented: bool) -> int:
        """Give the kernel for operands that lie like this, of one unit or of a list of segments.

        Raises
        ------
        Unsupported
            If an op or a dtype of it has no instructions.
        """
        kernel = self._kernels.get((pattern, segmented))
        if kernel is None:
            make = segments_kernel if segmented else nest_kernel
            kernel = self._kernels[pattern, segmented] = make(self.nest(pattern))
        return kernel

    def like(self, reads: tuple[int, ...], aliases: tuple[int | None, ...]) -> Pattern | None:
        """Give a pattern that has a segmented kernel, for a unit of one element, which fits any steps."""
        found = (pattern for pattern, segmented in self._kernels if segmented)
        return next((pattern for pattern in found if pattern[1:] == (reads, aliases)), None)


@attrs.frozen(eq=False)
class Fit:
    """How a unit fits its form.

    Attributes
    ----------
    form : Form
    operands : tuple of int
        The node's input that each operand of the form is.
    outputs : tuple of int
        The unit's output that each result of the form is.
    steps : str
        A letter for each operand: ``"b"`` for a single number, ``"c"`` for an array.
    """

    form: Form
    operands: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: str


class Forms:
    """The forms of a graph's units, each of them once."""

    def __init__(self) -> None:
        # Each with the canonical order of its operands, by what is the same for all its units.
        self._forms: dict[object, tuple[Form, tuple[int, ...]]] = {}
        self._known: dict[object, tuple[Form, tuple[int, ...], tuple[int, ...]]] = {}
        self._orders: dict[ps.ScalarOp, tuple[object, tuple[int, ...], tuple[int, ...]]] = {}
        self._numbers: dict[object, int] = {}

    def copy(self, source: str, target: str) -> Form:
        """Give the form of a copy from one dtype to another."""
        key = (source, target)
        if key not in self._forms:
            result = Result(target, "c", 0, source)
            self._forms[key] = Form(ps.identity, (source,), (result,)), (0,)
        return self._forms[key][0]

    def fit(self, fgraph: FunctionGraph, node: Apply, reductions: Sequence[Apply]) -> Fit | None:
        """Fit a unit to its form, or give None where it is not elementwise, or reduces along some axes only.

        Parameters
        ----------
        fgraph : FunctionGraph
        node : Apply
        reductions : sequence of Apply
            Those of its results that are computed with it.
        """
        if isinstance(node.op, Elemwise):
            op = node.op.scalar_op
            outputs = [
                k
                for k, variable in enumerate(node.outputs)
                if any(client not in reductions for client, _ in fgraph.clients[variable])
            ]
            results: list[tuple[Any, ...]] = [
                (node.outputs[k].type.dtype, "c", k, node.outputs[k].type.dtype) for k in outputs
            ]
        elif isinstance(node.op, CAReduce) and lowered_reduction(node.op) is not None:
            op, results, outputs, reductions = ps.identity, [], [], [node]
        else:
            return None
        for reduction in reductions:
            source, variable = reduction.inputs[0], reduction.outputs[0]
            if variable.type.ndim:
                return None
            dtype = variable.type.dtype
            k = 0 if reduction is node else node.outputs.index(source)
            accumulator = str(np.dtype(getattr(reduction.op, "acc_dtype", None) or dtype))
            kind = lowered_reduction(reduction.op)
            results.append((dtype, "r", k, source.type.dtype, kind, accumulator))
            outputs.append(0 if reduction is node else len(node.outputs) + reductions.index(reduction))
        dtypes = tuple([variable.type.dtype for variable in node.inputs])
        key = (op, dtypes, tuple(results))
        if key not in self._known:
            self._known[key] = self._fitted(op, dtypes, [Result(*result) for result in results])
        form, operands, order = self._known[key]
        steps = "".join(["b" if set(node.inputs[k].type.shape) <= _SINGLE else "c" for k in operands])
        return Fit(form, operands, tuple([outputs[r] for r in order]), steps)

    def _fitted(
        self, op: ps.ScalarOp, dtypes: tuple[str, ...], results: list[Result]
    ) -> tuple[Form, tuple[int, ...], tuple[int, ...]]:
        """Find the form of an op, its operands in the form's order, and its results in that."""
        if not isinstance(op, ps.Composite):
            meaning, operands, sources = op, tuple(range(len(dtypes))), tuple(range(op.nout))
        elif op in self._orders:
            meaning, operands, sources = self._orders[op]
        else:
            meaning, operands, sources = self._orders[op] = self._canonical(op)
        # Results in the order of what they compute.
        place = {source: k for k, source in enumerate(sources)}
        order = sorted(range(len(results)), key=lambda r: (place[results[r].source], results[r].steps))
        written = tuple(attrs.evolve(results[r], source=place[results[r].source]) for r in order)
        key = (meaning, tuple(dtypes[k] for k in operands), written)
        if key not in self._forms:
            own = tuple(attrs.evolve(result, source=sources[result.source]) for result in written)
            self._forms[key] = Form(op, dtypes, own), operands
        form, first = self._forms[key]
        # The form's own operand k stands where this unit has another one.
        mine = tuple(operands[first.index(k)] for k in range(len(dtypes)))
        return form, mine, tuple(order)

    def _described(self, graph: Any, describe: Callable[[Variable], object]) -> dict[Variable, int]:
        """Give a number for each variable of a scalar graph: the same where the same is computed."""
        known: dict[Variable, int] = {variable: self._number(describe(variable)) for variable in graph.inputs}

        def of(variable: Variable) -> int:
            if variable not in known:
                assert isinstance(variable, Constant)
                known[variable] = self._number((variable.type.dtype, np.asarray(variable.data).tobytes()))
            return known[variable]

        for node in graph.toposort():
            operands = [of(variable) for variable in node.inputs]
            if _swaps(node):
                operands.sort()
            for k, output in enumerate(node.outputs):
                known[output] = self._number((node.op, k, output.type.dtype, *operands))
        for output in graph.outputs:
            of(output)
        return known

    def _number(self, description: object) -> int:
        return self._numbers.setdefault(description, len(self._numbers))

    def _canonical(self, op: ps.Composite) -> tuple[object, tuple[int, ...], tuple[int, ...]]:
        """Describe what a composite computes, and put its operands and results in an order of their own.

        Fusion lists the operands of equal computations in whatever order it finds them in.

        Returns
        -------
        meaning
            Equal for ops that compute the same from operands in this order.
        operands, results : tuple of int
            The op's operands and results in this order.
        """
        graph = op.fgraph
        loose = self._described(graph, lambda variable: variable.type.dtype)
        results = sorted(range(len(graph.outputs)), key=lambda k: loose[graph.outputs[k]])
        met: dict[Variable, int] = {}
        seen = set()
        waiting = [graph.outputs[k] for k in reversed(results)]
        while waiting:
            variable = waiting.pop()
            if variable in seen:
                continue
            seen.add(variable)
            if variable.owner is not None:
                operands = variable.owner.inputs
                if _swaps(variable.owner):
                    operands = sorted(operands, key=loose.__getitem__)
                waiting += reversed(operands)
            elif not isinstance(variable, Constant):
                met[variable] = len(met)
        for variable in graph.inputs:
            met.setdefault(variable, len(met))
        exact = self._described(graph, lambda variable: (met[variable], variable.type.dtype))
        meaning = tuple(exact[graph.outputs[k]] for k in results)
        order = sorted(range(len(graph.inputs)), key=lambda k: met[graph.inputs[k]])
        return meaning, tuple(order), tuple(results)


def _swaps(node: Any) -> bool:
    """Say whether a node gives the same, to the last bit, when its operands change places."""
    return len(node.inputs) == 2 and isinstance(node.op, ps.Add | ps.Mul)
