"""What ptml adds to PyTensor's MLX backend: kernels of its own ops, and nothing for anyone else's."""

from ptml.backends.mlx.register import load

__all__ = ["load"]
