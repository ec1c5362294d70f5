"""What ptml adds to PyTensor's JAX backend: kernels of its own ops, and nothing for anyone else's."""

from ptml.backends.jax.register import load

__all__ = ["load"]
