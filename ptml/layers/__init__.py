"""Layers."""

from ptml.layers.branches import Parallel, Residual
from ptml.layers.combinators import Sequential
from ptml.layers.dropout import AlphaDropout, Dropout, DropPath, SpatialDropout
from ptml.layers.embedding import Embedding
from ptml.layers.feature_norm import GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from ptml.layers.function import Lambda
from ptml.layers.input import Input
from ptml.layers.linear import Linear
from ptml.layers.low_rank import LowRank
from ptml.layers.norm import BatchNorm
from ptml.layers.positions import LearnedPositions, SinusoidalPositions
from ptml.layers.relative_positions import RotaryPositions, alibi_bias
from ptml.layers.repeat import Repeat
from ptml.layers.shape import Concatenate, Flatten, Squeeze

__all__ = [
    "AlphaDropout",
    "BatchNorm",
    "Concatenate",
    "DropPath",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Input",
    "InstanceNorm",
    "Lambda",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "LowRank",
    "Parallel",
    "RMSNorm",
    "Repeat",
    "Residual",
    "RotaryPositions",
    "Sequential",
    "SinusoidalPositions",
    "SpatialDropout",
    "Squeeze",
    "alibi_bias",
]
