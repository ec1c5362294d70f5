"""The networks of the workloads as Equinox modules, which are applied to one example each."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks.workloads import Arrays, Convolutional, Dense, Recurrent, Transformer, Workload

__all__ = ["network"]

_KEY = jax.random.key(0)


@singledispatch
def network(workload: Workload) -> eqx.Module:
    """Build the network of a workload, called with an example, its state and a key or None."""
    raise TypeError(f"no network for {workload!r}")


def _linear(weights: Arrays, name: str) -> eqx.nn.Linear:
    weight, bias = weights[f"{name}/W"], weights[f"{name}/b"]
    return _with(eqx.nn.Linear(*weight.shape, key=_KEY), weight=weight.T, bias=bias)


def _with(module: Any, **arrays: np.ndarray) -> Any:
    """Give a module with these arrays in its fields."""
    return eqx.tree_at(
        lambda m: [getattr(m, name) for name in arrays], module, list(map(jnp.asarray, arrays.values()))
    )


@network.register(Dense)
class _Dense(eqx.Module):
    dense: list[eqx.nn.Linear]
    norms: list[eqx.nn.BatchNorm]
    dropout: eqx.nn.Dropout | None

    def __init__(self, workload: Dense) -> None:
        weights = workload.weights()
        self.dense = [_linear(weights, f"fc{k}") for k in workload.layers]
        hidden = workload.widths[1:-1] if workload.norm else ()
        # Equinox's momentum is the weight of what was, ptml's and PyTorch's that of what is new.
        self.norms = [eqx.nn.BatchNorm(n, axis_name="batch", momentum=0.9, mode="batch") for n in hidden]
        self.dropout = eqx.nn.Dropout(workload.dropout) if workload.dropout else None

    def __call__(self, x: Any, state: Any, key: Any) -> Any:
        for k, dense in enumerate(self.dense[:-1]):
            x = dense(x)
            if self.norms:
                x, state = self.norms[k](x, state)
            x = jax.nn.relu(x)
            if self.dropout is not None:
                key, used = (None, None) if key is None else jax.random.split(key)
                x = self.dropout(x, key=used)
        return self.dense[-1](x), state


@network.register(Convolutional)
class _Convolutional(eqx.Module):
    convolutions: list[eqx.nn.Conv2d]
    pool: eqx.nn.MaxPool2d
    fc: eqx.nn.Linear

    def __init__(self, workload: Convolutional) -> None:
        weights = workload.weights()
        self.convolutions = []
        for k in workload.layers:
            kernel = weights[f"conv{k}/W"].transpose(3, 2, 0, 1)
            layer = eqx.nn.Conv2d(kernel.shape[1], kernel.shape[0], 3, padding="SAME", key=_KEY)
            bias = weights[f"conv{k}/b"][:, None, None]
            self.convolutions.append(_with(layer, weight=kernel, bias=bias))
        self.pool = eqx.nn.MaxPool2d(2, 2)
        # The dense layer's rows are of channels last.
        rows = weights["fc/W"].reshape(workload.pooled, workload.pooled, workload.channels[-1], -1)
        rows = rows.transpose(2, 0, 1, 3).reshape(weights["fc/W"].shape)
        self.fc = _linear({**weights, "fc/W": rows}, "fc")

    def __call__(self, x: Any, state: Any, key: Any) -> Any:
        x = jnp.moveaxis(x, -1, 0)
        for convolution in self.convolutions:
            x = self.pool(jax.nn.relu(convolution(x)))
        return self.fc(x.reshape(-1)), state


@network.register(Recurrent)
class _Recurrent(eqx.Module):
    cell: eqx.nn.LSTMCell
    fc: eqx.nn.Linear

    def __init__(self, workload: Recurrent) -> None:
        weights = workload.weights()
        cell = eqx.nn.LSTMCell(workload.n_in, workload.n_hidden, key=_KEY)
        W_ih, W_hh = weights["lstm/W_ih"].T, weights["lstm/W_hh"].T
        self.cell = _with(cell, weight_ih=W_ih, weight_hh=W_hh, bias=weights["lstm/b"])
        self.fc = _linear(weights, "fc")

    def __call__(self, x: Any, state: Any, key: Any) -> Any:
        zeros = jnp.zeros(self.cell.hidden_size)
        (hidden, _), _ = jax.lax.scan(lambda c, x: (self.cell(x, c), None), (zeros, zeros), x)
        return self.fc(hidden), state


@network.register(Transformer)
class _Transformer(eqx.Module):
    tokens: eqx.nn.Embedding
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    fc1: eqx.nn.Linear
    fc2: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, workload: Transformer) -> None:
        weights = workload.weights()
        self.tokens = eqx.nn.Embedding(weight=jnp.asarray(weights["tokens/W"]))
        self.norm1, self.norm2 = eqx.nn.LayerNorm(workload.width), eqx.nn.LayerNorm(workload.width)
        biases = {f"use_{part}_bias": True for part in ("query", "key", "value", "output")}
        attention = eqx.nn.MultiheadAttention(workload.heads, workload.width, **biases, key=_KEY)
        self.attention = eqx.tree_at(
            lambda m: (m.query_proj, m.key_proj, m.value_proj, m.output_proj),
            attention,
            tuple(_linear(weights, name) for name in ("query", "key", "value", "out")),
        )
        self.fc1, self.fc2 = _linear(weights, "fc1"), _linear(weights, "fc2")
        self.head = _linear(weights, "head")

    def __call__(self, x: Any, state: Any, key: Any) -> Any:
        each = jax.vmap
        mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
        x = each(self.tokens)(x)
        h = each(self.norm1)(x)
        x = x + self.attention(h, h, h, mask=mask)
        h = jax.nn.gelu(each(self.fc1)(each(self.norm2)(x)), approximate=True)
        x = x + each(self.fc2)(h)
        return each(self.head)(x), state
