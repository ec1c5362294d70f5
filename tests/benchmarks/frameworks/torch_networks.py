"""The networks of the workloads in PyTorch."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch
from torch import nn

from tests.benchmarks.workloads import Arrays, Convolutional, Dense, Recurrent, Transformer, Workload

__all__ = ["network"]


@singledispatch
def network(workload: Workload) -> nn.Module:
    """Build the network of a workload, with its first weights, from what its data gives to logits."""
    raise TypeError(f"no network for {workload!r}")


@network.register
def _dense(workload: Dense) -> nn.Module:
    weights = workload.weights()
    layers: list[nn.Module] = []
    for k in workload.layers:
        layers.append(_linear(weights, f"fc{k}"))
        if workload.is_hidden(k):
            layers += [nn.BatchNorm1d(workload.widths[k + 1])] if workload.norm else []
            layers += [nn.ReLU()]
            layers += [nn.Dropout(workload.dropout)] if workload.dropout else []
    return nn.Sequential(*layers)


@network.register
def _convolutional(workload: Convolutional) -> nn.Module:
    weights = workload.weights()
    layers: list[nn.Module] = [_ChannelsFirst()]
    for k in workload.layers:
        kernel = weights[f"conv{k}/W"].transpose(3, 2, 0, 1)
        layer = nn.Conv2d(kernel.shape[1], kernel.shape[0], 3, padding=1)
        layer.weight.data, layer.bias.data = _tensor(kernel), _tensor(weights[f"conv{k}/b"])
        layers += [layer, nn.ReLU(), nn.MaxPool2d(2)]
    # The dense layer's rows are of channels last.
    rows = weights["fc/W"].reshape(workload.pooled, workload.pooled, workload.channels[-1], -1)
    rows = rows.transpose(2, 0, 1, 3).reshape(weights["fc/W"].shape)
    return nn.Sequential(*layers, nn.Flatten(), _linear({**weights, "fc/W": rows}, "fc"))


class _ChannelsFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.movedim(-1, 1)


class _Recurrent(nn.Module):
    def __init__(self, workload: Recurrent) -> None:
        super().__init__()
        weights = workload.weights()
        self.lstm = nn.LSTM(workload.n_in, workload.n_hidden, batch_first=True)
        self.lstm.weight_ih_l0.data = _tensor(weights["lstm/W_ih"].T)
        self.lstm.weight_hh_l0.data = _tensor(weights["lstm/W_hh"].T)
        self.lstm.bias_ih_l0.data = _tensor(weights["lstm/b"])
        # The others have one bias; this second one stays at zero.
        self.lstm.bias_hh_l0.data = torch.zeros_like(self.lstm.bias_ih_l0)
        self.lstm.bias_hh_l0.requires_grad_(False)
        self.fc = _linear(weights, "fc")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


class _Transformer(nn.Module):
    def __init__(self, workload: Transformer) -> None:
        super().__init__()
        weights = workload.weights()
        self.heads = workload.heads
        self.tokens = nn.Embedding.from_pretrained(_tensor(weights["tokens/W"]), freeze=False)
        self.norm1, self.norm2 = nn.LayerNorm(workload.width), nn.LayerNorm(workload.width)
        parts = ("query", "key", "value")
        joined = {f"qkv/{leaf}": np.concatenate([weights[f"{p}/{leaf}"] for p in parts], -1) for leaf in "Wb"}
        self.qkv = _linear(joined, "qkv")
        self.out, self.fc1 = _linear(weights, "out"), _linear(weights, "fc1")
        self.fc2, self.head = _linear(weights, "fc2"), _linear(weights, "head")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x)), approximate="tanh"))
        return self.head(x)


network.register(Recurrent, _Recurrent)
network.register(Transformer, _Transformer)


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy(order="C"))


def _linear(weights: Arrays, name: str) -> nn.Linear:
    weight, bias = weights[f"{name}/W"], weights[f"{name}/b"]
    layer = nn.Linear(*weight.shape)
    layer.weight.data, layer.bias.data = _tensor(weight.T), _tensor(bias)
    return layer
