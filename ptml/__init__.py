"""Deep learning on PyTensor with immutable layers, and all state in one explicit tree."""

from ptml import random
from ptml.compile import Program, Timings, compile_predict, function, scan
from ptml.declare import generator, parameter, slot, statistic, sublayer
from ptml.layer import Layer
from ptml.marks import advance, in_training
from ptml.module import Module
from ptml.network import replace, select, walk
from ptml.start import init, slots

__version__ = "0.1.0"

__all__ = [
    "Layer",
    "Module",
    "Program",
    "Timings",
    "advance",
    "compile_predict",
    "function",
    "generator",
    "in_training",
    "init",
    "parameter",
    "random",
    "replace",
    "scan",
    "select",
    "slot",
    "slots",
    "statistic",
    "sublayer",
    "walk",
]
