"""Layers."""

from ptml.layers.attention import CausalSelfAttention, MultiheadAttention
from ptml.layers.branches import Parallel, Residual
from ptml.layers.checkpoint import Checkpoint
from ptml.layers.combinators import Sequential
from ptml.layers.convolution import Conv1D, Conv2D, Conv3D
from ptml.layers.dropout import AlphaDropout, Dropout, DropPath, SpatialDropout
from ptml.layers.embedding import Embedding
from ptml.layers.feature_norm import GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from ptml.layers.feed_forward import FeedForward
from ptml.layers.function import Lambda
from ptml.layers.global_pooling import (
    AdaptiveAvgPool1D,
    AdaptiveAvgPool2D,
    AdaptiveAvgPool3D,
    AdaptiveMaxPool1D,
    AdaptiveMaxPool2D,
    AdaptiveMaxPool3D,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalAvgPool3D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    GlobalMaxPool3D,
)
from ptml.layers.input import Input
from ptml.layers.linear import Linear
from ptml.layers.low_rank import LowRank
from ptml.layers.norm import BatchNorm
from ptml.layers.padding import (
    CircularPad1D,
    CircularPad2D,
    CircularPad3D,
    ConstantPad1D,
    ConstantPad2D,
    ConstantPad3D,
    ReflectionPad1D,
    ReflectionPad2D,
    ReflectionPad3D,
    ReplicationPad1D,
    ReplicationPad2D,
    ReplicationPad3D,
    ZeroPad1D,
    ZeroPad2D,
    ZeroPad3D,
)
from ptml.layers.pooling import (
    AvgPool1D,
    AvgPool2D,
    AvgPool3D,
    LpPool1D,
    LpPool2D,
    LpPool3D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
)
from ptml.layers.positions import LearnedPositions, SinusoidalPositions
from ptml.layers.recurrent import Recurrent
from ptml.layers.recurrent_cells import ElmanCell, GRUCell, LSTMCell, RecurrentCell
from ptml.layers.recurrent_ends import Bidirectional, LastStep
from ptml.layers.recurrent_named import GRU, LSTM, RNN
from ptml.layers.relative_positions import RotaryPositions, alibi_bias
from ptml.layers.repeat import Repeat
from ptml.layers.resizing import Upsample1D, Upsample2D, Upsample3D
from ptml.layers.scaling import Standardize
from ptml.layers.scanned import Scanned
from ptml.layers.shape import Concatenate, Flatten, Squeeze
from ptml.layers.transformer import (
    TransformerBlock,
    TransformerDecoder,
    TransformerDecoderBlock,
    TransformerEncoder,
)
from ptml.layers.transposed_convolution import ConvTranspose1D, ConvTranspose2D, ConvTranspose3D
from ptml.layers.weight_norm import SpectralNorm, WeightNorm
from ptml.ops.attention import scaled_dot_product_attention

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool1D",
    "AdaptiveAvgPool2D",
    "AdaptiveAvgPool3D",
    "AdaptiveMaxPool1D",
    "AdaptiveMaxPool2D",
    "AdaptiveMaxPool3D",
    "AlphaDropout",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "BatchNorm",
    "Bidirectional",
    "CausalSelfAttention",
    "Checkpoint",
    "CircularPad1D",
    "CircularPad2D",
    "CircularPad3D",
    "Concatenate",
    "ConstantPad1D",
    "ConstantPad2D",
    "ConstantPad3D",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "ConvTranspose1D",
    "ConvTranspose2D",
    "ConvTranspose3D",
    "DropPath",
    "Dropout",
    "ElmanCell",
    "Embedding",
    "FeedForward",
    "Flatten",
    "GRUCell",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GroupNorm",
    "Input",
    "InstanceNorm",
    "LSTMCell",
    "Lambda",
    "LastStep",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "LowRank",
    "LpPool1D",
    "LpPool2D",
    "LpPool3D",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MultiheadAttention",
    "Parallel",
    "RMSNorm",
    "Recurrent",
    "RecurrentCell",
    "ReflectionPad1D",
    "ReflectionPad2D",
    "ReflectionPad3D",
    "Repeat",
    "ReplicationPad1D",
    "ReplicationPad2D",
    "ReplicationPad3D",
    "Residual",
    "RotaryPositions",
    "Scanned",
    "Sequential",
    "SinusoidalPositions",
    "SpatialDropout",
    "SpectralNorm",
    "Squeeze",
    "Standardize",
    "TransformerBlock",
    "TransformerDecoder",
    "TransformerDecoderBlock",
    "TransformerEncoder",
    "Upsample1D",
    "Upsample2D",
    "Upsample3D",
    "WeightNorm",
    "ZeroPad1D",
    "ZeroPad2D",
    "ZeroPad3D",
    "alibi_bias",
    "scaled_dot_product_attention",
]
