"""What ptml adds to PyTensor's PyTorch backend: kernels of its own ops, and nothing for anyone else's."""

from ptml.backends.pytorch.register import load

__all__ = ["load"]
