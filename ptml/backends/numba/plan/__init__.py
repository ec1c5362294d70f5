"""The plan: a rewritten graph as a table of kernels over planned memory, as a PyTensor linker and mode."""

from ptml.backends.numba.plan.linker import PLAN, PlanLinker

__all__ = ["PLAN", "PlanLinker"]
