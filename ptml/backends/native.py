"""Fused ops that a backend has a kernel for: they stay one node on it, and all others become their graphs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply

from ptml.backends.everywhere import everywhere
from ptml.fused import EXPAND, EXPAND_POSITION, Fused, known_to_pytensor

__all__ = ["keeping_native", "native"]

Takes = Callable[[Apply], bool]

#: By backend: the ops that it has kernels for, and whether they take a node.
_KERNELS: dict[str, dict[type[Fused], Takes]] = {"jax": {}, "mlx": {}, "pytorch": {}}


def _any_node(node: Apply) -> bool:
    return True


def native(
    backend: str, op: type[Fused], takes: Takes = _any_node
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as what converts a fused op for a backend.

    Parameters
    ----------
    backend : {"jax", "mlx", "pytorch"}
    op : type of Fused
    takes : callable, optional
        Says of a node whether the kernel computes what the op's graph does, to the last promise: every
        node unless given. Nodes that it does not take become their graphs.

    Returns
    -------
    callable
        A decorator. What it decorates is as PyTensor's own dispatch has it: ``convert(op, node, **kwargs)``
        gives a function of the backend's arrays.

    Examples
    --------
    >>> from ptml.backends.native import native
    >>> from ptml.fused import Fused
    >>> class Doubled(Fused):
    ...     def build(self, x):
    ...         return [x + x]
    >>> @native("jax", Doubled, takes=lambda node: node.inputs[0].type.ndim == 1)
    ... def jax_doubled(op, node, **kwargs):
    ...     return lambda x: 2 * x
    """

    def register(convert: Callable[..., Any]) -> Callable[..., Any]:
        _dispatch(backend).register(op)(convert)
        _KERNELS[backend][op] = takes
        return convert

    return register


def keeping_native(mode: Mode, backend: str) -> Mode:
    """Give a mode that leaves those fused ops alone that its backend has kernels for.

    Parameters
    ----------
    mode : Mode
    backend : {"jax", "mlx", "pytorch"}
    """
    kernels = _KERNELS[backend]

    def has_none(node: Apply) -> bool:
        takes = kernels.get(type(node.op))
        return takes is None or not takes(node)

    expand_others = everywhere(Fused, has_none, lambda node: node.op.build(*node.inputs))
    # A query that leaves out a name claims it: PyTensor would take no rewrite of that name afterwards.
    known_to_pytensor()
    return mode.excluding(EXPAND).register((expand_others, EXPAND_POSITION))


def _dispatch(backend: str) -> Any:
    module = importlib.import_module(f"pytensor.link.{backend}.dispatch.basic")
    return getattr(module, f"{backend}_funcify")
