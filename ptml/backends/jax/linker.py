"""PyTensor's JAX linker, with the state donated: a call is one call of JAX, which writes new values over old.

Each cell that a program updates is an argument whose memory JAX may take over for its new value, so a step
neither allocates the state anew nor moves it. An array that was in a cell is gone after the call; what a
`Store` reads out is a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter, setitem
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.link.basic import Container
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.utils import map_storage, raise_with_op

__all__ = ["DonatingJAXLinker", "DonatingVM"]

_value = itemgetter(0)


class DonatingJAXLinker(JAXLinker):
    """Links a graph as one function under ``jax.jit``, to which the cells that it updates are donated."""

    def make_all(
        self, input_storage: Any = None, output_storage: Any = None, storage_map: Any = None
    ) -> tuple[DonatingVM, list[Container], list[Container], list[Any], list[Apply]]:
        fgraph = self.fgraph
        order = self.schedule(fgraph)
        input_storage, output_storage, storage_map = map_storage(
            fgraph, order, input_storage, output_storage, storage_map
        )
        convert = self.fgraph_convert(
            fgraph,
            order=order,
            input_storage=input_storage,
            output_storage=output_storage,
            storage_map=storage_map,
        )
        self.create_thunk_inputs(storage_map)
        vm = DonatingVM(fgraph, convert, input_storage, output_storage, self.scalar_shape_inputs)
        vm.storage_map = storage_map
        inputs = [Container(v, s) for v, s in zip(fgraph.inputs, input_storage, strict=True)]
        outputs = [
            Container(v, s, readonly=True) for v, s in zip(fgraph.outputs, output_storage, strict=True)
        ]
        return vm, inputs, outputs, [vm], order


class DonatingVM:
    """Runs a graph by one call of JAX, and leaves the new values in their cells.

    Parameters
    ----------
    fgraph : FunctionGraph
    compute : callable
        From the graph's inputs to a tuple of its outputs, to be traced by JAX.
    input_storage, output_storage : sequence of list
        PyTensor's one-element lists, where inputs are found, cells among them, and results left.
    static : sequence of int
        Inputs that are shapes, for each value of which JAX compiles anew.
    """

    #: Cells are written here, and nothing has to be cleared: PyTensor then does nothing for each leaf.
    need_update_inputs = False
    allow_gc = False
    lazy = False
    #: What copying a function asks for.
    storage_map: Any = None

    def __init__(
        self,
        fgraph: FunctionGraph,
        compute: Callable[..., Any],
        input_storage: Sequence[list],
        output_storage: Sequence[list],
        static: Sequence[int] = (),
    ) -> None:
        self.fgraph = fgraph
        self.inputs, self.outputs = list(input_storage), list(output_storage)
        self._compute = compute
        self._static = tuple(static)
        mapping = fgraph.update_mapping or {}
        self._n_results = len(fgraph.outputs) - len(mapping)
        self._updated = [mapping[k] for k in range(self._n_results, len(fgraph.outputs))]
        self._cells = [self.inputs[k] for k in self._updated]
        self._results = self.outputs[: self._n_results]
        self._kept: Callable[..., Any] | None = None
        self._donated: Callable[..., Any] | None = None

    def __call__(self) -> list[Any]:
        try:
            outputs = self._function()(*self._arguments())
        except Exception:
            raise_with_op(self.fgraph, self._blamed(), self)
        results = list(outputs[: self._n_results])
        _write(self._cells, outputs[self._n_results :])
        _write(self._results, results)
        return results

    def _arguments(self) -> Iterable[Any]:
        values = map(_value, self.inputs)
        return [int(x) if k in self._static else x for k, x in enumerate(values)] if self._static else values

    def _blamed(self) -> Apply:
        """Give a node for PyTensor's note on an error, which may come from any."""
        return next(v.owner for v in self.fgraph.outputs if v.owner is not None)

    def _function(self) -> Callable[..., Any]:
        """Give what JAX compiled: with donation, unless a call may fail when it is under way."""
        import jax

        if self._kept is None:
            traced = self._traced
            kept = jax.jit(traced, static_argnums=self._static)
            # JAX keeps the trace, for the call that follows. A check of shapes may raise in it.
            jaxpr = kept.trace(*self._arguments()).jaxpr
            donated = () if _calls_python(jaxpr) else self._updated
            self._donated = jax.jit(traced, static_argnums=self._static, donate_argnums=donated)
            self._kept = kept
        if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
            # JAX runs a call again to find out where the first of them came from.
            return self._kept
        return self._donated  # type: ignore[return-value]

    def _traced(self, *inputs: Any) -> tuple[Any, ...]:
        from jax.lax import convert_element_type

        outputs = self._compute(*inputs)
        new = [
            convert_element_type(value, inputs[k].dtype)
            for value, k in zip(outputs[self._n_results :], self._updated, strict=True)
        ]
        return (*outputs[: self._n_results], *new)


def _write(storages: Iterable[list], values: Iterable[Any]) -> None:
    deque(map(setitem, storages, repeat(0), values), maxlen=0)


def _calls_python(jaxpr: Any) -> bool:
    """Say whether a traced function calls back into Python, which may raise."""
    for equation in jaxpr.eqns:
        if "callback" in equation.primitive.name:
            return True
        for parameter in equation.params.values():
            for part in parameter if isinstance(parameter, list | tuple) else [parameter]:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns") and _calls_python(inner):
                    return True
    return False
