"""What is measured: the networks, their data and their first weights, the same for every framework.

Imports nothing but NumPy, since workers of any environment read it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["GROWTH", "LEARNING_RATE", "LEAF", "SIZES", "WORKLOADS", "Workload"]

#: Adam's. Its other numbers are the ones that all frameworks have by default: 0.9, 0.999, 1e-8.
LEARNING_RATE = 1e-3

#: The shape of each leaf whose updates measure the overhead of a call.
LEAF = (8,)


@dataclass(frozen=True)
class Workload:
    """Adam on the cross entropy of a network of dense layers with ReLU between them, in float32.

    Parameters
    ----------
    title : str
    widths : tuple of int
        The sizes of the input, of every hidden layer, and of the output.
    batch : int
    norm : bool
        Whether a batch norm stands before each ReLU.
    dropout : float
        The rate of a dropout after each ReLU; none at 0.
    default : bool
        Whether it is measured unless asked for by name.
    gain : float
        The variance of what a layer's weights make of features of variance 1. Behind many ReLUs 1 lets the
        signal die, and 2 lets rounding grow.
    """

    title: str
    widths: tuple[int, ...]
    batch: int
    norm: bool = False
    dropout: float = 0.0
    default: bool = True
    gain: float = 1.0

    @property
    def layers(self) -> range:
        """The numbers of the dense layers."""
        return range(len(self.widths) - 1)

    def is_hidden(self, layer: int) -> bool:
        """Say whether this dense layer is followed by an activation."""
        return layer < len(self.widths) - 2

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Give a batch: features, and labels as int64."""
        rng = np.random.default_rng(0)
        features = rng.standard_normal((self.batch, self.widths[0]), "float32")
        return features, rng.integers(0, self.widths[-1], self.batch)

    def weights(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Give the first weight ``(n_in, n_out)`` and bias of every dense layer."""
        rng = np.random.default_rng(1)
        pairs = []
        for n_in, n_out in zip(self.widths[:-1], self.widths[1:], strict=True):
            weight = rng.standard_normal((n_in, n_out), "float32")
            weight *= np.sqrt(self.gain / n_in, dtype="float32")
            pairs.append((weight, np.zeros(n_out, "float32")))
        return pairs

    def losses(self, steps: int) -> list[float] | None:
        """Give the losses of the first steps, computed by NumPy in float64.

        Returns
        -------
        list of float, or None
            None where there is no one answer: masks are random, and differ between frameworks.
        """
        if self.norm or self.dropout:
            return None
        features, labels = self.data()
        rows = np.arange(self.batch)
        parameters = [value.astype("float64") for pair in self.weights() for value in pair]
        first = [np.zeros_like(value) for value in parameters]
        second = [np.zeros_like(value) for value in parameters]
        losses = []
        for step in range(1, steps + 1):
            inputs = [features.astype("float64")]
            for layer in self.layers:
                output = inputs[-1] @ parameters[2 * layer] + parameters[2 * layer + 1]
                inputs.append(np.maximum(output, 0) if self.is_hidden(layer) else output)
            logits = inputs.pop()
            logits = logits - logits.max(axis=1, keepdims=True)
            log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            losses.append(float(-log_p[rows, labels].mean()))
            error = np.exp(log_p)
            error[rows, labels] -= 1
            error /= self.batch
            gradients: list[np.ndarray] = []
            for layer in reversed(self.layers):
                gradients[:0] = [inputs[layer].T @ error, error.sum(axis=0)]
                error = (error @ parameters[2 * layer].T) * (inputs[layer] > 0)
            for value, gradient, mean, square in zip(parameters, gradients, first, second, strict=True):
                mean += 0.1 * (gradient - mean)
                square += 0.001 * (gradient**2 - square)
                unbiased = np.sqrt(square / (1 - 0.999**step)) + 1e-8
                value -= LEARNING_RATE * mean / (1 - 0.9**step) / unbiased
        return losses


#: By the names that the command line takes.
WORKLOADS = {
    # Says nothing about speed; the tests run it to see that all of this works.
    "tiny": Workload("MLP tiny", (8, 16, 16, 4), 8, default=False),
    "small": Workload("MLP small", (64, 128, 128, 10), 64),
    "large": Workload("MLP large", (784, 1024, 1024, 10), 256),
    "norm": Workload("MLP small, batch norm, dropout 0.1", (64, 128, 128, 10), 64, norm=True, dropout=0.1),
    "deep": Workload("MLP deep", (64, *[128] * 64, 10), 64, gain=1.5),
}


def _growing(axis: str, depth: int = 4, width: int = 128, batch: int = 64) -> Workload:
    widths = (64, *[width] * depth, 10)
    return Workload(f"growth in {axis}", widths, batch, default=False, gain=1.5)


#: By what grows: its sizes, each with the name of the workload that has it.
GROWTH = {
    "depth": {size: f"depth-{size}" for size in (4, 16, 64)},
    "width": {size: f"width-{size}" for size in (64, 256, 1024)},
    "batch": {size: f"batch-{size}" for size in (64, 256, 1024)},
}
WORKLOADS |= {
    name: _growing(axis, **{axis: size}) for axis, names in GROWTH.items() for size, name in names.items()
}

#: What updates alone are measured on, by name: how many arrays, and their shape.
SIZES = {
    "10": (10, (64, 64)),
    "100": (100, (64, 64)),
    "500": (500, (64, 64)),
    "2 of 8M": (2, (2048, 4096)),
    # For the tests.
    "3 tiny": (3, (4, 4)),
}
