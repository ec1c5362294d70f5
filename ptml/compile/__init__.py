"""The compile step: from a graph with slots to a live program."""

from ptml.compile.function import compile_predict, function
from ptml.compile.loops import scan
from ptml.compile.program import Program, Timings

__all__ = ["Program", "Timings", "compile_predict", "function", "scan"]
