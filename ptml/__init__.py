"""Deep learning on PyTensor with immutable layers, and all state in one explicit tree."""

from ptml import activations, data, initializers, layers, loss, metrics, optim, random, surgery
from ptml.compile import Program, Timings, compile_predict, function, scan
from ptml.config import ConfigError, from_config, load_network, register, save_network, to_config
from ptml.data import DataLoader
from ptml.declare import generator, parameter, slot, statistic, sublayer
from ptml.layer import Layer
from ptml.marks import advance, in_training
from ptml.module import Module
from ptml.network import replace, select, walk
from ptml.start import init, slots
from ptml.threads import get_threads, set_threads
from ptml.training import compile_evaluate, fit

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataLoader",
    "Layer",
    "Module",
    "Program",
    "Timings",
    "activations",
    "advance",
    "compile_evaluate",
    "compile_predict",
    "data",
    "fit",
    "from_config",
    "function",
    "generator",
    "get_threads",
    "in_training",
    "init",
    "initializers",
    "layers",
    "load_network",
    "loss",
    "metrics",
    "optim",
    "parameter",
    "random",
    "register",
    "replace",
    "save_network",
    "scan",
    "select",
    "set_threads",
    "slot",
    "slots",
    "statistic",
    "sublayer",
    "surgery",
    "to_config",
    "walk",
]
