"""Metrics: how good predictions are, over any number of batches."""

from ptml.metrics.average import Average, Perplexity
from ptml.metrics.base import Metric
from ptml.metrics.classification import Accuracy, BinaryAccuracy, TopKAccuracy
from ptml.metrics.confusion import F1, ConfusionMatrix, Precision, Recall
from ptml.metrics.regression import R2, MeanAbsoluteError, MeanSquaredError, RootMeanSquaredError

__all__ = [
    "Accuracy",
    "Average",
    "BinaryAccuracy",
    "ConfusionMatrix",
    "F1",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "Perplexity",
    "Precision",
    "R2",
    "Recall",
    "RootMeanSquaredError",
    "TopKAccuracy",
]
