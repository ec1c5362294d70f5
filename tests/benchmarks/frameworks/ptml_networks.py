"""The networks of the workloads in ptml."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from ptml import layers
from ptml.activations import GELU, ReLU
from tests.benchmarks.workloads import Arrays, Convolutional, Dense, Recurrent, Transformer, Workload

__all__ = ["network"]


@singledispatch
def network(workload: Workload) -> tuple[layers.Sequential, Any, Arrays]:
    """Give the network of a workload, its input, and its first weights by address."""
    raise TypeError(f"no network for {workload!r}")


@network.register
def _dense(workload: Dense) -> tuple[layers.Sequential, Any, Arrays]:
    stack: list[Any] = []
    for k in workload.layers:
        n_in, n_out = workload.widths[k : k + 2]
        stack.append(layers.Linear(f"fc{k}", n_in=n_in, n_out=n_out))
        if workload.is_hidden(k):
            stack += [layers.BatchNorm(f"bn{k}", n_in=n_out)] if workload.norm else []
            stack += [ReLU()]
            stack += [layers.Dropout(f"drop{k}", p=workload.dropout)] if workload.dropout else []
    return layers.Sequential(*stack), layers.Input("X", shape=(None, workload.widths[0])), workload.weights()


@network.register
def _convolutional(workload: Convolutional) -> tuple[layers.Sequential, Any, Arrays]:
    stack: list[Any] = []
    for k in workload.layers:
        n_in, n_out = workload.channels[k : k + 2]
        stack.append(
            layers.Conv2D(f"conv{k}", in_channels=n_in, out_channels=n_out, kernel_size=3, padding="same")
        )
        stack += [ReLU(), layers.MaxPool2D(kernel_size=2)]
    fc = layers.Linear("fc", n_in=workload.pooled**2 * workload.channels[-1], n_out=10)
    X = layers.Input("X", shape=(None, workload.size, workload.size, workload.channels[0]))
    return layers.Sequential(*stack, layers.Flatten(), fc), X, workload.weights()


@network.register
def _recurrent(workload: Recurrent) -> tuple[layers.Sequential, Any, Arrays]:
    net = layers.Sequential(
        layers.LSTM("lstm", n_in=workload.n_in, n_hidden=workload.n_hidden),
        layers.LastStep(),
        layers.Linear("fc", n_in=workload.n_hidden, n_out=10),
    )
    return net, layers.Input("X", shape=(None, workload.length, workload.n_in)), workload.weights()


@network.register
def _transformer(workload: Transformer) -> tuple[layers.Sequential, Any, Arrays]:
    block = layers.TransformerBlock(
        "block",
        d_model=workload.width,
        n_head=workload.heads,
        hidden_dim=workload.hidden,
        activation=GELU(approximate="tanh"),
        is_causal=True,
        fused_qkv=True,
    )
    net = layers.Sequential(
        layers.Embedding("tokens", n_embeddings=workload.vocabulary, n_features=workload.width),
        block,
        layers.Linear("head", n_in=workload.width, n_out=workload.vocabulary),
    )
    weights = workload.weights()
    for leaf in "Wb":
        parts = [weights.pop(f"{part}/{leaf}") for part in ("query", "key", "value")]
        weights[f"qkv/{leaf}"] = np.concatenate(parts, axis=-1)
    addresses = {"norm1/scale": "block/norm1/scale", "norm1/shift": "block/norm1/b"}
    addresses |= {"norm2/scale": "block/norm2/scale", "norm2/shift": "block/norm2/b"}
    for ours, theirs in {"qkv": "attn/qkv", "out": "attn/out", "fc1": "ff/fc_in", "fc2": "ff/fc_out"}.items():
        addresses |= {f"{ours}/{leaf}": f"block/{theirs}/{leaf}" for leaf in "Wb"}
    first = {addresses.get(name, name): value for name, value in weights.items()}
    return net, layers.Input("X", shape=(None, workload.length), dtype="int64"), first
