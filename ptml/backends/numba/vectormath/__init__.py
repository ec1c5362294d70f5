"""Elementary functions as LLVM instructions that LLVM's loop vectorizer turns into vector code."""

from ptml.backends.numba.vectormath.functions import ARITY, BOUNDS, SUPPORTED, emit

__all__ = ["ARITY", "BOUNDS", "SUPPORTED", "emit"]
