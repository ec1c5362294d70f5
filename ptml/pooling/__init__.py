"""Pooling: the largest or the mean of what stands in each window, as fused ops."""

from ptml.pooling.average import AveragePool, AveragePoolGradient
from ptml.pooling.maximum import MaxPool, MaxPoolGradient, MaxPoolPick
from ptml.pooling.windows import Even, Sliding

__all__ = [
    "AveragePool",
    "AveragePoolGradient",
    "Even",
    "MaxPool",
    "MaxPoolGradient",
    "MaxPoolPick",
    "Sliding",
]
