"""What every workload has: data, first weights, and NumPy's losses to compare with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import numpy as np

__all__ = ["LEARNING_RATE", "Arrays", "Workload", "entropy", "scaled"]

#: Adam's. Its other numbers are the ones that all frameworks have by default: 0.9, 0.999, 1e-8.
LEARNING_RATE = 1e-3

#: Arrays by name: weights, or gradients of the loss by each of them.
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """Adam on the cross entropy of integer labels, in float32.

    Parameters
    ----------
    title : str
    batch : int
    default : bool
        Whether it is measured unless asked for by name.
    """

    title: str
    batch: int
    default: bool = True

    @property
    @abstractmethod
    def shown(self) -> str:
        """The sizes, as the tables show them."""

    @abstractmethod
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Give a batch: features, and labels as int64."""

    @abstractmethod
    def weights(self) -> Arrays:
        """Give the first weights by name: dense ones ``(n_in, n_out)``, kernels channels last."""

    @abstractmethod
    def gradients(self, weights: Arrays, features: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
        """Give the loss and its gradients, computed by NumPy in the weights' precision."""

    @property
    def is_random(self) -> bool:
        """Whether there is no one answer: masks are random, and differ between frameworks."""
        return False

    def losses(self, steps: int) -> list[float] | None:
        """Give the losses of the first steps, computed by NumPy in float64; None where it is random."""
        return None if self.is_random else _losses(self, steps)


@cache
def _losses(workload: Workload, steps: int) -> list[float]:
    features, labels = workload.data()
    if features.dtype == np.float32:
        features = features.astype("float64")
    weights = {name: value.astype("float64") for name, value in workload.weights().items()}
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    losses = []
    for step in range(1, steps + 1):
        loss, gradients = workload.gradients(weights, features, labels)
        losses.append(loss)
        for name, gradient in gradients.items():
            first[name] += 0.1 * (gradient - first[name])
            second[name] += 0.001 * (gradient**2 - second[name])
            unbiased = np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8
            weights[name] -= LEARNING_RATE * first[name] / (1 - 0.9**step) / unbiased
    return losses


def entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Give the mean cross entropy over all rows, and its gradient by the logits."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    picked = labels[..., None]
    error = np.exp(log_p)
    np.put_along_axis(error, picked, np.take_along_axis(error, picked, -1) - 1, -1)
    return float(-np.take_along_axis(log_p, picked, -1).mean()), error / labels.size


def scaled(rng: np.random.Generator, *shape: int, gain: float = 1.0) -> np.ndarray:
    """Draw a weight that makes of features of variance 1 ones of variance `gain`."""
    weight = rng.standard_normal(shape, "float32")
    weight *= np.sqrt(gain / np.prod(shape[:-1]), dtype="float32")
    return weight
