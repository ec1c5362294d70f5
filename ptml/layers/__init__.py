"""Layers."""

from ptml.layers.combinators import Sequential
from ptml.layers.dropout import Dropout
from ptml.layers.input import Input
from ptml.layers.linear import Linear
from ptml.layers.norm import BatchNorm
from ptml.layers.shape import Concatenate, Flatten, Squeeze

__all__ = ["BatchNorm", "Concatenate", "Dropout", "Flatten", "Input", "Linear", "Sequential", "Squeeze"]
