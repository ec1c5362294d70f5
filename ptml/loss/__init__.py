"""Losses: frozen values that are called as ``loss(prediction, target)``."""

from ptml.loss.base import Loss
from ptml.loss.binary import BinaryCrossEntropy
from ptml.loss.classification import CrossEntropy, KLDivergence
from ptml.loss.regression import AbsoluteError, Huber, SquaredError
from ptml.loss.supervised import supervised_loss

__all__ = [
    "AbsoluteError",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Huber",
    "KLDivergence",
    "Loss",
    "SquaredError",
    "supervised_loss",
]
