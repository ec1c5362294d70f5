"""The way in to the PyTorch kernels."""

from __future__ import annotations

__all__ = ["load"]


def load() -> None:
    """Register the kernels with PyTensor's PyTorch dispatch; a second call does nothing.

    Raises
    ------
    ImportError
        If PyTorch is not installed.
    """
    # Importing a module of kernels registers them.
    from ptml.backends.pytorch import (  # noqa: F401
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
        slices,
    )
