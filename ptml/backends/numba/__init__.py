"""What ptml adds to PyTensor's Numba backend: kernels of its own ops, and nothing for anyone else's."""

from ptml.backends.numba.register import load

__all__ = ["load"]
