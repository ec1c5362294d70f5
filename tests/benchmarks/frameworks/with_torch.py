"""The workloads in PyTorch, eager, with its fused Adam."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.benchmarks.workloads import LEAF, LEARNING_RATE, Workload

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


class Training:
    compile_seconds = None

    def __init__(self, workload: Workload, variant: str) -> None:
        self.data = tuple(map(torch.from_numpy, workload.data()))
        layers: list[nn.Module] = []
        for k, (weight, bias) in enumerate(workload.weights()):
            dense = nn.Linear(*weight.shape)
            dense.weight.data = torch.from_numpy(weight.T.copy())
            dense.bias.data = torch.from_numpy(bias)
            layers.append(dense)
            if workload.is_hidden(k):
                layers += [nn.BatchNorm1d(len(bias))] if workload.norm else []
                layers += [nn.ReLU()]
                layers += [nn.Dropout(workload.dropout)] if workload.dropout else []
        self.net = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self) -> Any:
        if not self.net.training:
            self.net.train()
        features, labels = self.data
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(features), labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def predictor(self) -> Callable[[], Any]:
        def predict() -> Any:
            if self.net.training:
                self.net.eval()
            with torch.inference_mode():
                return self.net(self.data[0])

        return predict

    @staticmethod
    def wait(result: torch.Tensor) -> np.ndarray:
        return result.detach().numpy()


class Leaves:
    """PyTorch updates leaves one by one or in a fused optimizer; the latter is what training does."""

    def __init__(self, count: int, variant: str) -> None:
        leaves = [nn.Parameter(torch.zeros(LEAF)) for _ in range(count)]
        for leaf in leaves:
            leaf.grad = torch.ones(LEAF)
        optimizer = torch.optim.Adam(leaves, lr=LEARNING_RATE, fused=True)
        value = torch.ones(LEAF)

        def call() -> Any:
            optimizer.step()
            return value.sum()

        self.calls = {"call": call}

    @staticmethod
    def wait(result: torch.Tensor) -> np.ndarray:
        return result.numpy()
