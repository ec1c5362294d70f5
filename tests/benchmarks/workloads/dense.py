"""Dense layers with ReLU between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tests.benchmarks.workloads.base import Arrays, Workload, entropy, scaled

__all__ = ["Dense"]


@dataclass(frozen=True, kw_only=True)
class Dense(Workload):
    """Dense layers, ``fc0/W`` and ``fc0/b`` and so on, with ReLU between them.

    Parameters
    ----------
    widths : tuple of int
        The sizes of the input, of every hidden layer, and of the output.
    norm : bool
        Whether a batch norm stands before each ReLU.
    dropout : float
        The rate of a dropout after each ReLU; none at 0.
    gain : float
        The variance of what a layer's weights make of features of variance 1. Behind many ReLUs 1 lets the
        signal die, and 2 lets rounding grow.
    """

    widths: tuple[int, ...]
    norm: bool = False
    dropout: float = 0.0
    gain: float = 1.0

    @property
    def shown(self) -> str:
        return f"{_shown(self.widths)}, batch {self.batch}"

    @property
    def is_random(self) -> bool:
        return self.norm or self.dropout > 0

    @property
    def layers(self) -> range:
        """The numbers of the dense layers."""
        return range(len(self.widths) - 1)

    def is_hidden(self, layer: int) -> bool:
        """Say whether this dense layer is followed by an activation."""
        return layer < len(self.widths) - 2

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        features = rng.standard_normal((self.batch, self.widths[0]), "float32")
        return features, rng.integers(0, self.widths[-1], self.batch)

    def weights(self) -> Arrays:
        rng = np.random.default_rng(1)
        weights = {}
        for k in self.layers:
            weights[f"fc{k}/W"] = scaled(rng, self.widths[k], self.widths[k + 1], gain=self.gain)
            weights[f"fc{k}/b"] = np.zeros(self.widths[k + 1], "float32")
        return weights

    def gradients(self, weights: Arrays, features: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
        inputs = [features]
        for k in self.layers:
            output = inputs[-1] @ weights[f"fc{k}/W"] + weights[f"fc{k}/b"]
            inputs.append(np.maximum(output, 0) if self.is_hidden(k) else output)
        loss, error = entropy(inputs.pop(), labels)
        gradients: Arrays = {}
        for k in reversed(self.layers):
            gradients[f"fc{k}/W"] = inputs[k].T @ error
            gradients[f"fc{k}/b"] = error.sum(axis=0)
            error = (error @ weights[f"fc{k}/W"].T) * (inputs[k] > 0)
        return loss, gradients


def _shown(widths: Sequence[int]) -> str:
    """Write widths, those that repeat as a number of times."""
    runs = [(width, len(list(same))) for width, same in groupby(widths)]
    return "-".join(f"{n}x{width}" if n > 2 else "-".join([str(width)] * n) for width, n in runs)
