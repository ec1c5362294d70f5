"""Pooling: the largest or the mean of what stands in each window, as fused ops."""

from ptml.ops.pooling.average import AveragePool, AveragePoolGradient
from ptml.ops.pooling.maximum import MaxPool, MaxPoolGradient, MaxPoolPick
from ptml.ops.pooling.windows import Even, Sliding

__all__ = [
    "AveragePool",
    "AveragePoolGradient",
    "Even",
    "MaxPool",
    "MaxPoolGradient",
    "MaxPoolPick",
    "Sliding",
]
