"""The networks of the workloads in pytensor-ml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from pytensor_ml.activations import GELU, ReLU
from pytensor_ml.layers import (
    LSTM,
    BatchNorm,
    Conv2D,
    Dropout,
    Embedding,
    Flatten,
    Input,
    Linear,
    MaxPool2D,
    Sequential,
    TransformerBlock,
)

from tests.benchmarks.workloads import Convolutional, Dense, Recurrent, Transformer, Workload

__all__ = ["network"]


@singledispatch
def network(workload: Workload, batch: int | None) -> Any:
    """Build the logits of a workload, with its first weights, over a batch of this size or of any."""
    raise TypeError(f"no network for {workload!r}")


def _fill(workload: Workload, owners: Mapping[str, Any], **leaves: str) -> None:
    """Give layers the workload's weights; `leaves` says by what name a layer has one that is not its own."""
    for address, value in workload.weights().items():
        owner, leaf = address.split("/")
        getattr(owners[owner], leaves.get(leaf, leaf)).set_value(value)


@network.register
def _dense(workload: Dense, batch: int | None) -> Any:
    layers: list[Any] = []
    dense = {}
    for k in workload.layers:
        n_in, n_out = workload.widths[k : k + 2]
        dense[f"fc{k}"] = Linear(f"fc{k}", n_in=n_in, n_out=n_out)
        layers.append(dense[f"fc{k}"])
        if workload.is_hidden(k):
            layers += [BatchNorm(f"bn{k}", n_in=n_out)] if workload.norm else []
            layers += [ReLU()]
            rate = workload.dropout
            layers += [Dropout(f"drop{k}", p=rate, random_state=k)] if rate else []
    _fill(workload, dense)
    return Sequential(*layers)(Input("X", shape=(batch, workload.widths[0])))


@network.register
def _convolutional(workload: Convolutional, batch: int | None) -> Any:
    layers: list[Any] = []
    named = {}
    for k in workload.layers:
        n_in, n_out = workload.channels[k : k + 2]
        layer = Conv2D(f"conv{k}", in_channels=n_in, out_channels=n_out, kernel_size=3, padding="same")
        named[f"conv{k}"] = layer
        layers += [layer, ReLU(), MaxPool2D(kernel_size=2)]
    named["fc"] = Linear("fc", n_in=workload.pooled**2 * workload.channels[-1], n_out=10)
    _fill(workload, named)
    X = Input("X", shape=(batch, workload.size, workload.size, workload.channels[0]))
    return Sequential(*layers, Flatten, named["fc"])(X)


@network.register
def _recurrent(workload: Recurrent, batch: int | None) -> Any:
    lstm = LSTM("lstm", n_in=workload.n_in, n_hidden=workload.n_hidden)
    fc = Linear("fc", n_in=workload.n_hidden, n_out=10)
    _fill(workload, {"lstm": lstm.cell, "fc": fc})
    return fc(lstm(Input("X", shape=(batch, workload.length, workload.n_in)))[..., -1, :])


@network.register
def _transformer(workload: Transformer, batch: int | None) -> Any:
    tokens = Embedding("tokens", n_embeddings=workload.vocabulary, n_features=workload.width)
    block = TransformerBlock(
        "block",
        d_model=workload.width,
        n_head=workload.heads,
        mlp_ratio=workload.hidden // workload.width,
        activation=GELU(approximate=True),
        is_causal=True,
        epsilon=1e-5,
    )
    head = Linear("head", n_in=workload.width, n_out=workload.vocabulary)
    attention = block.attn
    owners = {"tokens": tokens, "norm1": block.norm1, "norm2": block.norm2, "head": head}
    owners |= {"query": attention.q_proj, "key": attention.k_proj, "value": attention.v_proj}
    owners |= {"out": attention.out_proj, "fc1": block.ff.fc_in, "fc2": block.ff.fc_out}
    _fill(workload, owners, shift="loc")
    return head(block(tokens(Input("X", shape=(batch, workload.length), dtype="int64"))))
