"""The way in to the JAX kernels."""

from __future__ import annotations

__all__ = ["load"]


def load() -> None:
    """Register the kernels with PyTensor's JAX dispatch; a second call does nothing.

    Raises
    ------
    ImportError
        If JAX is not installed.
    """
    # Importing a module of kernels registers them.
    from ptml.backends.jax import (  # noqa: F401
        attention,
        bits,
        checks,
        convolution,
        labels,
        loops,
        padding,
        pooling,
        recompute,
        rng,
        sizes,
    )
