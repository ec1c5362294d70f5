"""Deep learning on PyTensor with immutable layers, and all state in one explicit tree."""

from ptml import activations, data, generation, initializers, layers, loss, metrics, optim, random, surgery
from ptml.checking import check_gradients, compare_backends
from ptml.compile import Program, Timings, compile_predict, function, scan
from ptml.config import ConfigError, from_config, load_network, register, save_network, to_config
from ptml.data import DataLoader
from ptml.declare import generator, parameter, slot, statistic, sublayer
from ptml.ensembles import stack_members, unstack_members, vectorize
from ptml.generation import compile_decode, generate
from ptml.layer import Layer
from ptml.looking import capture, summary
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
    "capture",
    "check_gradients",
    "compare_backends",
    "compile_evaluate",
    "compile_decode",
    "compile_predict",
    "data",
    "fit",
    "from_config",
    "function",
    "generate",
    "generation",
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
    "summary",
    "stack_members",
    "surgery",
    "to_config",
    "unstack_members",
    "vectorize",
    "walk",
]
