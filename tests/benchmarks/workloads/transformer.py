"""An embedding, one transformer block with causal attention, and a dense layer over the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.benchmarks.workloads.base import Arrays, Workload, entropy, scaled

__all__ = ["Transformer"]

#: Of both layer norms.
EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class Transformer(Workload):
    """Tokens that foretell the next one: an embedding, a block with its norms first, and a dense layer.

    The weights are ``tokens/W``, ``norm1/scale``, ``norm1/shift``, ``query/W`` and the other dense layers
    ``key``, ``value``, ``out``, ``norm2``, ``fc1``, ``fc2`` (with the tanh form of GELU between them) and
    ``head``.

    Parameters
    ----------
    length : int
        The number of tokens in a sequence.
    width, heads, hidden, vocabulary : int
        The size of a token's features, the number of heads that share them, the size of the hidden layer of
        the block, and the number of tokens there are.
    """

    length: int
    width: int
    heads: int
    hidden: int
    vocabulary: int

    @property
    def shown(self) -> str:
        return (
            f"{self.length} tokens of {self.vocabulary}, width {self.width}, {self.heads} heads, "
            f"hidden {self.hidden}, batch {self.batch}"
        )

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.random.default_rng(0).integers(0, self.vocabulary, (self.batch, self.length + 1))
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    def weights(self) -> Arrays:
        rng = np.random.default_rng(1)
        weights = {"tokens/W": 0.1 * rng.standard_normal((self.vocabulary, self.width), "float32")}
        for norm in ("norm1", "norm2"):
            weights[f"{norm}/scale"] = np.ones(self.width, "float32")
            weights[f"{norm}/shift"] = np.zeros(self.width, "float32")
        dense = dict.fromkeys(("query", "key", "value", "out"), (self.width, self.width))
        dense |= {"fc1": (self.width, self.hidden), "fc2": (self.hidden, self.width)}
        dense["head"] = (self.width, self.vocabulary)
        for name, shape in dense.items():
            weights[f"{name}/W"] = scaled(rng, *shape)
            weights[f"{name}/b"] = np.zeros(shape[1], "float32")
        return weights

    def gradients(self, weights: Arrays, features: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
        gradients: Arrays = {}

        def dense(name: str, x: np.ndarray) -> np.ndarray:
            return x @ weights[f"{name}/W"] + weights[f"{name}/b"]

        def back(name: str, x: np.ndarray, error: np.ndarray) -> np.ndarray:
            rows = error.reshape(-1, error.shape[-1])
            gradients[f"{name}/W"] = x.reshape(-1, x.shape[-1]).T @ rows
            gradients[f"{name}/b"] = rows.sum(axis=0)
            return error @ weights[f"{name}/W"].T

        def normed(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            centred = x - x.mean(axis=-1, keepdims=True)
            inverse = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
            unit = centred * inverse
            return unit * weights[f"{name}/scale"] + weights[f"{name}/shift"], unit, inverse

        def norm_back(name: str, unit: np.ndarray, inverse: np.ndarray, error: np.ndarray) -> np.ndarray:
            gradients[f"{name}/scale"] = (error * unit).sum(axis=(0, 1))
            gradients[f"{name}/shift"] = error.sum(axis=(0, 1))
            error = error * weights[f"{name}/scale"]
            along = (error * unit).mean(axis=-1, keepdims=True)
            return inverse * (error - error.mean(axis=-1, keepdims=True) - unit * along)

        x = weights["tokens/W"][features]
        h, unit1, inverse1 = normed("norm1", x)
        q, k, v = (self._split(dense(name, h)) for name in ("query", "key", "value"))
        p = self._attend(q, k)
        mixed = self._join(p @ v)
        x = x + dense("out", mixed)
        h2, unit2, inverse2 = normed("norm2", x)
        z = dense("fc1", h2)
        inner = np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))
        g = z * (1 + inner) / 2
        x = x + dense("fc2", g)
        loss, error = entropy(dense("head", x), labels)

        error = back("head", x, error)
        slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2)
        by_z = back("fc2", g, error) * ((1 + inner) / 2 + z / 2 * (1 - inner**2) * slope)
        error = error + norm_back("norm2", unit2, inverse2, back("fc1", h2, by_z))
        by_mixed = self._split(back("out", mixed, error))
        by_p = by_mixed @ v.swapaxes(-1, -2)
        by_scores = p * (by_p - (by_p * p).sum(axis=-1, keepdims=True)) / np.sqrt(q.shape[-1])
        by_parts = {"query": by_scores @ k, "key": by_scores.swapaxes(-1, -2) @ q}
        by_parts["value"] = p.swapaxes(-1, -2) @ by_mixed
        by_h = sum(back(name, h, self._join(part)) for name, part in by_parts.items())
        error = error + norm_back("norm1", unit1, inverse1, by_h)
        gradients["tokens/W"] = np.zeros_like(weights["tokens/W"])
        np.add.at(gradients["tokens/W"], features, error)
        return loss, gradients

    def _split(self, x: np.ndarray) -> np.ndarray:
        """Turn (batch, length, width) into (batch, heads, length, width of a head)."""
        return x.reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2)

    def _join(self, x: np.ndarray) -> np.ndarray:
        """Undo :meth:`_split`."""
        return x.swapaxes(1, 2).reshape(len(x), self.length, self.width)

    def _attend(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Give each token's probabilities of the tokens up to it."""
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(self.length, dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True)
