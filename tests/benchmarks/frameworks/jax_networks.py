"""The networks of the workloads as functions of JAX arrays."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp

from tests.benchmarks.workloads import Convolutional, Dense, Recurrent, Transformer, Workload

__all__ = ["apply", "start"]

#: Batch norm's, as the other frameworks have them by default, and layer norm's.
MOMENTUM, EPSILON = 0.1, 1e-5


def start(workload: Workload) -> tuple[Any, Any]:
    """Give the first parameters by name, and the first running statistics."""
    parameters = {name: jnp.asarray(value) for name, value in workload.weights().items()}
    statistics = {}
    if isinstance(workload, Dense) and workload.norm:
        for k in filter(workload.is_hidden, workload.layers):
            size = workload.widths[k + 1]
            parameters |= {f"bn{k}/scale": jnp.ones(size), f"bn{k}/shift": jnp.zeros(size)}
            statistics[k] = jnp.zeros(size), jnp.ones(size)
    return parameters, statistics


@singledispatch
def apply(workload: Workload, parameters: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
    """Give the logits and the moved statistics; without a key, for prediction."""
    raise TypeError(f"no network for {workload!r}")


def _linear(parameters: Any, name: str, x: Any) -> Any:
    return x @ parameters[f"{name}/W"] + parameters[f"{name}/b"]


@apply.register
def _dense(workload: Dense, parameters: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
    training = key is not None
    moved = dict(statistics)
    for k in workload.layers:
        x = _linear(parameters, f"fc{k}", x)
        if not workload.is_hidden(k):
            continue
        if workload.norm:
            mean, variance = statistics[k]
            if training:
                mean, variance = x.mean(axis=0), x.var(axis=0)
                moved[k] = tuple(
                    (1 - MOMENTUM) * old + MOMENTUM * new
                    for old, new in zip(statistics[k], (mean, variance), strict=True)
                )
            x = (x - mean) * jax.lax.rsqrt(variance + EPSILON)
            x = x * parameters[f"bn{k}/scale"] + parameters[f"bn{k}/shift"]
        x = jax.nn.relu(x)
        if training and workload.dropout:
            key, used = jax.random.split(key)
            kept = jax.random.bernoulli(used, 1 - workload.dropout, x.shape)
            x = jnp.where(kept, x / (1 - workload.dropout), 0)
    return x, moved


@apply.register
def _convolutional(
    workload: Convolutional, parameters: Any, statistics: Any, x: Any, key: Any
) -> tuple[Any, Any]:
    window = (1, 2, 2, 1)
    for k in workload.layers:
        x = jax.lax.conv_general_dilated(
            x, parameters[f"conv{k}/W"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + parameters[f"conv{k}/b"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    return _linear(parameters, "fc", x.reshape(len(x), -1)), statistics


@apply.register
def _recurrent(workload: Recurrent, parameters: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
    def step(carried: Any, projected: Any) -> Any:
        hidden, cell = carried
        z = projected + hidden @ parameters["lstm/W_hh"]
        write, keep, new, show = jnp.split(z, 4, axis=1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(write) * jnp.tanh(new)
        return (jax.nn.sigmoid(show) * jnp.tanh(cell), cell), None

    # One product of all steps' inputs, before the loop.
    projected = x.swapaxes(0, 1) @ parameters["lstm/W_ih"] + parameters["lstm/b"]
    zeros = jnp.zeros((len(x), workload.n_hidden))
    (hidden, _), _ = jax.lax.scan(step, (zeros, zeros), projected)
    return _linear(parameters, "fc", hidden), statistics


@apply.register
def _transformer(
    workload: Transformer, parameters: Any, statistics: Any, x: Any, key: Any
) -> tuple[Any, Any]:
    def normed(name: str, x: Any) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        unit = centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
        return unit * parameters[f"{name}/scale"] + parameters[f"{name}/shift"]

    x = parameters["tokens/W"][x]
    h = normed("norm1", x)
    heads = (*x.shape[:2], workload.heads, -1)
    q, k, v = (_linear(parameters, name, h).reshape(heads) for name in ("query", "key", "value"))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + _linear(parameters, "out", mixed.reshape(x.shape))
    h = jax.nn.gelu(_linear(parameters, "fc1", normed("norm2", x)), approximate=True)
    x = x + _linear(parameters, "fc2", h)
    return _linear(parameters, "head", x), statistics
