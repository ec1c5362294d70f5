"""Deep learning on PyTensor with immutable layers, and all state in one explicit tree."""

from ptml import activations, data, initializers, layers, loss, optim, random
from ptml.compile import Program, Timings, compile_predict, function, scan
from ptml.data import DataLoader
from ptml.declare import generator, parameter, slot, statistic, sublayer
from ptml.layer import Layer
from ptml.marks import advance, in_training
from ptml.module import Module
from ptml.network import replace, select, walk
from ptml.start import init, slots

__version__ = "0.1.0"

__all__ = [
    "DataLoader",
    "Layer",
    "Module",
    "Program",
    "Timings",
    "activations",
    "advance",
    "compile_predict",
    "data",
    "function",
    "generator",
    "in_training",
    "init",
    "initializers",
    "layers",
    "loss",
    "optim",
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
