"""The ops that are registered from the start, a room for each family."""

from ptml.graphs.ops import indexing, linear_algebra, nested, own, randoms, scalars, tensors, windows

__all__ = ["indexing", "linear_algebra", "nested", "own", "randoms", "scalars", "tensors", "windows"]
