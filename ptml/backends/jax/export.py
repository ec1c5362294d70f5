"""A PyTensor graph as a plain JAX function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from pytensor.graph.fg import FunctionGraph

__all__ = ["jax_function"]


def jax_function(graph: FunctionGraph) -> Callable[..., Any]:
    """Convert a graph, after PyTensor's rewrites for JAX.

    Parameters
    ----------
    graph : FunctionGraph
        It is rewritten in place.

    Returns
    -------
    callable
        From the graph's inputs to a tuple of its outputs, untraced. Where JAX has no 64-bit numbers, those of
        the graph are 32-bit ones, without a warning for each.
    """
    import jax.numpy as jnp
    from pytensor.link.jax.dispatch import jax_funcify

    from ptml.backends.jax import load
    from ptml.backends.jax.mode import JAX
    from ptml_state import register_jax

    load()
    register_jax()
    JAX.optimizer.rewrite(graph)
    compute = jax_funcify(graph)

    def without_warnings(*inputs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
            # Some of what is converted asks arrays for methods that only JAX's own have.
            return compute(*map(jnp.asarray, inputs))

    return without_warnings
