"""The way in to the MLX kernels."""

from __future__ import annotations

__all__ = ["load"]


def load() -> None:
    """Register the kernels with PyTensor's MLX dispatch; a second call does nothing.

    Raises
    ------
    ImportError
        If MLX is not installed.
    """
    # Importing a module of kernels registers them.
    from ptml.backends.mlx import (  # noqa: F401
        attention,
        bits,
        checks,
        convolution,
        labels,
        loops,
        pooling,
        recompute,
        resizing,
        rng,
    )
