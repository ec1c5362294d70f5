"""An LSTM over sequences, and a dense layer on its last output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.benchmarks.workloads.base import Arrays, Workload, entropy, scaled

__all__ = ["Recurrent"]

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Recurrent(Workload):
    """An LSTM, ``lstm/W_ih``, ``lstm/W_hh`` and ``lstm/b``, then ``fc`` on the output of the last step.

    The gates lie side by side in the order input, forget, candidate, output.

    Parameters
    ----------
    length : int
        The number of steps.
    n_in, n_hidden : int
    """

    length: int
    n_in: int
    n_hidden: int

    @property
    def shown(self) -> str:
        return f"{self.length} steps, {self.n_in} in, {self.n_hidden} hidden, batch {self.batch}"

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        features = rng.standard_normal((self.batch, self.length, self.n_in), "float32")
        return features, rng.integers(0, CLASSES, self.batch)

    def weights(self) -> Arrays:
        rng = np.random.default_rng(1)
        gates = 4 * self.n_hidden
        return {
            "lstm/W_ih": scaled(rng, self.n_in, gates),
            "lstm/W_hh": scaled(rng, self.n_hidden, gates),
            "lstm/b": np.zeros(gates, "float32"),
            "fc/W": scaled(rng, self.n_hidden, CLASSES),
            "fc/b": np.zeros(CLASSES, "float32"),
        }

    def gradients(self, weights: Arrays, features: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
        W_ih, W_hh = weights["lstm/W_ih"], weights["lstm/W_hh"]
        hidden = cell = np.zeros((len(features), self.n_hidden))
        kept = []
        for k in range(self.length):
            z = features[:, k] @ W_ih + hidden @ W_hh + weights["lstm/b"]
            before = hidden, cell
            write, keep, new, show = np.split(z, 4, axis=1)
            write, keep, new, show = _sigmoid(write), _sigmoid(keep), np.tanh(new), _sigmoid(show)
            cell = keep * cell + write * new
            hidden = show * np.tanh(cell)
            kept.append((*before, write, keep, new, show, np.tanh(cell)))
        loss, error = entropy(hidden @ weights["fc/W"] + weights["fc/b"], labels)
        gradients = {name: np.zeros_like(weights[name]) for name in ("lstm/W_ih", "lstm/W_hh", "lstm/b")}
        gradients |= {"fc/W": hidden.T @ error, "fc/b": error.sum(axis=0)}
        by_hidden, by_cell = error @ weights["fc/W"].T, np.zeros_like(cell)
        for k in reversed(range(self.length)):
            hidden, cell, write, keep, new, show, seen = kept[k]
            by_cell = by_cell + by_hidden * show * (1 - seen**2)
            by_gates = [
                by_cell * new * write * (1 - write),
                by_cell * cell * keep * (1 - keep),
                by_cell * write * (1 - new**2),
                by_hidden * seen * show * (1 - show),
            ]
            by_z = np.concatenate(by_gates, axis=1)
            gradients["lstm/W_ih"] += features[:, k].T @ by_z
            gradients["lstm/W_hh"] += hidden.T @ by_z
            gradients["lstm/b"] += by_z.sum(axis=0)
            by_hidden, by_cell = by_z @ W_hh.T, by_cell * keep
        return loss, gradients


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
