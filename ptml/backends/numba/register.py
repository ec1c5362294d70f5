"""The way in to the Numba kernels."""

from __future__ import annotations

__all__ = ["load"]


def load() -> None:
    """Register the kernels with PyTensor's Numba dispatch; a second call does nothing.

    Raises
    ------
    ImportError
        If Numba is not installed.
    """
    # Importing a module of kernels registers them.
    from ptml.backends.numba import bits, checks, labels, recompute, rng  # noqa: F401
